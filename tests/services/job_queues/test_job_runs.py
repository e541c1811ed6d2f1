"""Runs of a queue: order, failures and retries, leases, and late or disconnected workers."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from asyncio import CancelledError
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import count
from socket import gethostname
from typing import Any, NoReturn
from weakref import ref

import billiard.common
import pytest
from bson import ObjectId
from pymongo.errors import AutoReconnect, OperationFailure

from models import database, job, job_attempt
from models.database import collection
from models.job import MAX_HISTORY, JobState
from models.job_attempt import JobOutcome
from queue_manager import pauses
from queue_manager.core.clock import hours, minutes, seconds
from queue_manager.core.errors import ConfigurationError, ContinueLater, NotYetDue, PermanentError, Unavailable
from queue_manager.core.redis_client import connect
from queue_manager.core.settings import settings
from services import job_queues
from services.job_queues import JobCancelled, JobRun, runner
from services.job_queues.runner import READ_TTL
from tasks import job_queues as tasks
from tasks.job_queues import run_jobs
from tests.eventually import eventually
from tests.job_lab import LEASE, Lab, lost_lease, only, successes
from tests.real_servers import Servers
from tests.rooms import T0


def fails_with(error: BaseException) -> Callable[..., None]:
    def fail(*_: Any, run: Any) -> None:
        raise error

    return fail


# Order


async def never_awaited() -> None: ...


@pytest.mark.parametrize("result", [never_awaited, lambda: (number for number in range(0))])
def test_function_that_returns_a_coroutine_or_generator_fails(lab: Lab, result: Callable[[], Any]) -> None:
    lab.works["mail"] = lambda run: result()
    lab.run("mail")
    assert lab.run_through().failed == 1
    assert "so nothing was done: it must be a plain function" in only(lab)["last_error"]


def test_jobs_run_by_priority_and_then_by_due_time(lab: Lab) -> None:
    lab.run("mail", "later", at=T0 - minutes(1))
    lab.run("mail", "sooner", at=T0 - minutes(2))
    lab.run("mail", "low", at=T0 - hours(1), priority=-1)
    lab.run("mail", "high", priority=1)
    lab.run("mail", "not yet", priority=100, delay=seconds(1))
    assert lab.run_through().succeeded == 4
    assert [arguments[0] for arguments in lab.ran] == ["high", "sooner", "later", "low"]


def test_job_of_higher_priority_is_executed_before_older_jobs(lab: Lab) -> None:
    def outrun(number: str, run: Any) -> None:
        if number == "first":
            lab.run("mail", "urgent", priority=5)
            time.sleep(READ_TTL * 1.1)  # a look at the queue is believed for so long

    lab.works["mail"] = outrun
    lab.run("mail", "first", at=T0 - seconds(2))
    lab.run("mail", "second", at=T0 - seconds(1))
    lab.run_through()
    assert [arguments[0] for arguments in lab.ran] == ["first", "urgent", "second"]


def test_failed_jobs_are_tried_first_after_a_take_over_each_once(lab: Lab) -> None:
    lab.dispatch(epoch=1)
    for number in range(3):
        lab.run("mail", number)
    lab.works["mail"] = fails_with(ValueError("boom"))
    lab.run_through(epoch=1)
    lab.run("mail", "good", priority=100)

    lab.works["mail"] = lambda number, run: 1 / 0 if number in (0, 1) else None
    lab.ran.clear()
    assert [report.failed for report in lab.serve(epoch=2)] == [2]
    assert [arguments[0] for arguments in lab.ran] == [0, 1, 2, "good"]
    lab.hand.advance(minutes(1))
    lab.run("mail", "other", priority=100)
    lab.ran.clear()
    lab.serve(epoch=2)
    first, *rest = (arguments[0] for arguments in lab.ran)
    assert (first, sorted(rest)) == ("other", [0, 1])


# Failure


def test_failure_is_tried_again_after_five_seconds_doubling_to_ten_minutes(lab: Lab) -> None:
    id = lab.run("mail")
    lab.works["mail"] = fails_with(ValueError("boom"))
    longest = [5, 10, 20, 40, 80, 160, 320, 600, 600, 600]
    shortest = []
    for attempt, wait in enumerate(longest, start=1):
        lab.run_through()
        failed = lab.jobs.get(id)
        assert (failed["state"], failed["attempts"], failed["last_error"]) == ("failure", attempt, "ValueError: boom")
        rest = failed["due"] - lab.clock()
        assert failed["waiting"] == failed["due"]
        assert seconds(wait * 0.499) <= rest <= seconds(wait)
        shortest.append(rest / seconds(wait))
        lab.hand.now = failed["due"] - seconds(0.001)
        lab.run_through()
        assert len(lab.ran) == attempt
        lab.hand.now = failed["due"]
    assert len({round(part, 3) for part in shortest}) > 1  # with jitter
    assert [entry.get("attempt") for entry in failed["history"]] == [None, *range(1, 11)]


def test_failing_job_does_not_block_the_following_ones(lab: Lab) -> None:
    poison = lab.run("mail", "poison", priority=100)
    for number in range(50):
        lab.run("mail", number)
    lab.works["mail"] = lambda what, run: 1 / 0 if what == "poison" else None
    report = lab.run_through()
    assert (report.succeeded, report.failed) == (50, 1)
    assert lab.ran[0] == ("poison",)
    assert lab.state(poison) == "failure"


def test_permanent_error_is_retried_only_manually_or_by_a_take_over(lab: Lab) -> None:
    lab.dispatch(epoch=1)
    id = lab.run("mail")
    lab.works["mail"] = fails_with(PermanentError("no such invoice"))
    lab.serve(epoch=1)
    lab.hand.advance(hours(24))
    lab.serve(epoch=1)
    assert (lab.state(id), len(lab.ran)) == ("failure", 1)
    assert "waiting" not in lab.jobs.get(id)
    lab.serve(epoch=2)
    assert len(lab.ran) == 2
    lab.jobs.retry(id)
    lab.serve(epoch=2)
    assert len(lab.ran) == 3


class Unreadable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (SystemExit(3), "SystemExit: 3"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (CancelledError(), "CancelledError"),
        (RecursionError("deep"), "RecursionError: deep"),
        (ValueError("\ud800" + "x" * 10_000), "ValueError: ?xxx"),
        (Unreadable(), "Unreadable: its text cannot be rendered (RuntimeError)"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_any_exception_of_a_job_is_recorded_as_its_failure(lab: Lab, error: BaseException, said: str) -> None:
    lab.run("mail")
    lab.works["mail"] = fails_with(error)
    assert lab.run_through().failed == 1
    failed = only(lab)
    assert failed["last_error"].startswith(said)
    assert len(failed["last_error"]) < 2_100


def test_log_has_the_traceback_of_an_unexpected_error_at_attempts_1_2_and_4(
    lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    lab.run("mail")
    lab.works["mail"] = fails_with(KeyError("address"))
    for _ in range(5):
        lab.run_through()
        lab.hand.now += minutes(10)
    lab.works["mail"] = fails_with(PermanentError("no such address"))
    lab.run_through()

    lines: list[Any] = [record.msg for record in caplog.records]
    failed = [line for line in lines if line["event"].startswith("Job failed")]
    errors = [repr(line["exc_info"]) for line in failed]
    assert errors == ["KeyError('address')"] * 2 + ["None", "KeyError('address')", "None", "None"]


def test_job_whose_function_is_gone_fails_with_that_reason(lab: Lab) -> None:
    first, second = lab.run("mail", priority=1), lab.run("mail")
    registered = {**lab.registry._registered}
    lab.registry._registered.clear()
    report = lab.run_through()
    assert (report.failed, report.stopped) == (1, "this worker has no function for jobs of this name")
    failed = lab.jobs.get(first)
    assert failed["state"] == "failure"
    assert "There is no job 'mail'" in failed["last_error"]
    assert failed["waiting"] == failed["due"] == lab.clock() + minutes(1)
    assert lab.state(second) == "pending"

    attempts: list[int] = []
    lab.works["mail"] = lambda run: attempts.append(run.attempt)
    lab.registry._registered |= registered
    assert lab.run_through().succeeded == 1
    lab.hand.advance(minutes(1))
    assert lab.run_through().succeeded == 1
    assert attempts == [1, 1]


def test_unknown_job_that_a_function_raises_is_an_error_like_any_other(lab: Lab) -> None:
    lab.works["mail"] = lambda run: lab.registry.find("nobody")
    id = lab.run("mail")
    report = lab.run_through()
    assert (report.failed, report.stopped, lab.jobs.get(id).get("settled")) == (1, None, None)


def test_functions_without_a_run_parameter_or_signature_are_called_with_the_arguments_alone(lab: Lab) -> None:
    lab.registry.register("plain", sys.exc_info)
    lab.registry.register("bare", dict)
    lab.run("plain")
    lab.run("bare")
    assert lab.run_through("plain").succeeded == lab.run_through("bare").succeeded == 1


class Large:
    """An object of a job's function that a weak reference can follow."""


def raise_a_kept_error() -> None:
    last = None
    try:
        raise ValueError("boom")
    except ValueError as error:
        last = error
    raise last


def raise_a_chain() -> None:
    try:
        raise_a_kept_error()
    except ValueError:
        raise_a_kept_error()


def raise_a_group() -> None:
    errors = []
    for _ in range(2):
        try:
            raise_a_kept_error()
        except ValueError as error:
            errors.append(error)
    raise ExceptionGroup("several", errors)


def raise_a_permanent_error() -> None:
    raise PermanentError("no")


@dataclass(frozen=True)
class Frozen(Exception):
    code: int = 3


def raise_a_frozen_dataclass() -> None:
    raise Frozen


@pytest.mark.parametrize(
    "fail",
    [raise_a_kept_error, raise_a_chain, raise_a_group, raise_a_permanent_error, raise_a_frozen_dataclass],
    ids=lambda fail: fail.__name__,
)
def test_memory_of_a_failed_job_is_freed_without_garbage_collection(lab: Lab, fail: Callable[[], None]) -> None:
    used: list[ref[Large]] = []

    def act(*_: Any, run: Any) -> None:
        large = Large()
        used.append(ref(large))
        fail()

    lab.works["mail"] = act
    for number in range(3):
        lab.run("mail", number)
    gc.disable()
    try:
        assert lab.run_through().failed == 3
        assert [one() for one in used] == [None] * 3
    finally:
        gc.enable()


# What is remembered


def test_history_keeps_the_last_fifty_entries(lab: Lab) -> None:
    id = lab.run("mail")
    lab.works["mail"] = fails_with(ValueError("boom"))
    for _ in range(MAX_HISTORY + 10):
        lab.run_through()
        lab.jobs.retry(id)
    history = lab.jobs.get(id)["history"]
    assert len(history) == MAX_HISTORY
    assert [entry["attempt"] for entry in history if "attempt" in entry] == list(range(36, 61))
    lab.executing(id)
    lost_lease(id)
    lab.dispatch()
    assert len(lab.jobs.get(id)["history"]) == MAX_HISTORY


def test_job_that_has_repeated_millions_of_times_counts_its_attempts(lab: Lab) -> None:
    id, repetitions, known = lab.run("mail", every=seconds(1)), 10_000_000, list[int]()
    job.jobs().update_one({"_id": ObjectId(id)}, {"$set": {"attempts": repetitions, "settled": repetitions}})

    def act(*_: Any, run: Any) -> None:
        known.append(run.attempt)
        raise ValueError

    lab.works["mail"] = act
    for _ in range(3):
        lab.run_through()
        lab.hand.advance(minutes(10))
    assert known == [1, 2, 3]
    attempts = [entry["attempt"] for entry in lab.jobs.get(id)["history"] if "attempt" in entry]
    assert attempts == [repetitions + number for number in known]


def test_progress_is_shown_while_the_job_runs_and_at_most_twice_a_second(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.job_queues.job_run.PROGRESS_WRITE_INTERVAL", 60.0)  # however slow one write is
    seen = []

    def act(id: Any = None, *, run: Any) -> None:
        for percent in (float("nan"), *range(50)):
            run.progress(percent, f"step {percent}")
        seen.append(only(lab)["progress"])
        run.progress(250, "\ud800 done")

    lab.run("mail")
    lab.works["mail"] = act
    assert lab.run_through().succeeded == 1
    assert seen == [{"percent": 0.0, "note": "step nan"}]
    assert only(lab)["progress"] == {"percent": 100.0, "note": "? done"}


def test_progress_of_an_attempt_is_not_that_of_the_next_one(lab: Lab) -> None:
    seen = []

    def act(*_: Any, run: Any) -> None:
        seen.append("progress" in only(lab))
        run.progress(50)
        raise ValueError

    lab.run("mail")
    lab.works["mail"] = act
    for _ in range(2):
        lab.run_through()
        assert only(lab)["progress"]["percent"] == 50
        lab.hand.advance(minutes(10))
    assert seen == [False, False]


def test_progress_is_not_written_after_another_worker_took_the_job(lab: Lab) -> None:
    id = lab.run("mail")
    seen: list[tuple[str, bool]] = []

    def lose(*_: Any, run: Any) -> None:
        if run.attempt == 1:
            lost_lease(id)
            lab.dispatch()
            with pytest.raises(JobCancelled) as raised:
                run.progress(50)
            seen.append((str(raised.value), "progress" in lab.jobs.get(id)))

    lab.works["mail"] = lose
    report = lab.run_through()
    assert (report.lost, report.succeeded) == (1, 1)
    assert seen == [("The job lost its lease, so that another worker may execute it", False)]


# One at a time, and late results


def test_second_run_of_a_name_executes_nothing_while_another_executes(lab: Lab) -> None:
    first, second = lab.run("mail", 1), lab.run("mail", 2)
    lab.executing(first)
    report = lab.run_through()
    assert (report.succeeded, report.failed, report.lost) == (0, 0, 0)
    assert report.stopped == "another run executes a job of this name"
    assert lab.ran == []
    assert (lab.state(first), lab.state(second)) == ("executing", "pending")


@pytest.mark.parametrize("is_lost", [True, False])
def test_a_job_whose_start_was_delayed_runs_only_if_its_lease_is_still_held(
    lab: Lab, is_lost: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = lab.run("mail")
    start = job_attempt.start

    def delayed(*arguments: Any, **options: Any) -> bool:
        is_started = start(*arguments, **options)
        time.sleep(0.4)  # the database answers late
        if is_lost:
            lost_lease(id)
            lab.dispatch()
        return is_started

    monkeypatch.setattr(job_attempt, "start", delayed)
    report = lab.run_through(lease=seconds(1))
    assert (len(lab.ran), report.succeeded, report.lost) == ((0, 0, 0) if is_lost else (1, 1, 0))


def test_late_result_is_refused_after_the_lease_was_lost(lab: Lab) -> None:
    id = lab.run("mail")

    def be_late(*_: Any, run: Any) -> None:
        if run.attempt == 1:
            lost_lease(id)
            assert lab.dispatch()[1] == {"reaped": 1}
        else:
            assert successes(id) == 0

    lab.works["mail"] = be_late
    report = lab.run_through()
    assert (report.succeeded, report.lost) == (1, 1)
    states = [entry["state"] for entry in lab.jobs.get(id)["history"]]
    assert states == ["pending", "failure", "success"]


def test_late_result_is_refused_while_another_worker_executes_the_job(lab: Lab) -> None:
    id, other = lab.run("mail", 1), lab.run("mail", 2)

    def be_overtaken(number: int, run: Any) -> None:
        if number == 1 and run.attempt == 1:
            lost_lease(id)
            lab.dispatch()
            lab.executing(id, token="overtaker")

    lab.works["mail"] = be_overtaken
    report = lab.run_through()
    assert (report.succeeded, report.lost) == (0, 1)
    found = lab.jobs.get(id)
    assert (found["state"], found["claim"]["token"], found["attempts"]) == ("executing", "overtaker", 2)
    assert lab.state(other) == "pending"


def test_late_result_is_refused_though_the_overtaker_is_the_same_task_delivered_twice(lab: Lab) -> None:
    id = lab.run("mail")
    late = lab.executing(id, token="twice")
    lost_lease(id)
    lab.dispatch()
    current = lab.executing(id, token="twice")
    done = JobOutcome(state=JobState.SUCCESS)
    assert not job_attempt.finish(late, done, token="twice", now=lab.clock())
    assert lab.state(id) == "executing"
    assert job_attempt.finish(current, done, token="twice", now=lab.clock())
    assert job_attempt.finish(current, done, token="twice", now=lab.clock())  # harmless when repeated
    assert successes(id) == 1


def test_job_is_not_started_from_an_outdated_read(lab: Lab) -> None:
    id = lab.run("mail")
    seen = lab.jobs.get(id)
    lab.works["mail"] = fails_with(ValueError())
    lab.run_through()
    lab.hand.advance(minutes(1))
    assert not job_attempt.start(seen, token="late", now=lab.clock(), until=lab.clock() + LEASE)
    assert lab.state(id) == "failure"


# Heartbeat


def test_long_job_keeps_its_lease(lab: Lab) -> None:
    """Only the hand's clock decides when the lease ends, so a pause of this process cannot end it."""
    lease, id = seconds(0.3), lab.run("mail")

    def take_long(*arguments: Any, run: Any) -> None:
        for _ in range(5):
            lab.hand.advance(lease * 0.9)
            eventually(lambda: lab.jobs.get(id)["claim"]["claimed_until"] == lab.hand() + lease)
            assert "reaped" not in lab.dispatch()[1]

    lab.works["mail"] = take_long
    assert lab.run_through(lease=lease).succeeded == 1
    assert len(lab.ran) == 1


def test_heartbeat_continues_after_an_outage(lab: Lab) -> None:
    """The clock is asked of the database too, and fails with it."""
    fails = threading.Event()
    failed = 0

    def clock() -> datetime:
        nonlocal failed
        if fails.is_set():
            failed += 1
            raise AutoReconnect("connection closed")
        return database.server_now()

    real = Lab(clock)
    id = real.run("mail")

    def take_long(*_: Any, run: Any) -> None:
        fails.set()
        eventually(lambda: failed >= 2)  # heartbeats
        fails.clear()
        before = real.jobs.get(id)["claim"]["claimed_until"]
        eventually(lambda: real.jobs.get(id)["claim"]["claimed_until"] > before)

    real.works["mail"] = take_long
    assert real.run_through(lease=seconds(0.6)).succeeded == 1


# Outage


@pytest.fixture
def outage(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """While it is set, every query of the jobs and of the clock fails."""
    away = threading.Event()

    def asked(name: str) -> Any:
        if away.is_set():
            raise AutoReconnect("connection closed")
        return collection(name)

    monkeypatch.setattr(job, "collection", asked)
    monkeypatch.setattr(runner, "WRITE_RETRY_DELAY", 0.05)
    yield away
    away.clear()


@pytest.mark.parametrize("took", [0, READ_TTL * 1.1], ids=["short", "long"])
@pytest.mark.parametrize("how", ["succeeds", "fails"])
@pytest.mark.parametrize("behind", [0, 1])
def test_result_is_written_through_an_outage(
    lab: Lab, outage: threading.Event, took: float, how: str, behind: int
) -> None:
    def clock() -> datetime:
        if outage.is_set():
            raise AutoReconnect("connection closed")
        return lab.hand()

    during = Lab(clock)
    first = during.run("mail", "first", priority=1)
    for number in range(behind):
        during.run("mail", number)

    def act(what: Any, run: Any) -> None:
        if what == "first":
            outage.set()
            time.sleep(took)
            threading.Timer(0.2, outage.clear).start()
            if how == "fails":
                raise ValueError("boom")

    during.works["mail"] = act
    report = during.run_through()
    eventually(lambda: not outage.is_set())
    assert (report.succeeded, report.failed, report.lost) == (
        (1 + behind, 0, 0) if how == "succeeds" else (behind, 1, 0)
    )
    assert during.state(first) == ("success" if how == "succeeds" else "failure")
    assert len(during.ran) == 1 + behind


def test_success_of_a_repeating_job_is_kept_through_an_outage(lab: Lab, outage: threading.Event) -> None:
    def clock() -> datetime:
        if outage.is_set():
            raise AutoReconnect("connection closed")
        return database.server_now()

    during = Lab(clock)
    id = during.run("mail", every=hours(1))
    first_due = during.jobs.get(id)["due"]

    def act(run: Any) -> None:
        outage.set()
        threading.Timer(0.2, outage.clear).start()

    during.works["mail"] = act
    report = during.run_through()
    eventually(lambda: not outage.is_set())
    assert (report.succeeded, report.failed) == (1, 0)
    repeated = during.jobs.get(id)
    assert (repeated["state"], repeated["due"]) == ("pending", first_due + hours(1))
    assert len(during.ran) == successes(id) == 1


def test_outage_longer_than_the_lease_is_an_error_and_the_job_is_retried(lab: Lab, outage: threading.Event) -> None:
    id = lab.run("mail")
    lab.works["mail"] = lambda *_, run: outage.set()
    with pytest.raises(AutoReconnect):
        lab.run_through(lease=seconds(0.2))
    outage.clear()
    assert lab.state(id) == "executing"
    lab.hand.advance(seconds(1))
    del lab.works["mail"]
    lab.serve()
    assert (lab.state(id), successes(id)) == ("success", 1)


@pytest.mark.parametrize("lost", [1, 2])
def test_write_whose_reply_was_lost_counts_as_written(lab: Lab, monkeypatch: pytest.MonkeyPatch, lost: int) -> None:
    ids = [lab.run("mail", number) for number in range(3)]
    finish_and_start, writes = job_attempt.finish_and_start, count(1)

    def losing_the_reply(*args: Any, **kwargs: Any) -> Any:
        written = finish_and_start(*args, **kwargs)
        if next(writes) != lost:
            return written
        raise AutoReconnect("connection closed")

    monkeypatch.setattr(job_attempt, "finish_and_start", losing_the_reply)
    report = lab.run_through()
    assert (report.succeeded, report.lost) == (3, 0)
    assert [successes(id) for id in ids] == [1, 1, 1]
    assert len(lab.ran) == 3


def test_result_is_written_although_the_server_refused_it_for_a_while(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it does while credentials are changed."""
    ids = [lab.run("mail", number) for number in range(3)]
    refused = count(1)

    def refusing(write: Callable[..., Any]) -> Callable[..., Any]:
        def first(*args: Any, **kwargs: Any) -> Any:
            if args[0] and next(refused) <= 3:
                raise OperationFailure("not authorized", 13)
            return write(*args, **kwargs)

        return first

    monkeypatch.setattr(runner, "WRITE_RETRY_DELAY", 0.05)
    for name in ("finish_and_start", "finish"):
        monkeypatch.setattr(job_attempt, name, refusing(getattr(job_attempt, name)))
    assert lab.run_through().succeeded == 3
    assert [successes(id) for id in ids] == [1, 1, 1]
    assert len(lab.ran) == 3


# The run of a queue as its task sees it


@pytest.fixture
def installed(clean: Servers, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """The installation's own jobs, with the laboratory's functions."""
    real = Lab(database.server_now)
    monkeypatch.setattr(tasks, "registry", real.registry)
    return real


def test_run_with_more_due_jobs_continues_later_when_its_time_is_used_up(
    installed: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "RUN_BUDGET", seconds(0.2))
    for number in range(3):
        installed.run("mail", number)
    installed.works["mail"] = lambda number, run: time.sleep(0.3)
    with pytest.raises(ContinueLater):
        run_jobs("mail", None, token="t")
    assert 1 <= len(installed.ran) < 3


@pytest.mark.parametrize("delay", [seconds(0), minutes(30)], ids=["due", "due before the next dispatch"])
def test_run_does_not_continue_while_the_system_is_paused(
    installed: Lab, delay: timedelta, change_settings: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    change_settings(JOBS_TIMER_MS="3600000")
    monkeypatch.setattr(tasks, "RUN_BUDGET", seconds(0))
    installed.run("mail", delay=delay)
    pauses.pause("job-queues", by="a test")
    assert run_jobs("mail", None, token="t")["stopped"] == "the system is paused"
    pauses.resume("job-queues")
    with pytest.raises((ContinueLater, NotYetDue)):
        run_jobs("mail", None, token="t")


def test_dispatched_run_starts_no_job_while_the_system_is_paused(installed: Lab) -> None:
    installed.run("mail")
    ((name, epoch),) = [item.args for item in installed.dispatch(epoch=1)[0]]
    pauses.pause("job-queues", by="a test")
    assert run_jobs(name, epoch, token="t")["stopped"] == "the system is paused"
    assert installed.ran == []
    pauses.resume("job-queues")
    assert run_jobs(name, epoch, token="t")["succeeded"] == 1


def test_run_that_an_operator_sends_starts_jobs_while_the_system_is_paused(installed: Lab) -> None:
    installed.run("mail")
    pauses.pause("job-queues", by="a test")
    assert run_jobs("mail", None, token="t")["succeeded"] == 1


def test_run_continues_if_redis_cannot_be_read(installed: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    def is_paused(system: str) -> NoReturn:
        raise Unavailable("Redis does not answer")

    monkeypatch.setattr(tasks, "RUN_BUDGET", seconds(0))
    monkeypatch.setattr(pauses, "is_paused", is_paused)
    installed.run("mail")
    with pytest.raises(ContinueLater):
        run_jobs("mail", None, token="t")


@pytest.mark.parametrize(("how", "raised"), [("outage", AutoReconnect), ("shutdown", SystemExit)])
def test_jobs_that_were_done_before_a_run_ended_with_an_error_are_counted(
    installed: Lab,
    clean: Servers,
    outage: threading.Event,
    change_settings: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    how: str,
    raised: type[BaseException],
) -> None:
    def act(number: int, run: Any) -> None:
        if number == 2 and how == "outage":
            outage.set()
        elif number == 2:
            monkeypatch.setattr(billiard.common, "_should_have_exited", [True])
            raise SystemExit(-241)

    change_settings(JOBS_LEASE_SECONDS="1")  # an outage that takes longer ends the run
    installed.works["mail"] = act
    ids = [installed.run("mail", number) for number in range(3)]
    with pytest.raises(raised):
        run_jobs("mail", None, token="t")
    outage.clear()
    with connect(clean.valkey.url) as client:
        done = job_queues.counts_by_name(client)["mail"]["done"]
    assert done == sum(map(successes, ids)) >= 1


def test_second_copy_of_a_task_in_the_same_process_runs_nothing(installed: Lab) -> None:
    copies = []

    def deliver_again(number: int, run: Any) -> None:
        with ThreadPoolExecutor(1) as thread:
            copies.append(thread.submit(run_jobs, "mail", None, token="t").result())

    installed.works["mail"] = deliver_again
    for number in range(3):
        installed.run("mail", number)
    assert run_jobs("mail", None, token="t")["succeeded"] == 3
    assert [copy["stopped"] for copy in copies] == ["this process already runs this task"] * 3
    assert len(installed.ran) == 3
    assert run_jobs("mail", None, token="t")["stopped"] is None


def test_production_only_refuses_to_run_elsewhere(installed: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    installed.run("mail")
    monkeypatch.setenv("JOBS_PRODUCTION_ONLY", "true")
    settings.cache_clear()
    try:
        with pytest.raises(ConfigurationError, match="APP_ENV='test'"):
            run_jobs("mail", None, token="t")
        monkeypatch.delenv("APP_ENV")
        settings.cache_clear()
        with pytest.raises(ConfigurationError, match="APP_ENV is not set"):
            run_jobs("mail", None, token="t")
        assert installed.ran == []
        monkeypatch.setenv("APP_ENV", "production")
        settings.cache_clear()
        assert run_jobs("mail", None, token="t")["succeeded"] == 1
    finally:
        monkeypatch.undo()
        settings.cache_clear()


def test_history_names_the_worker_of_each_attempt(lab: Lab) -> None:
    def fail_once(*_: object, run: JobRun) -> None:
        if run.attempt == 1:
            raise ValueError

    lab.works["mail"] = fail_once
    id = lab.run("mail")
    lab.serve()
    lab.jobs.retry(id)
    lab.executing(id)
    lost_lease(id)
    lab.serve()

    worker = f"{gethostname()}:{os.getpid()}"
    history = [(entry["state"], entry.get("worker")) for entry in lab.jobs.get(id)["history"]]
    assert history == [
        ("pending", None),
        ("failure", worker),
        ("pending", None),
        ("failure", worker),
        ("success", worker),
    ]
