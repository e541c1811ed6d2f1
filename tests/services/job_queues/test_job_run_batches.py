"""Batches of short jobs: one write starts and finishes a batch; other runs never see its jobs overlap."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib import import_module
from threading import Barrier, Event
from typing import Any

import billiard.common
import pytest

from models import database, job, job_attempt, job_operations
from models.database import Document
from models.job import JobState, NameBusy
from models.job_attempt import EndedAttempt, JobOutcome
from queue_manager.core.clock import seconds
from queue_manager.core.errors import Contended
from services.job_queues import WrongState, runner
from services.job_queues.runner import BATCH_TIME, MAX_JOBS_PER_BATCH
from tests.eventually import eventually
from tests.job_lab import LEASE, Lab, lost_lease, successes
from tests.rooms import T0

SUCCESS = JobOutcome(state=JobState.SUCCESS)


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[list[Any]]:
    """The arguments of the jobs of each batch that a runner starts after its first job."""
    started: list[list[Any]] = []
    finish_and_start = job_attempt.finish_and_start

    def noting(ended: Sequence[EndedAttempt], batch: Sequence[Document], **options: Any) -> Any:
        started.append([one["arguments"][0] for one in batch])
        return finish_and_start(ended, batch, **options)

    monkeypatch.setattr(job_attempt, "finish_and_start", noting)
    return started


@pytest.fixture
def no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a change of a reserved job be refused at once."""
    monkeypatch.setattr(import_module("services.job_queues.jobs"), "RESERVATION_TIMEOUT", 0.0)


def reserve(lab: Lab, *ids: str, token: str = "elsewhere") -> list[Document]:
    """Start the first and reserve the other jobs as a run elsewhere would; return those that were."""
    batch, now = [lab.jobs.get(id) for id in ids], lab.clock()
    return job_attempt.finish_and_start([], batch, token=token, now=now, until=now + LEASE)[1]


def finish(lab: Lab, found: Document, token: str = "elsewhere", outcome: JobOutcome = SUCCESS) -> bool:
    return job_attempt.finish(found, outcome, token=token, now=lab.clock())


def states(ids: Sequence[str], lab: Lab) -> list[str]:
    return [lab.state(id) for id in ids]


# A run


@pytest.mark.slow
@pytest.mark.usefixtures("unhurried")
def test_short_jobs_run_in_order_with_one_write_a_batch(lab: Lab, batches: list[list[int]]) -> None:
    ids = [lab.run("mail", number) for number in range(200)]
    assert lab.run_through().succeeded == 200
    assert [arguments[0] for arguments in lab.ran] == list(range(200))
    assert [successes(id) for id in ids] == [1] * 200
    assert [number for batch in batches for number in batch] == list(range(1, 200))
    assert len(batches) <= 12
    assert max(map(len, batches)) <= MAX_JOBS_PER_BATCH
    finished = job.jobs().find_one({"name": "mail"}) or {}
    assert finished.keys().isdisjoint({"claim", "reserved", "page", "waiting", "first", "alone"})
    assert [(entry["state"], entry.get("attempt")) for entry in finished["history"]] == [
        ("pending", None),
        ("success", 1),
    ]


def test_failures_within_a_batch_are_retried_and_the_others_succeed(lab: Lab) -> None:
    ids = [lab.run("mail", number) for number in range(40)]
    lab.works["mail"] = lambda number, run: 1 / 0 if number % 4 == 3 else None
    report = lab.run_through()
    assert (report.succeeded, report.failed) == (30, 10)
    assert states(ids, lab) == ["failure" if number % 4 == 3 else "success" for number in range(40)]
    failed = lab.jobs.get(ids[3])
    assert (failed["attempts"], failed["last_error"]) == (1, "ZeroDivisionError: division by zero")
    assert failed["waiting"] > lab.clock()


def test_jobs_that_take_long_are_started_one_by_one(lab: Lab, batches: list[list[int]]) -> None:
    for number in range(4):
        lab.run("mail", number)
    lab.works["mail"] = lambda number, run: time.sleep(BATCH_TIME)
    lab.run_through()
    assert batches == [[1], [2], [3], []]


def test_repeating_job_is_not_batched(lab: Lab, batches: list[list[int]]) -> None:
    for number in range(3):
        lab.run("mail", number, every=seconds(60))
        lab.run("mail", number + 10)
    assert lab.run_through().succeeded == 6
    assert batches == [[10], [1], [11], [2], [12], []]


@pytest.mark.usefixtures("unhurried")
def test_long_job_of_a_batch_is_the_only_executing_one(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "RENEWALS_PER_LEASE", 100)  # the heartbeat looks often
    lab = Lab(database.server_now)
    ids = [lab.run("mail", number) for number in range(10)]
    other = lab.run("mail", "other", delay=seconds(0.001), priority=-1)
    refused: list[int] = []

    def be_long(number: Any, run: Any) -> None:
        if number != 5:
            return
        assert lab.state(ids[5]) == "pending"
        monkeypatch.setattr(runner, "BATCH_TIME", BATCH_TIME)
        until = time.monotonic() + 4 * BATCH_TIME
        while not refused or time.monotonic() < until:
            with pytest.raises(NameBusy):
                lab.start(lab.jobs.get(other))
            refused.append(number)
        eventually(lambda: lab.state(ids[5]) == "executing")
        assert states(ids[:5], lab) == ["success"] * 5
        assert "waiting" not in lab.jobs.get(ids[5])

    lab.works["mail"] = be_long
    assert lab.run_through().succeeded == 11
    assert (len(lab.ran), [successes(id) for id in ids]) == (11, [1] * 10)
    assert refused


@pytest.mark.usefixtures("unhurried")
def test_progress_of_a_job_within_a_batch_is_shown(lab: Lab) -> None:
    ids = [lab.run("mail", number) for number in range(5)]

    def report(number: int, run: Any) -> None:
        if number == 3:
            run.progress(40, "half")
            assert lab.jobs.get(ids[3])["progress"] == {"percent": 40.0, "note": "half"}
            assert states(ids, lab) == ["success"] * 3 + ["executing", "pending"]

    lab.works["mail"] = report
    assert lab.run_through().succeeded == 5


@pytest.mark.usefixtures("unhurried")
def test_job_within_a_batch_that_another_transaction_locks_has_not_lost_its_lease(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> bool:
        raise Contended(seconds(5))

    def report(number: int, run: Any) -> None:
        if number != 3:
            return
        with monkeypatch.context() as locked:
            locked.setattr(job_attempt, "hand_over", refuse)
            run.progress(100)
            with pytest.raises(Contended):
                _ = run.fencing_token
        assert run.fencing_token > 0

    for number in range(5):
        lab.run("mail", number)
    lab.works["mail"] = report
    assert lab.run_through().succeeded == 5


@pytest.mark.usefixtures("unhurried")
def test_interrupted_run_keeps_the_outcomes_of_its_batch(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = [lab.run("mail", number) for number in range(5)]

    def interrupt(number: int, run: Any) -> None:
        if number == 3:
            monkeypatch.setattr(billiard.common, "_should_have_exited", [True])
            raise SystemExit(-241)

    lab.works["mail"] = interrupt
    with pytest.raises(SystemExit):
        lab.run_through()
    assert states(ids, lab) == ["success"] * 3 + ["pending"] * 2
    interrupted = lab.jobs.get(ids[3])
    assert (interrupted["waiting"], interrupted.get("last_error")) == (T0, None)
    monkeypatch.undo()
    del lab.works["mail"]
    assert lab.run_through().succeeded == 2


@pytest.mark.usefixtures("unhurried")
def test_first_job_of_a_batch_that_was_canceled_does_not_change_the_order(lab: Lab) -> None:
    jobs = MAX_JOBS_PER_BATCH + 5  # more than the batch
    ids = [lab.run("mail", number) for number in range(jobs)]
    lab.works["mail"] = lambda number, run: number == 0 and lab.jobs.cancel(ids[1])
    lab.run_through()
    assert [arguments[0] for arguments in lab.ran] == [0, *range(2, jobs)]


# Reservations


def test_job_that_must_run_alone_since_it_was_read_is_not_reserved(lab: Lab) -> None:
    batch = [lab.jobs.get(lab.run("mail", number)) for number in range(3)]
    job.jobs().update_one({"_id": batch[1]["_id"]}, {"$set": {"alone": True}})
    now = lab.clock()
    _, started = job_attempt.finish_and_start([], batch, token="elsewhere", now=now, until=now + LEASE)
    assert [one["_id"] for one in started] == [batch[0]["_id"], batch[2]["_id"]]


@pytest.mark.usefixtures("no_wait")
def test_reserved_jobs_cannot_be_changed_by_others_until_the_reservation_ends(lab: Lab) -> None:
    ids = [lab.run("mail", number) for number in range(3)]
    assert len(reserve(lab, *ids)) == 3
    for change in (lab.jobs.cancel, lab.jobs.remove, lab.jobs.retry):
        with pytest.raises(WrongState, match="is about to start the job"):
            change(ids[1])
    assert lab.jobs.clear(["pending"]) == 0
    lab.hand.now += job_attempt.RESERVATION
    lab.jobs.cancel(ids[1])
    assert lab.jobs.clear(["pending"]) == 1


def test_change_of_a_reserved_job_waits_for_the_run(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = [lab.run("mail", number) for number in range(2)]
    _, second = reserve(lab, *ids)
    is_refused, cancel = Event(), job_operations.cancel

    def noting(*arguments: Any, **options: Any) -> Any:
        canceled = cancel(*arguments, **options)
        if canceled is None:
            is_refused.set()
        return canceled

    monkeypatch.setattr(job_operations, "cancel", noting)
    monkeypatch.setattr(import_module("services.job_queues.jobs"), "RESERVATION_TIMEOUT", 60.0)
    with ThreadPoolExecutor(1) as thread:
        canceling = thread.submit(lab.jobs.cancel, ids[1])
        assert is_refused.wait(30)
        assert finish(lab, second)
        with pytest.raises(WrongState, match="is success and cannot"):
            canceling.result()


@pytest.mark.slow
@pytest.mark.usefixtures("no_wait", "persistent")
def test_cancel_racing_with_a_reservation_exactly_one_wins(lab: Lab) -> None:
    gate = Barrier(2)

    def at_once(act: Callable[[], Any]) -> Any:
        gate.wait()
        return act()

    def try_to_cancel(id: str) -> bool:
        try:
            return bool(lab.jobs.cancel(id))
        except WrongState:
            return False

    with ThreadPoolExecutor(2) as threads:
        for _ in range(100):
            ids = [lab.run("mail", number) for number in range(2)]
            canceling = threads.submit(at_once, partial(try_to_cancel, ids[1]))
            reserving = threads.submit(at_once, partial(reserve, lab, *ids))
            assert canceling.result() != (len(reserving.result()) == 2)
            assert lab.state(ids[1]) == ("canceled" if canceling.result() else "pending")
            job.jobs().delete_many({})


def test_late_outcome_is_refused_after_another_run_has_reserved_the_job(lab: Lab) -> None:
    ids = [lab.run("mail", number) for number in range(3)]
    late = reserve(lab, *ids, token="late")
    lost_lease(ids[0])
    lab.dispatch()
    assert reserve(lab, *ids[1:], token="next")
    assert [finish(lab, one, "late") for one in late] == [False] * 3
    assert states(ids, lab) == ["failure", "executing", "pending"]


@pytest.mark.parametrize("state", [JobState.SUCCESS, JobState.FAILURE])
def test_job_canceled_after_its_reservation_stays_canceled(lab: Lab, state: JobState) -> None:
    ids = [lab.run("mail", number) for number in range(2)]
    _, late = reserve(lab, *ids)
    lab.hand.now += job_attempt.RESERVATION
    lab.jobs.cancel(ids[1])
    assert not finish(lab, late, outcome=JobOutcome(state=state, backoff=seconds(5)))
    assert states(ids, lab) == ["executing", "canceled"]


def test_job_that_was_executed_since_it_was_read_is_not_reserved(lab: Lab) -> None:
    ids = [lab.run("mail", number) for number in range(2)]
    seen = [lab.jobs.get(id) for id in ids]
    now = lab.clock()
    lab.start(seen[1], token="first")
    interrupted = JobOutcome(state=JobState.PENDING, is_counted=False)
    assert job_attempt.finish(seen[1], interrupted, token="first", now=now)  # it is due again
    _, started = job_attempt.finish_and_start([], seen, token="second", now=now, until=now + LEASE)
    assert [one["_id"] for one in started] == [seen[0]["_id"]]


def test_batch_is_not_started_twice_by_a_task_that_two_processes_execute(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [lab.run("mail", number) for number in range(3)]
    seen = [lab.jobs.get(id) for id in ids]
    theirs = reserve(lab, ids[0], ids[2], token="twice")
    monkeypatch.setattr(job_attempt, "process_name", lambda: "here:1")

    now = lab.clock()
    stored, started = job_attempt.finish_and_start([], seen, token="twice", now=now, until=now + LEASE)
    assert (stored, started) == ([], [])
    assert not finish(lab, seen[0], "twice")
    assert not job_attempt.renew(seen[0]["_id"], token="twice", until=now + LEASE)

    monkeypatch.undo()
    assert finish(lab, theirs[0], "twice")


def test_reservation_of_another_run_is_kept_by_one_that_comes_too_late_for_its_first_job(lab: Lab) -> None:
    ids = [lab.run("mail", number) for number in range(4)]
    seen = [lab.jobs.get(id) for id in ids]
    lab.start(seen[0], token="first")
    now = lab.clock()
    ended = [EndedAttempt(job=seen[0], outcome=SUCCESS)]
    options: dict[str, Any] = {"token": "first", "now": now, "until": now + LEASE}
    assert len(job_attempt.finish_and_start(ended, seen[1:], **options)[1]) == 3

    options["token"] = "late"
    assert job_attempt.finish_and_start([], [seen[0], *seen[2:]], **options) == ([], [])
    assert [finish(lab, one, "first") for one in (*seen[2:], seen[1])] == [True] * 3
    assert [successes(id) for id in ids] == [1] * 4


def test_run_reserves_again_jobs_it_had_no_time_for(lab: Lab) -> None:
    ids = [lab.run("mail", number) for number in range(4)]
    first, second, third, fourth = reserve(lab, *ids)
    now = lab.clock()
    ended = [EndedAttempt(job=first, outcome=SUCCESS)]
    options: dict[str, Any] = {"token": "elsewhere", "now": now, "until": now + LEASE}
    assert job_attempt.finish_and_start(ended, [second, third, fourth], **options) == ([True], [second, third, fourth])


def test_outcome_of_a_reserved_job_is_written_once(lab: Lab) -> None:
    ids = [lab.run("mail", number) for number in range(2)]
    first, second = reserve(lab, *ids)
    assert [finish(lab, one) for one in (second, second, first)] == [True] * 3
    assert [successes(id) for id in ids] == [1, 1]
    assert lab.jobs.get(ids[1])["attempts"] == 1


@pytest.mark.usefixtures("unhurried")
def test_reserved_jobs_of_a_lost_worker_are_executed_alone(lab: Lab, batches: list[list[int]]) -> None:
    ids = [lab.run("mail", number) for number in range(8)]
    reserve(lab, *ids[:5])
    lost_lease(ids[0])
    lab.dispatch()
    batches.clear()
    lab.hand.now += job_attempt.RESERVATION
    assert lab.run_through().succeeded == 8
    assert [arguments[0] for arguments in lab.ran] == list(range(8))
    assert batches == [[1], [2], [3], [4], [5, 6, 7], []]
    assert lab.jobs.get(ids[0])["attempts"] == 2
    assert [successes(id) for id in ids] == [1] * 8


def test_batch_ends_when_its_time_is_used_up(
    lab: Lab, batches: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "BATCH_TIME", 0.03)
    for number in range(30):
        lab.run("mail", number)
    lab.works["mail"] = lambda number, run: time.sleep(0.05) if number == 3 else None
    assert lab.run_through().succeeded == 30
    assert [arguments[0] for arguments in lab.ran] == list(range(30))
    assert 4 in [batch[0] for batch in batches if batch]
