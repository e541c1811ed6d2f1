"""Processes of an earlier release and of this one together, on the same data: all work is done once."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from datetime import timedelta
from pathlib import Path

import pytest
from bson import ObjectId

from benchmarks.release import LATEST, MISSING, VERSION, checked_out
from models import database
from models.database import collection, server_now
from queue_manager.core.clock import seconds
from tests.deployment.installation import Installation, build, install
from tests.e2e.job_processes import success_counts
from tests.e2e.watching import is_open, listening, woken
from tests.eventually import eventually
from tests.job_lab import Lab
from tests.real_servers import Servers
from tests.rooms import make_room

# The first test builds and installs two wheels, for which pip downloads everything.
pytestmark = [pytest.mark.processes, pytest.mark.timeout(900)]

JOB_NAMES = [f"rolling-{number}" for number in range(3)]
# Modules that users wrote for release 0.1 import `job` from there.
JOBS = textwrap.dedent("""
    from models.database import collection
    from services.job_queues import job

    def note(number):
        collection("rolling_notes").insert_one({"number": number})

    for name in NAMES:
        job(name)(note)
""")
ENV = {
    "QM_SNOOZE_SCAN_SECONDS": "1",
    "QM_JOBS": "true",
    "JOBS_TIMER_MS": "500",
    "JOBS_IMPORTS": '["rolling_jobs"]',
}


@pytest.fixture(scope="session", params=[LATEST, VERSION])
def previous(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    with checked_out(request.param) as source:
        if source is None:
            pytest.skip(MISSING)
        wheel = build(source, tmp_path_factory.mktemp("previous-dist"), "--wheel")
        yield install(wheel, tmp_path_factory.mktemp("previous") / "old", source=source)


@pytest.fixture(autouse=True)
def _no_old_indexes(clean: Servers) -> Iterator[None]:
    """Leave no indexes of the previous release to other tests, in which the doctor would report them."""
    yield
    database.client().drop_database(database.database())


@pytest.mark.parametrize(
    ("beat", "workers"),
    [
        ("old", ("old", "new")),
        ("old", ("new",)),
        ("new", ("old", "new")),
        ("new", ("old",)),
    ],
    ids=["old-beat-and-both-workers", "old-beat-new-worker", "new-beat-and-both-workers", "new-beat-old-worker"],
)
def test_all_work_is_executed_once_during_an_upgrade(
    beat: str,
    workers: Sequence[str],
    previous: Installation,
    installation: Installation,
    clean: Servers,
    tmp_path: Path,
) -> None:
    releases = {"old": previous, "new": installation}
    (tmp_path / "rolling_jobs.py").write_text(f"NAMES = {JOB_NAMES}\n{JOBS}")
    env = {**ENV, "PYTHONPATH": str(tmp_path)}
    for release in (previous, installation):
        migrated = release.run("queue-manager", "migrate", cwd=tmp_path, **env)
        assert migrated.returncode == 0, migrated.stderr

    with ExitStack() as stack:
        heard = stack.enter_context(listening(clean.valkey.url))
        for name in workers:
            command = f"exec celery -A tasks worker --hostname {name}@%h --concurrency 2"
            stack.enter_context(releases[name].process("worker", tmp_path, command=command, **env))
        stack.enter_context(releases[beat].process("beat", tmp_path, **env))
        rooms = [*make_rooms(40, due_in=seconds(-1)), *make_rooms(20, due_in=seconds(3))]
        numbers = store_jobs(30)
        eventually(lambda: all(map(is_open, rooms)))
        eventually(lambda: collection("rolling_notes").count_documents({}) >= len(numbers))
        eventually(lambda: success_counts(*JOB_NAMES) == {1})
        eventually(lambda: all(map(heard.of, rooms)))
    assert Counter(len(moments) for moments in woken(rooms)) == {1: len(rooms)}
    assert sorted(note["number"] for note in collection("rolling_notes").find()) == numbers


def test_all_work_is_executed_although_workers_of_both_releases_are_killed(
    previous: Installation, installation: Installation, clean: Servers, tmp_path: Path
) -> None:
    (tmp_path / "rolling_jobs.py").write_text(f"NAMES = {JOB_NAMES}\n{JOBS}")
    env = {**ENV, "PYTHONPATH": str(tmp_path), "QM_LEASE_SECONDS": "3", "JOBS_LEASE_SECONDS": "3"}
    for release in (previous, installation):
        migrated = release.run("queue-manager", "migrate", cwd=tmp_path, **env)
        assert migrated.returncode == 0, migrated.stderr

    def worker(release: Installation) -> AbstractContextManager[object]:
        command = f"exec celery -A tasks worker --hostname {release.venv.name}@%h --concurrency 2"
        return release.process("worker", tmp_path, command=command, **env)

    rooms, numbers = make_rooms(60, due_in=seconds(-1)), store_jobs(30)
    with previous.process("beat", tmp_path, **env), installation.process("beat", tmp_path, **env):
        for killed, other in ((previous, installation), (installation, previous)):
            with worker(other):
                with worker(killed):
                    more = make_rooms(60, due_in=seconds(1))
                    rooms.extend(more)
                    eventually(lambda more=more: any(map(is_open, more)))
                # It was killed, with its children, among its work.
                rooms.extend(make_rooms(20, due_in=seconds(1)))
                eventually(lambda: all(map(is_open, rooms)), within=90)
                eventually(lambda: success_counts(*JOB_NAMES) == {1}, within=90)
    assert Counter(len(moments) for moments in woken(rooms)) == {1: len(rooms)}
    assert {note["number"] for note in collection("rolling_notes").find()} == set(numbers)


def make_rooms(number: int, *, due_in: timedelta) -> list[ObjectId]:
    due_at = server_now() + due_in
    return [make_room(due_at) for _ in range(number)]


def store_jobs(number: int) -> list[int]:
    """Store a job for each of the numbers that are returned, spread over the queues."""
    lab = Lab(server_now, *JOB_NAMES)
    for one in range(number):
        lab.run(JOB_NAMES[one % len(JOB_NAMES)], one)
    return list(range(number))
