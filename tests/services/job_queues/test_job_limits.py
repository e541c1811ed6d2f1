"""Time limits, cancellation of executing jobs, and fencing tokens."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

import queue_manager
from models import job, job_attempt, job_counts
from models.job_attempt import TimeLimit
from queue_manager.core.clock import minutes, seconds
from queue_manager.core.process import process_name
from queue_manager.core.settings import settings
from queue_manager.items import DueItem
from services.job_queues import InvalidJob, JobCancelled, JobRun, UnknownJob, job_run
from services.job_queues.dispatch import LOST_ERROR, lease_name
from tests.eventually import eventually
from tests.job_lab import LEASE, Lab, count_jobs, lost_lease
from tests.real_servers import Servers

LIMIT = TimeLimit(timeout=seconds(40), grace=seconds(10))
LIMIT_ERROR = "The job exceeded its time limit of 0.2 s"


@pytest.fixture
def lab(clean: Servers) -> Lab:
    lab = Lab()
    lab.register("limited", timeout=seconds(0.2))
    return lab


def leave(*_: Any, run: JobRun) -> None:
    eventually(lambda: run.is_cancelled)


def report_progress(*_: Any, run: JobRun) -> None:
    while True:
        run.progress(1)
        time.sleep(0.02)


def fail_after_noticing(*_: Any, run: JobRun) -> None:
    leave(run=run)
    raise ValueError("interrupted")


# Time limit


@pytest.mark.parametrize("stops", [leave, report_progress, fail_after_noticing])
def test_function_that_stops_after_its_time_limit_fails_with_that_reason(lab: Lab, stops: Callable[..., None]) -> None:
    lab.works["limited"] = stops
    id = lab.run("limited")
    assert lab.run_through("limited").failed == 1
    found = lab.jobs.get(id)
    assert (found["state"], found["last_error"]) == ("failure", LIMIT_ERROR)
    assert seconds(2) < found["waiting"] - lab.clock() <= seconds(5)  # like the first retry of any failure


def test_function_that_finishes_without_noticing_its_time_limit_succeeds(lab: Lab) -> None:
    lab.works["limited"] = lambda run: time.sleep(0.3)
    lab.run("limited")
    assert lab.run_through("limited").succeeded == 1


def test_function_that_fails_without_noticing_its_time_limit_keeps_its_error(lab: Lab) -> None:
    def fail(run: JobRun) -> None:
        time.sleep(0.3)
        raise ValueError("boom")

    lab.works["limited"] = fail
    id = lab.run("limited")
    lab.run_through("limited")
    assert lab.jobs.get(id)["last_error"] == "ValueError: boom"


def test_default_time_limit_applies_to_functions_without_their_own(lab: Lab) -> None:
    lab.works["mail"] = leave
    id = lab.run("mail")
    lab.run_through("mail", timeout=seconds(0.1))
    assert lab.jobs.get(id)["last_error"] == "The job exceeded its time limit of 0.1 s"


def test_claim_stores_when_the_process_will_be_killed(lab: Lab) -> None:
    claims = []
    lab.works["limited"] = lambda run: claims.append(lab.jobs.get(run.id)["claim"])
    lab.run("limited")
    lab.run_through("limited", grace=seconds(7))
    [claim] = claims
    assert (claim["timeout_seconds"], claim["ends_at"]) == (0.2, lab.clock() + seconds(7.2))


@pytest.mark.parametrize("write", ["start", "finish_and_start"])
def test_time_limit_begins_when_a_slow_start_is_confirmed(
    lab: Lab, write: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = getattr(job_attempt, write)

    def begin_slowly(*arguments: Any, **options: Any) -> Any:
        begun = begin(*arguments, **options)
        lab.hand.advance(seconds(20))
        time.sleep(lease.total_seconds() / 3)
        return begun

    lease, left = seconds(0.3), list[timedelta]()
    monkeypatch.setattr(job_attempt, write, begin_slowly)
    lab.works["limited"] = lambda _, run: left.append(lab.jobs.get(run.id)["claim"]["ends_at"] - lab.clock())
    for number in range(2):
        lab.run("limited", number)
    lab.run_through("limited", grace=seconds(7), lease=lease)
    assert left == [seconds(7.2)] * 2


def test_jobs_with_a_limit_are_started_one_by_one(lab: Lab) -> None:
    reserved = []
    lab.works["limited"] = lambda number, run: reserved.append(job.jobs().count_documents({"reserved": {"$ne": None}}))
    for number in range(40):
        lab.run("limited", number)
    assert lab.run_through("limited").succeeded == 40
    assert set(reserved) == {0}


@pytest.mark.parametrize("timeout", [timedelta(0), seconds(-1), 30, timedelta(days=3650, seconds=1), timedelta.max])
def test_time_limit_must_be_a_positive_timedelta(lab: Lab, timeout: Any) -> None:
    with pytest.raises(InvalidJob, match="timeout: must be a timedelta above zero and at most 3650 days, not"):
        lab.register("other", timeout=timeout)


# Cancellation of an executing job


@pytest.mark.parametrize("stops", [leave, report_progress, fail_after_noticing])
def test_executing_job_learns_of_its_cancellation_and_ends_as_canceled(lab: Lab, stops: Callable[..., None]) -> None:
    def be_canceled(run: JobRun) -> None:
        lab.jobs.cancel(run.id)
        stops(run=run)

    lab.works["mail"] = be_canceled
    id = lab.run("mail", singular=True)
    assert lab.run_through().canceled == 1
    found = lab.jobs.get(id)
    assert (found["state"], "claim" in found, "waiting" in found) == ("canceled", False, False)
    assert [entry["state"] for entry in found["history"]] == ["pending", "canceled"]
    assert job_counts.by_name() == count_jobs()
    assert lab.run("mail", singular=True)  # the canceled one is not live any more


def test_executing_job_that_is_canceled_and_fails_is_not_retried(lab: Lab) -> None:
    def fail(run: JobRun) -> None:
        lab.jobs.cancel(run.id)
        raise ValueError("boom")

    lab.works["mail"] = fail
    id = lab.run("mail")
    assert lab.run_through().canceled == 1
    assert lab.state(id) == "canceled"


def test_executing_job_that_finishes_before_noticing_its_cancellation_succeeds(lab: Lab) -> None:
    lab.works["mail"] = lambda run: lab.jobs.cancel(run.id)
    id = lab.run("mail")
    lab.run_through()
    assert lab.state(id) == "success"


def test_repeating_job_that_is_canceled_while_it_executes_is_not_repeated(lab: Lab) -> None:
    lab.works["mail"] = lambda run: lab.jobs.cancel(run.id)
    id = lab.run("mail", every=minutes(1))
    assert lab.run_through().canceled == 1
    assert lab.state(id) == "canceled"


def test_claim_is_read_at_intervals(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_run, "CLAIM_READ_INTERVAL", 0.2)
    read_at: list[float] = []
    read_claim = job_attempt.read_claim

    def read(*arguments: Any, **options: Any) -> Any:
        read_at.append(time.monotonic())
        return read_claim(*arguments, **options)

    monkeypatch.setattr(job_attempt, "read_claim", read)

    def ask_often(run: JobRun) -> None:
        while len(read_at) < 3:
            assert not run.is_cancelled

    lab.works["mail"] = ask_often
    lab.run("mail")
    assert lab.run_through().succeeded == 1
    assert all(later - earlier > 0.5 * job_run.CLAIM_READ_INTERVAL for earlier, later in pairwise(read_at))


def test_function_learns_that_its_lease_was_lost(lab: Lab) -> None:
    learned: list[int] = []

    def lose(run: JobRun) -> None:
        if run.attempt == 1:
            lost_lease(run.id)
            lab.dispatch()
            eventually(lambda: run.is_cancelled)
            learned.append(run.attempt)

    lab.works["mail"] = lose
    lab.run("mail")
    report = lab.run_through()
    assert (report.lost, report.succeeded) == (1, 1)
    assert learned == [1]


# What the main process of the worker does


def started(lab: Lab, *, limit: TimeLimit | None = None) -> str:
    """Return the id of a job that this process executes under the token `t`."""
    id, now = lab.run("mail"), lab.clock()
    assert job_attempt.start(lab.jobs.get(id), token="t", now=now, until=now + LEASE, limit=limit)
    return id


def lose_process(lab: Lab, *, claimed_by: str | None = None) -> None:
    """Let the process of the token `t` have ended; by default, it is the one that claimed the job."""
    if claimed_by is None:
        ended = subprocess.Popen(["true"])
        ended.wait()
        claimed_by = process_name(ended.pid)
    job.jobs().update_many({"claim.token": "t"}, {"$set": {"claim.worker": claimed_by}})
    lab.dispatching().lost(DueItem(task_id="t", args=("mail", None), lease=lease_name("mail", None)), "it died")


@pytest.mark.parametrize("host", [None, "elsewhere"])
def test_a_job_of_a_task_that_was_delivered_twice_is_not_lost_with_the_other_process(
    lab: Lab, host: str | None
) -> None:
    id = started(lab)
    lose_process(lab, claimed_by=f"{host}:{os.getpid()}" if host else process_name())
    assert lab.state(id) == "executing"


def test_only_claims_of_processes_of_this_worker_are_renewed(lab: Lab) -> None:
    id, work, ours = started(lab), lab.dispatching(), os.getpid()
    begun = lab.clock()
    lab.hand.advance(seconds(10))
    for others in ({"t": ours + 1}, {"delivered-twice": ours}, {}):
        work.renew_claims(others)
        assert lab.jobs.get(id)["claim"]["claimed_until"] == begun + LEASE
    work.renew_claims({"t": ours, "another": ours})
    assert lab.jobs.get(id)["claim"]["claimed_until"] == lab.clock() + LEASE


def test_process_of_a_job_over_its_time_limit_must_be_killed_after_the_grace_time(lab: Lab) -> None:
    id, work = started(lab, limit=LIMIT), lab.dispatching()
    running = {"t": os.getpid()}
    lab.hand.advance(LIMIT.timeout + LIMIT.grace - seconds(1))
    assert work.over_limit(running) == {}
    lab.hand.advance(seconds(1))
    assert work.over_limit(running) == {"t": f"The job {id} of mail exceeded its time limit of 40 s"}
    assert work.over_limit({"t": os.getpid() + 1}) == {}

    lose_process(lab)
    found = lab.jobs.get(id)
    assert (found["state"], found["last_error"]) == ("failure", "The job exceeded its time limit of 40 s")
    assert found["waiting"] > lab.clock()
    assert "losses" not in found


def test_process_of_a_canceled_job_must_be_killed_after_the_grace_time(lab: Lab) -> None:
    id, work = started(lab, limit=LIMIT), lab.dispatching()
    lab.jobs.cancel(id)
    lab.hand.advance(seconds(settings().jobs_grace_seconds))
    assert work.over_limit({"t": os.getpid()}) == {"t": f"The job {id} of mail was canceled"}
    lose_process(lab)
    assert lab.state(id) == "canceled"


def test_slow_start_does_not_postpone_the_end_of_a_job_that_was_canceled_since(lab: Lab) -> None:
    id = started(lab, limit=LIMIT)
    ends_at = lab.jobs.cancel(id)["claim"]["ends_at"]
    lab.hand.advance(seconds(5))
    now, job_id = lab.clock(), lab.jobs.get(id)["_id"]
    assert job_attempt.renew_start(job_id, token="t", now=now, until=now + LEASE, limit=LIMIT)
    claim = lab.jobs.get(id)["claim"]
    assert (claim["ends_at"], claim["claimed_until"]) == (ends_at, now + LEASE)


def test_job_of_a_process_that_died_before_the_time_limit_is_due_immediately(lab: Lab) -> None:
    id = started(lab, limit=LIMIT)
    lose_process(lab)
    found = lab.jobs.get(id)
    assert (found["state"], found["last_error"], found["losses"]) == ("failure", LOST_ERROR, 1)
    assert found["waiting"] == lab.clock()


def test_canceled_job_whose_worker_was_lost_is_canceled_by_the_next_dispatch(lab: Lab) -> None:
    id = started(lab)
    lab.jobs.cancel(id)
    lab.hand.advance(LEASE)
    assert lab.dispatch()[1] == {"reaped": 1}
    assert lab.state(id) == "canceled"


# Fencing tokens


def test_fencing_token_increases_with_each_attempt_of_a_name(lab: Lab) -> None:
    tokens: list[int] = []
    again: list[int] = []

    def write(number: int, run: JobRun) -> None:
        tokens.append(run.fencing_token)
        again.append(run.fencing_token)
        if run.attempt < 3:
            raise ValueError

    lab.works["mail"] = write
    for number in range(10):
        lab.run("mail", number)
    for _ in range(3):
        lab.run_through()
        lab.hand.advance(minutes(1))
    assert len(tokens) == 30
    assert again == tokens
    assert tokens == sorted(set(tokens))
    assert all(0 < token < 2**63 for token in tokens)


def test_late_worker_gets_no_fencing_token(lab: Lab) -> None:
    refused: list[str] = []
    tokens: list[int] = []

    def be_late(run: JobRun) -> None:
        if run.attempt == 1:
            lost_lease(run.id)
            lab.dispatch()
            with pytest.raises(JobCancelled, match="lost its lease"):
                tokens.append(run.fencing_token)
            refused.append(run.id)
        else:
            tokens.append(run.fencing_token)

    lab.works["mail"] = be_late
    id = lab.run("mail")
    report = lab.run_through()
    assert (report.lost, report.succeeded) == (1, 1)
    assert (refused, len(tokens)) == ([id], 1)


def test_errors_that_programs_catch_are_public() -> None:
    assert queue_manager.JobCancelled is JobCancelled
    assert (queue_manager.InvalidJob, queue_manager.UnknownJob) == (InvalidJob, UnknownJob)
