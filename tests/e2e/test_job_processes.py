"""Job queues through real workers and a beat: consecutive in a name, parallel across names, on time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import redis

from beat_schedule import SYSTEMS
from models import database, job_queue, schema
from models.database import server_now
from queue_manager.core.clock import seconds
from queue_manager.leases import Leases
from services.job_queues.dispatch import lease_name
from tests.e2e.celery_processes import ROOT, CeleryProcess, log_of_refused_start
from tests.e2e.job_names import CONSECUTIVE
from tests.e2e.job_processes import (
    ENV,
    LONG,
    LONG_LEASE,
    PERIOD,
    at_once,
    count,
    job_beat,
    job_lab,
    job_worker,
    notes,
    overlaps,
    success_counts,
)
from tests.eventually import eventually
from tests.foreign_jobs import add_foreign_jobs, foreign_jobs
from tests.job_lab import Lab
from tests.pace import paced
from tests.real_servers import Servers

pytestmark = pytest.mark.processes

ON_TIME = 0.25  # seconds after its time, on an idle machine
SLACK = 0.75  # seconds between its time and its start in a queue that is being run through, on an idle machine


@dataclass(frozen=True)
class AtWork:
    lab: Lab
    workers: list[CeleryProcess]


@contextmanager
def at_work_with(servers: Servers, directory: Path, workers: int) -> Iterator[AtWork]:
    for name in database.database().list_collection_names():
        database.collection(name).delete_many({})
    schema.migrate(SYSTEMS)
    with redis.Redis.from_url(servers.valkey.url) as client:
        client.flushall()
    with ExitStack() as stack:
        started = [job_worker(directory, number, env=LONG).start(ready=False) for number in range(workers)]
        running = [stack.enter_context(one) for one in started]
        stack.enter_context(job_beat(directory, env=LONG))
        for one in running:
            eventually(lambda one=one: " ready." in one.log)
        yield AtWork(lab=job_lab(), workers=running)


@pytest.fixture(scope="module")
def at_work(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AtWork]:
    """Two workers and a beat; each test has jobs of its own names."""
    with at_work_with(servers, tmp_path_factory.mktemp("at-work"), workers=2) as running:
        yield running


def run_all_names(lab: Lab, each: int, *, workers: int, figure: Callable[[str], None]) -> None:
    began = server_now()
    for number in range(each):
        for name in CONSECUTIVE:
            lab.run(name, 0.01 if number % 5 == 0 else 0)
    total = each * len(CONSECUTIVE)
    eventually(lambda: count("success", *CONSECUTIVE) == total, within=90)
    took = (max(one["ended"] for one in notes(*CONSECUTIVE)) - began).total_seconds()
    parallel = at_once(*CONSECUTIVE)
    figure(f"jobs: {total} of {len(CONSECUTIVE)} names by {workers} workers in {took:.1f} s, {parallel} names at once")
    assert overlaps(*CONSECUTIVE) == []
    assert len(notes(*CONSECUTIVE)) == total
    assert success_counts(*CONSECUTIVE) == {1}
    assert 1 < parallel <= len(CONSECUTIVE)


@pytest.mark.smoke
def test_two_workers_run_names_at_once_and_each_name_one_after_another(
    at_work: AtWork, figure: Callable[[str], None]
) -> None:
    run_all_names(at_work.lab, 25, workers=2, figure=figure)


@pytest.mark.stress
def test_eight_workers_run_names_at_once_and_each_name_one_after_another(
    servers: Servers, tmp_path: Path, figure: Callable[[str], None]
) -> None:
    with at_work_with(servers, tmp_path, workers=8) as running:
        run_all_names(running.lab, 300, workers=8, figure=figure)


def test_job_starts_at_its_time(at_work: AtWork, figure: Callable[[str], None]) -> None:
    with paced() as pace:
        ids = [at_work.lab.run("soon", delay=seconds(2 + 0.21 * n)) for n in range(8)]
        due = {id: at_work.lab.jobs.get(id)["due"] for id in ids}
        eventually(lambda: all(at_work.lab.state(id) == "success" for id in ids))
    late = [(notes("soon", job=id)[0]["began"] - at).total_seconds() for id, at in due.items()]  # not another test's
    figure(f"jobs: started {min(late) * 1000:.0f} to {max(late) * 1000:.0f} ms after their time")
    assert min(late) >= 0
    assert max(late) <= pace.allowed(ON_TIME)


def is_in_flight(queue: str) -> bool:
    (status,) = Leases("job-queues").statuses([lease_name(queue, job_queue.leader_epoch())])
    return status.state == "in-progress"


def test_job_that_is_run_now_starts_within_a_period(at_work: AtWork, figure: Callable[[str], None]) -> None:
    waited = []
    with paced() as pace:
        for _ in range(4):
            ran_at = server_now()
            id = at_work.lab.run("now")
            eventually(lambda id=id: at_work.lab.state(id) == "success")
            waited.append((notes("now", job=id)[0]["began"] - ran_at).total_seconds())
            eventually(lambda: not is_in_flight("now"))  # the next one needs a dispatch, too
    figure(f"jobs: one that is run now starts after at most {max(waited):.2f} s of a period of {PERIOD} s")
    assert max(waited) <= PERIOD + pace.allowed(ON_TIME)


def test_job_of_many_leases_keeps_its_lease_and_runs_once(at_work: AtWork) -> None:
    id = at_work.lab.run("long", 3 * LONG_LEASE)
    eventually(lambda: at_work.lab.state(id) == "success")
    found = at_work.lab.jobs.get(id)
    assert (found["attempts"], len(notes("long"))) == (1, 1)
    assert [entry["state"] for entry in found["history"]] == ["pending", "success"]


def test_pause_stops_after_the_current_job_in_all_workers(at_work: AtWork) -> None:
    for _ in range(8):
        at_work.lab.run("paused", 0.3)
    eventually(lambda: count("executing", "paused") == 1)
    at_work.lab.jobs.pause(["paused"])
    paused_at, left = server_now(), count("pending", "paused")
    eventually(lambda: count("executing", "paused") == 0)
    at_work.lab.run("meanwhile", 3 * PERIOD)  # several dispatches go by
    eventually(lambda: notes("meanwhile"))
    begun = [one for one in notes("paused") if one["began"] > paused_at]
    assert len(begun) <= 1  # the one that the worker chose before the pause
    assert count("pending", "paused") >= left - 1 > 0

    at_work.lab.jobs.resume(["paused"])
    eventually(lambda: count("success", "paused") == 8)
    assert overlaps("paused") == []


def test_poison_job_does_not_hold_up_a_thousand_good_ones(at_work: AtWork, figure: Callable[[str], None]) -> None:
    at_work.lab.jobs.pause(["mixed"])
    poison = at_work.lab.run("mixed", "poison", priority=100)
    for number in range(1_000):
        at_work.lab.jobs.run("mixed", str(number))

    def failed_once() -> Any:
        found = at_work.lab.jobs.get(poison)
        return (found["state"], found["attempts"]) == ("failure", 1) and found

    with paced() as pace:
        resumed_at = server_now()
        at_work.lab.jobs.resume(["mixed"])
        failed = eventually(failed_once)
        eventually(lambda: count("success", "mixed") == 1_000)
        took = (server_now() - resumed_at).total_seconds()
        eventually(lambda: len(notes("mixed", job=poison)) >= 2)
    figure(f"jobs: 1,000 behind a poison one done in {took:.1f} s")
    order = notes("mixed")
    first, second, *_ = (at for at, noted in enumerate(order) if noted["job"] == poison)
    assert first == 0
    assert second > 1  # good ones ran while it rested
    rest = failed["due"] - failed["history"][-1]["at"]
    assert seconds(2.5) <= rest <= seconds(5)
    assert 0 <= (order[second]["began"] - failed["due"]).total_seconds() <= PERIOD + pace.allowed(SLACK)
    assert success_counts("mixed") == {0, 1}
    found = at_work.lab.jobs.get(poison)
    assert (found["last_error"], count("failure", "mixed")) == ("ValueError: poison", 1)
    at_work.lab.jobs.cancel(poison)


@pytest.mark.parametrize("source", ["import no_such_module", "1 / 0"])
def test_worker_ends_with_an_error_if_jobs_cannot_be_imported(servers: Servers, tmp_path: Path, source: str) -> None:
    (tmp_path / "broken_jobs.py").write_text(source)
    env = {**ENV, "JOBS_IMPORTS": '["broken_jobs"]', "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    said = log_of_refused_start(job_worker(tmp_path, env=env))
    assert "JOBS_IMPORTS: 'broken_jobs' cannot be imported" in said


def test_documents_of_another_program_stop_no_queue(clean: Servers, tmp_path: Path) -> None:
    others = add_foreign_jobs("now", server_now())
    with job_worker(tmp_path).start(ready=False), job_beat(tmp_path):
        lab = job_lab()
        ids = [lab.run(name) for name in ("now", "now", "now", "soon")]
        eventually(lambda: {lab.state(id) for id in ids} == {"success"})
    assert foreign_jobs() == others
