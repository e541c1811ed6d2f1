"""Packets between the processes and a server are dropped, without a reset: everything continues.

All of them are dropped for a while, or those of the connections that are open are dropped for good. Neither side learns
of it but by its time limits.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from beat_schedule import SYSTEMS
from dev.servers import Mongo, Valkey
from models import database, job, schema
from queue_manager.core.background import in_thread
from queue_manager.core.settings import settings
from tests.e2e.celery_processes import LoggedProcess
from tests.e2e.test_outage_logs import INTERNALS, repeated_lines
from tests.e2e.watching import is_open, woken
from tests.eventually import eventually
from tests.faults import isolation
from tests.servers.everything import Processes, processes
from tests.servers.interruptions import KINDS, Load, under_load
from tests.services.message_queue.message_lab import Lab

pytestmark = pytest.mark.crash

RECOVERY_LIMIT = 15.0  # seconds
SHORTER, LONGER = 4.0, 35.0  # seconds; the longest time limit of a connection is 30
ALL = (*KINDS, "consumer")
GROUP, QUEUE, TYPE = "processes", "direct", "mail"


@dataclass(frozen=True)
class Deployment:
    """A worker, a beat, a web process and a consumer in one group, with servers that the firewall can cut them off."""

    running: Processes
    ports: dict[str, int]
    lab: Lab
    """The message queue of the consumer."""
    received: Path

    def logs(self) -> dict[str, list[str]]:
        found = {"worker": self.running.worker.log, "beat": self.running.beat.log, "web": self.running.web.log}
        return {name: log.splitlines() for name, log in found.items()}


@pytest.fixture
def deployment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Deployment]:
    if obstacle := isolation.obstacle():
        assert not os.environ.get("CI"), obstacle
        pytest.skip(obstacle)
    database.close()
    with ExitStack() as stack:
        stack.enter_context(isolation.entered())
        valkey, mongo = (stack.enter_context(kind(tmp_path / kind.__name__)) for kind in (Valkey, Mongo))
        env = {"REDIS_URL": valkey.url, "MONGO_DB_URL": mongo.url}
        for name, value in {**env, "QM_JOBS": "true", "JOBS_IMPORTS": '["tests.e2e.job_works"]'}.items():
            monkeypatch.setenv(name, value)
        settings.cache_clear()
        stack.callback(settings.cache_clear)
        stack.callback(monkeypatch.undo)
        schema.migrate(SYSTEMS)
        database.close()
        received = tmp_path / "received"
        program = ("-m", "tests.servers.consumer", TYPE, str(received))
        with isolation.starting_group(GROUP):
            running = stack.enter_context(processes(tmp_path, QM_LOG_FORMAT="json", **env))
            stack.enter_context(LoggedProcess(tmp_path / "consumer", *program, env={**env, "QUEUE_NAME": QUEUE}))
        lab = stack.enter_context(Lab(valkey.url, name=QUEUE))
        stack.callback(database.close)
        yield Deployment(running, {"Redis": valkey.port, "MongoDB": mongo.port}, lab, received)


def sent_and_received(deployment: Deployment, numbers: Iterator[int], sent: list[str]) -> None:
    """Send a message to the consumer, and wait until it was received."""
    id = f"m{next(numbers)}"
    deployment.lab.queue.enqueue(TYPE, id=id)
    sent.append(id)

    def is_received() -> bool:
        deployment.lab.sweeper.sweep()
        return f"{id} " in deployment.received.read_text()

    eventually(is_received, within=120, every=0.1)


@pytest.mark.parametrize("lasts", [SHORTER, LONGER])
@pytest.mark.parametrize("server", ["Redis", "MongoDB"])
def test_everything_continues_after_dropped_packets(
    server: str, lasts: float, deployment: Deployment, figure: Callable[[str], None]
) -> None:
    with everything_under_load(deployment) as load:
        began = time.monotonic()
        with isolation.cut_off([GROUP], [deployment.ports[server]]):
            time.sleep(lasts)  # the length of the outage, not a wait for anything
        passed_again = time.monotonic()
        assert load.succeeded("readiness", began + 1) == 0
        for kind in ALL:
            eventually(lambda kind=kind: load.succeeded(kind, passed_again) >= 3, within=90)
        recovered = {kind: load.first_success(kind, passed_again) or 0.0 for kind in ALL}
        figure(f"all packets to {server} dropped for {lasts:g} s; recovered after {shown(recovered)}")
    assert {kind: took for kind, took in recovered.items() if took > RECOVERY_LIMIT} == {}


@pytest.mark.parametrize("server", ["Redis", "MongoDB"])
def test_everything_continues_after_open_connections_are_lost(
    server: str, deployment: Deployment, figure: Callable[[str], None]
) -> None:
    with everything_under_load(deployment) as load:
        began = time.monotonic()
        with isolation.forgotten([GROUP], [deployment.ports[server]]):
            for kind in ALL:
                eventually(lambda kind=kind: load.succeeded(kind, began + RECOVERY_LIMIT) >= 3, within=120)
        gaps = {kind: load.longest_gap(kind, began) for kind in ALL}
        figure(f"all packets of open connections to {server} dropped; longest gaps {shown(gaps)}")
    assert {kind: took for kind, took in gaps.items() if took > RECOVERY_LIMIT} == {}


@contextmanager
def everything_under_load(deployment: Deployment) -> Iterator[Load]:
    """Run the load and a consumer while the block runs; all that they began must be done afterwards."""
    sent: list[str] = []
    deployment.received.touch()
    with under_load(deployment.running) as load:
        send = partial(sent_and_received, deployment, count(), sent)
        with in_thread(partial(load.repeat, "consumer", send), name="consumer"):
            eventually(lambda: load.succeeded("consumer", 0) >= 2)
            before = {name: len(lines) for name, lines in deployment.logs().items()}
            yield load
            require_quiet_logs(deployment, before)
        eventually(partial(load.require_events, [*load.rooms]), within=100)
    require_all_done(deployment, load, sent)


def shown(times: dict[str, float]) -> str:
    return ", ".join(f"{kind} {took:.1f} s" for kind, took in times.items())


def require_quiet_logs(deployment: Deployment, before: dict[str, int]) -> None:
    for name, lines in deployment.logs().items():
        new = lines[before[name] :]
        assert [line for line in new if INTERNALS.search(line)] == [], name
        assert repeated_lines(new) == {}, name


def require_all_done(deployment: Deployment, load: Load, sent: list[str]) -> None:
    eventually(lambda: job.jobs().count_documents({"state": {"$ne": "success"}}) == 0)
    eventually(lambda: all(map(is_open, load.rooms)))
    assert {len(moments) for moments in woken(load.rooms)} == {1}
    eventually(lambda: deployment.lab.contents.counts().total_acknowledged == len(sent))
    assert {line.split()[0] for line in deployment.received.read_text().splitlines()} == {*sent}
    assert deployment.running.worker.is_alive()
    assert deployment.running.beat.is_alive()
