"""Ways to wake rooms: their processes, and the indexes that they need."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from beat_schedule import SYSTEMS
from benchmarks.release import RELEASE, ROOT, checked_out
from benchmarks.rooms import first_attempt
from dev import procfile
from models import schema, support_room

NODE = ROOT / "benchmarks" / "node"
SENDER = str(Path(__file__).with_name("sender.py"))
PROGRAM = "tasks.support_snooze"
SCAN, ITEM = f"{PROGRAM}.scan_expired_snoozes", f"{PROGRAM}.unsnooze_room"
FIRST = "Celery as first written"
HAND_TUNED = "Celery, tuned by hand, without leases"
CELERY = f"{sys.executable} -m celery -A"


@dataclass(frozen=True, kw_only=True)
class Contender:
    """A way to wake rooms."""

    name: str
    sender: Sequence[str]
    """The command of a program like `sender.py`."""
    migrate: Callable[[], object]
    """Makes its indexes."""
    workers: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """By name, the commands of its workers."""
    env: Mapping[str, str] = field(default_factory=lambda: {"PYTHONPATH": str(ROOT)})


def ours(name: str = "ours", app: str = "tasks") -> Contender:
    """Ours, by the commands of the Procfile."""
    return Contender(
        name=name,
        workers=procfile_workers(app=app),
        sender=[sys.executable, SENDER, app, SCAN, ITEM],
        migrate=partial(schema.migrate, SYSTEMS),
    )


def procfile_workers(root: Path = ROOT, *, app: str = "tasks") -> dict[str, list[str]]:
    """Return the commands of the Procfile's processes that wake rooms."""
    commands = {process.name: shlex.split(process.command) for process in procfile.read(root / "Procfile")}
    program = [sys.executable, "-m", "celery", "-A", app]
    return {name: [*program, *commands[name][3:]] for name in ("worker", "scans")}


def first(name: str = FIRST, app: str = "benchmarks.rooms.first_attempt") -> Contender:
    return Contender(
        name=name,
        workers={"worker": [*shlex.split(f"{CELERY} {app} worker --loglevel INFO --task-events --concurrency 2")]},
        sender=[
            sys.executable,
            SENDER,
            app,
            f"{first_attempt.__name__}.scan",
            f"{first_attempt.__name__}.unsnooze_room",
        ],
        migrate=_index_by_time,
    )


def hand_tuned() -> Contender:
    app = "benchmarks.rooms.hand_tuned"
    return Contender(
        name=HAND_TUNED,
        workers={
            "worker": shlex.split(f"{CELERY} {app} worker --loglevel INFO --hostname worker@%h --queues celery -c 2"),
            "scans": shlex.split(f"{CELERY} {app} worker --loglevel INFO --hostname scans@%h --queues scans -c 1"),
        },
        sender=[sys.executable, SENDER, app, f"{app}.scan", f"{app}.unsnooze_rooms"],
        migrate=_index_by_time,
    )


def find_and_update() -> Contender:
    return Contender(
        name="find and update, two processes",
        sender=[sys.executable, "-m", "benchmarks.rooms.find_and_update"],
        migrate=_index_by_time,
    )


def node(library: str, concurrency: int) -> Contender:
    """A service in Node with Bull or BullMQ."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])  # `node` may be a wheel
    return Contender(
        name=f"{library}, {concurrency} at a time",
        sender=["node", str(NODE / "snooze.mjs"), library, str(concurrency)],
        migrate=_index_by_time,
        env={"PATH": path},
    )


def has_node_packages() -> bool:
    """Return True if `make bench` has installed the packages of the Node services."""
    return (NODE / "node_modules" / "bullmq").is_dir()


@contextmanager
def release() -> Iterator[Contender | None]:
    """Check out release 0.1 while the block runs; `None` where its tag is unknown."""
    with checked_out() as directory:
        if directory is None:
            yield None
            return
        env = {"PYTHONPATH": str(directory)}
        migrate = [sys.executable, "-c", "from queue_manager.cli import main; main()", "migrate"]
        yield Contender(
            name=RELEASE,
            workers=procfile_workers(directory),
            sender=[sys.executable, SENDER, "tasks", SCAN, ITEM],
            migrate=lambda: subprocess.run(migrate, env={**os.environ, **env}, capture_output=True, check=True),
            env=env,
        )


def _index_by_time() -> None:
    support_room.rooms().create_index(first_attempt.INDEX)
