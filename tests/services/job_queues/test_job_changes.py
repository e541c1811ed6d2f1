"""Operations on jobs: cancel, reschedule, retry, remove, clear, pause, list."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from typing import Any, NoReturn

import pytest
from bson import ObjectId

from models import job, job_attempt, job_operations, job_queue
from models.database import Document
from models.job import JobState
from models.job_attempt import JobOutcome
from queue_manager.core.clock import hours, minutes, seconds
from queue_manager.core.errors import Contended, PermanentError
from queue_manager.core.settings import settings
from services.job_queues import DuplicateJob, InvalidJob, UnknownJob, WrongState, runner
from services.job_queues.runner import BATCH_TIME, READ_TTL
from tests.eventually import eventually
from tests.job_lab import LEASE, Lab
from tests.rooms import T0

NOBODY = "0" * 24


def failed(lab: Lab, *arguments: Any, error: type[Exception] = ValueError, **options: Any) -> str:
    """Store a job that is due and let it fail."""

    def fail(*_: Any, run: Any) -> None:
        raise error("boom")

    id = lab.run("mail", *arguments, **options)
    lab.works["mail"] = fail
    lab.run_through()
    del lab.works["mail"]
    assert lab.state(id) == "failure"
    return id


# Cancel


def test_pending_job_that_is_canceled_never_runs(lab: Lab) -> None:
    id = lab.run("mail")
    assert lab.jobs.cancel(id)["state"] == "canceled"
    assert lab.names_dispatched() in ([], ["mail"])  # a look at a queue that turns out to be empty is harmless
    lab.run_through()
    assert lab.ran == []
    assert [entry["state"] for entry in lab.jobs.get(id)["history"]] == ["pending", "canceled"]


def test_failed_job_that_is_canceled_is_not_tried_again(lab: Lab) -> None:
    id = failed(lab)
    lab.jobs.cancel(id)
    lab.hand.advance(hours(1))
    job.make_failed_due(lab.clock())
    lab.run_through()
    assert len(lab.ran) == 1
    assert lab.state(id) == "canceled"


def test_executing_job_that_is_canceled_is_asked_to_stop_once(lab: Lab) -> None:
    id = lab.run("mail")
    lab.executing(id)
    grace = seconds(settings().jobs_grace_seconds)
    for _ in range(2):
        asked = lab.jobs.cancel(id)
        assert asked["state"] == "executing"
        assert (asked["claim"]["canceled_at"], asked["claim"]["ends_at"]) == (T0, T0 + grace)
        lab.hand.advance(seconds(1))


def test_finished_job_cannot_be_canceled(lab: Lab) -> None:
    id = lab.run("mail")
    lab.run_through()
    with pytest.raises(WrongState, match="is success"):
        lab.jobs.cancel(id)


ACTS: list[Callable[[Lab, Any], Any]] = [
    lambda lab, id: lab.jobs.cancel(id),
    lambda lab, id: lab.jobs.get(id),
    lambda lab, id: lab.jobs.retry(id),
    lambda lab, id: lab.jobs.reschedule(id, delay=seconds(1)),
    lambda lab, id: lab.jobs.remove(id),
]


@pytest.mark.parametrize("act", ACTS, ids=["cancel", "get", "retry", "reschedule", "remove"])
def test_unknown_or_malformed_job_id_is_refused(lab: Lab, act: Callable[[Lab, Any], Any]) -> None:
    with pytest.raises(UnknownJob, match=NOBODY):
        act(lab, NOBODY)
    for malformed in ("", "xyz", None, 5):
        with pytest.raises(InvalidJob, match="24 hexadecimal digits"):
            act(lab, malformed)


@pytest.mark.parametrize("state", ["pending", "failure", "success", "canceled"])
def test_removed_job_is_gone_and_never_runs(lab: Lab, state: str) -> None:
    id, other = lab.run("mail", 1, unique=True), lab.run("mail", 2)
    job.jobs().update_one({"_id": ObjectId(id)}, {"$set": {"state": state}})
    removed = lab.jobs.remove(id)
    assert (str(removed["_id"]), removed["state"]) == (id, state)
    with pytest.raises(UnknownJob):
        lab.jobs.get(id)
    lab.serve()
    assert lab.ran == [(2,)]
    assert lab.state(other) == "success"
    lab.run("mail", 1, unique=True)  # nothing stands against it any more


def test_executing_job_cannot_be_removed(lab: Lab) -> None:
    id = lab.run("mail")
    lab.executing(id)
    with pytest.raises(WrongState, match="is executing and cannot be removed"):
        lab.jobs.remove(id)
    assert lab.state(id) == "executing"


def test_job_that_starts_while_it_is_removed_is_kept(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    id, remove = lab.run("mail"), job_operations.remove

    def remove_started(found: Document, **options: Any) -> Document | None:
        lab.start(found)
        return remove(found, **options)

    monkeypatch.setattr(job_operations, "remove", remove_started)
    with pytest.raises(WrongState, match="is executing and cannot be removed"):
        lab.jobs.remove(id)
    assert lab.state(id) == "executing"


# Reschedule and retry


@pytest.mark.parametrize("bring", ["pending", "failure", "canceled"])
def test_rescheduled_job_runs_at_its_new_time_and_not_before(lab: Lab, bring: str) -> None:
    id = failed(lab) if bring == "failure" else lab.run("mail")
    if bring == "canceled":
        lab.jobs.cancel(id)
    ran = len(lab.ran)
    moved = lab.jobs.reschedule(id, delay=minutes(1), priority=7)
    assert (moved["state"], moved["due"], moved["priority"]) == ("pending", T0 + minutes(1), 7)
    lab.hand.advance(seconds(59))
    lab.run_through()
    assert len(lab.ran) == ran
    lab.hand.advance(seconds(1))
    assert lab.names_dispatched() == ["mail"]
    lab.run_through()
    assert len(lab.ran) == ran + 1
    assert lab.state(id) == "success"


def test_job_that_succeeded_is_not_rescheduled_but_may_be_retried(lab: Lab) -> None:
    id = lab.run("mail")
    lab.run_through()
    with pytest.raises(WrongState, match="is success and cannot be rescheduled"):
        lab.jobs.reschedule(id, delay=seconds(1))
    lab.jobs.retry(id)
    assert lab.names_dispatched() == ["mail"]
    lab.run_through()
    assert (lab.state(id), len(lab.ran)) == ("success", 2)


@pytest.mark.parametrize("state", ["failure", "canceled"])
def test_new_priority_alone_keeps_the_state_and_the_times(lab: Lab, state: str) -> None:
    id = failed(lab, error=PermanentError)
    if state == "canceled":
        lab.jobs.cancel(id)
    before = lab.jobs.get(id)
    lab.hand.advance(minutes(1))
    assert lab.jobs.reschedule(id, priority=9) == {**before, "priority": 9}
    assert (before["state"], lab.names_dispatched()) == (state, [])


@pytest.mark.parametrize("other", ["reschedule", "cancel", "retry"])
def test_a_change_is_reported_with_the_preceding_concurrent_change(
    lab: Lab, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = lab.run("mail", delay=hours(1))
    options = {"priority": 5} if other == "reschedule" else {}
    others, read = [partial(getattr(lab.jobs, other), id, **options)], job.get_any

    def read_before_another_change(id: str) -> Any:
        found = read(id)
        if others:
            others.pop()()
        return found

    monkeypatch.setattr(job, "get_any", read_before_another_change)
    changes: list[tuple[Document, Document]] = []
    lab.jobs.reschedule(id, priority=9, on_change=lambda *change: changes.append(change))
    ((before, after),) = changes
    expected = {
        "reschedule": ("pending", T0 + hours(1), 5),
        "cancel": ("canceled", T0 + hours(1), 0),
        "retry": ("pending", T0, 0),
    }
    assert (before["state"], before["due"], before["priority"]) == expected[other]
    assert after == lab.jobs.get(id)


def test_manual_changes_are_recorded_in_the_history(lab: Lab) -> None:
    id = failed(lab)
    lab.jobs.reschedule(id, delay=hours(1))
    lab.jobs.cancel(id)
    lab.jobs.retry(id)
    states = [entry["state"] for entry in lab.jobs.get(id)["history"]]
    assert states == ["pending", "failure", "pending", "canceled", "pending"]


@pytest.mark.parametrize("how", ["retry", "reschedule"])
@pytest.mark.parametrize("state", ["pending", "executing", "failure"])
def test_singular_job_cannot_be_retried_while_another_exists(lab: Lab, how: str, state: str) -> None:
    canceled = lab.run("mail", 42, singular=True)
    lab.jobs.cancel(canceled)
    other = failed(lab, 42, singular=True) if state == "failure" else lab.run("mail", 42, singular=True)
    if state == "executing":
        lab.executing(other)
    with pytest.raises(DuplicateJob, match=canceled):
        lab.jobs.retry(canceled) if how == "retry" else lab.jobs.reschedule(canceled, delay=seconds(1))
    assert (lab.state(canceled), lab.state(other)) == ("canceled", state)


def test_retried_singular_job_blocks_others_again(lab: Lab) -> None:
    id = lab.run("mail", 42, singular=True)
    lab.run_through()
    lab.jobs.retry(id)
    assert lab.jobs.run("mail", 42, singular=True) is None
    lab.jobs.reschedule(id, delay=seconds(1))  # it does not stand in its own way
    lab.jobs.cancel(id)
    assert lab.jobs.run("mail", 42, singular=True) is not None


# Clear


def test_clear_deletes_the_named_states_of_the_named_queue(lab: Lab) -> None:
    done, kept, canceled = lab.run("mail", 1), lab.run("report", 2), lab.run("mail", 3, delay=hours(1))
    lab.run_through("mail")
    lab.run_through("report")
    lab.jobs.cancel(canceled)
    assert lab.jobs.clear(["success", "cancelled"], "mail") == 2
    assert lab.states() == {"success": 1}
    assert lab.state(kept) == "success"
    with pytest.raises(UnknownJob):
        lab.jobs.get(done)
    assert lab.jobs.clear(["success", "pending", "failure", "canceled"]) == 1


def test_executing_job_cannot_be_cleared(lab: Lab) -> None:
    id = lab.run("mail")
    lab.executing(id)
    with pytest.raises(InvalidJob, match="executing job cannot be deleted"):
        lab.jobs.clear(["pending", "executing"])
    assert lab.jobs.clear(["pending", "success", "failure", "canceled"]) == 0


@pytest.mark.parametrize("state", ["done", "", None, 5, ["pending"], {"$ne": 1}])
def test_unknown_state_is_named_with_the_known_ones(lab: Lab, state: Any) -> None:
    with pytest.raises(InvalidJob, match="must be one of pending, executing, success, failure, canceled"):
        lab.jobs.clear([state])
    if state is not None:
        with pytest.raises(InvalidJob, match="must be one of pending, executing, success, failure, canceled"):
            lab.jobs.count(state=state)


def test_clear_takes_fewer_jobs_after_others_have_locked_some_and_more_again_later(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.jobs.run_many("mail", [[number] for number in range(300)])
    sizes, delete = list[int](), job_operations.clear

    def locked_at_first(*arguments: Any, limit: int, **options: Any) -> tuple[int, bool]:
        sizes.append(limit)
        if len(sizes) < 3:
            raise Contended(seconds(5))
        return delete(*arguments, limit=limit, **options)

    monkeypatch.setattr(job_operations, "clear", locked_at_first)
    assert [*lab.jobs.clear_in_batches(["pending"])] == [0, 0, 2, 4, 8, 16, 32, 64, 128, 46]
    assert sizes == [250, 25, 2, 4, 8, 16, 32, 64, 128, 250]
    lab.run("mail")
    monkeypatch.setattr(job_operations, "clear", partial(_raise, Contended(seconds(5))))
    with pytest.raises(Contended):
        lab.jobs.clear(["pending"])


def _raise(error: Exception, *_: Any, **__: Any) -> NoReturn:
    raise error


def test_clear_ends_although_other_jobs_keep_entering_the_state(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    delete = job_operations.clear

    def delete_and_store_one(*arguments: Any, **options: Any) -> Any:
        done = delete(*arguments, **options)
        lab.run("mail")
        return done

    monkeypatch.setattr(job_operations, "clear", delete_and_store_one)
    lab.jobs.run_many("mail", [[number] for number in range(300)])
    assert [*lab.jobs.clear_in_batches(["pending"])] == [250, 51]
    assert lab.jobs.clear(["pending"]) == 1


def test_jobs_to_clear_are_counted_up_to_a_limit(lab: Lab) -> None:
    for name in ("mail", "mail", "report"):
        lab.run(name)
    lab.jobs.cancel(lab.run("mail"))
    assert lab.jobs.count_up_to(9, ["pending", "cancelled"]) == 4
    assert lab.jobs.count_up_to(9, ["pending"], "mail") == 2
    assert lab.jobs.count_up_to(2, ["pending"]) == 2
    with pytest.raises(InvalidJob, match="executing"):
        lab.jobs.count_up_to(9, ["executing"])


# Pause


def test_limit_of_a_list_must_be_at_least_1(lab: Lab) -> None:
    with pytest.raises(InvalidJob, match="limit: must be at least 1"):
        lab.jobs.list(limit=0)


def test_names_to_pause_must_be_a_list(lab: Lab) -> None:
    for change in (lab.jobs.pause, lab.jobs.resume):
        with pytest.raises(InvalidJob, match="names: must be a list of names, not the string 'mail'"):
            change("mail")


@pytest.mark.parametrize(
    "change",
    [lambda jobs, states: jobs.clear(states), lambda jobs, states: jobs.retry(str(ObjectId()), states=states)],
    ids=["clear", "retry"],
)
def test_states_must_be_a_list_of_states(lab: Lab, change: Callable[[Any, Any], Any]) -> None:
    with pytest.raises(InvalidJob, match="states: must be a list of states, not the string 'success'"):
        change(lab.jobs, "success")
    with pytest.raises(InvalidJob, match="state: 'failed' is not a state"):
        change(lab.jobs, ["failed"])


def test_paused_queue_is_not_dispatched_until_it_is_resumed(lab: Lab) -> None:
    lab.run("mail")
    lab.run("report")
    lab.jobs.pause(["mail"])
    assert [report.stopped for report in lab.serve()] == [None]
    assert lab.ran == [()]
    assert lab.names_dispatched() == []
    lab.jobs.resume(["mail"])
    assert [report.succeeded for report in lab.serve()] == [1]


def test_pause_takes_effect_after_the_executing_job(lab: Lab) -> None:
    lab.run("mail", 1)
    lab.run("mail", 2)

    def pause(*_: Any, run: Any) -> None:
        lab.jobs.pause(["mail"])
        time.sleep(READ_TTL * 1.1)  # a look at the queue is believed for so long

    lab.works["mail"] = pause
    report = lab.run_through()
    assert (report.succeeded, report.stopped) == (1, "paused")
    assert (lab.ran, lab.states()) == ([(1,)], {"success": 1, "pending": 1})


def test_queues_without_jobs_can_be_paused(lab: Lab) -> None:
    lab.jobs.pause(["later"])
    assert [queue["name"] for queue in lab.jobs.status()["queues"] if queue["is_paused"]] == ["later"]
    lab.jobs.resume(["later", "never-paused"])
    assert [queue["name"] for queue in lab.jobs.status()["queues"]] == ["mail", "report"]


# Look


def test_status_lists_every_name_and_the_leader(lab: Lab) -> None:
    lab.dispatch(epoch=7)
    for due in (-1, -3, 60, 90):
        lab.run("mail", at=T0 + minutes(due))
    running = lab.run("report")
    lab.executing(running)
    lab.jobs.pause(["mail"])
    status = lab.jobs.status()
    mail, report = status["queues"]
    assert mail["states"] == {"pending": 4, "executing": 0, "success": 0, "failure": 0, "canceled": 0}
    assert (mail["name"], mail["is_paused"], mail["running"]) == ("mail", True, None)
    assert (mail["oldest_due"], mail["next_due"]) == (T0 - minutes(3), T0 + minutes(60))
    assert report["states"]["executing"] == 1
    worker = f"{socket.gethostname()}:{os.getpid()}"
    assert report["running"] == {"id": ObjectId(running), "claimed_until": T0 + LEASE, "worker": worker}
    assert (report["oldest_due"], report["next_due"]) == (None, None)
    assert status["leader"] == job_queue.leader() == {"epoch": 7, "heartbeat": T0, "since": T0}


def test_queues_equal_those_of_the_status_without_counts(lab: Lab) -> None:
    lab.run("mail")
    lab.jobs.cancel(lab.run("report"))
    lab.jobs.pause(["later"], reason="Busy")
    queues = lab.jobs.status()["queues"]
    assert [queue.pop("states")["canceled"] for queue in queues] == [0, 0, 1]
    assert lab.jobs.queues() == queues


@pytest.mark.usefixtures("unhurried")
@pytest.mark.parametrize("takes_long", [False, True], ids=["short", "long"])
def test_job_that_is_canceled_before_its_failure_is_written_is_not_retried(
    lab: Lab, takes_long: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second batch: its first job fails, and is canceled while a later one runs."""
    ids = [lab.run("mail", number) for number in range(8)]

    def work(number: int, run: Any) -> None:
        if number == 1:
            raise ValueError("boom")
        if number == 3:
            assert lab.jobs.cancel(ids[1])["state"] == "executing"
            if takes_long:  # the heartbeat gives it the claim, and writes the outcomes before it
                monkeypatch.setattr(runner, "BATCH_TIME", BATCH_TIME)
                eventually(lambda: lab.state(ids[3]) == "executing")

    lab.works["mail"] = work
    lab.run_through(lease=seconds(1))  # whose heartbeat comes soon
    canceled = lab.jobs.get(ids[1])
    assert (canceled["state"], "waiting" in canceled) == ("canceled", False)
    assert [lab.state(id) for id in ids if id != ids[1]] == ["success"] * 7


def cancel_before_write(lab: Lab, id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the job be canceled after its function has ended."""
    finish_and_start = job_attempt.finish_and_start

    def canceled_before(*arguments: Any, **options: Any) -> Any:
        lab.jobs.cancel(id)
        return finish_and_start(*arguments, **options)

    monkeypatch.setattr(job_attempt, "finish_and_start", canceled_before)


def test_repeating_job_that_is_canceled_before_its_success_is_written_does_not_repeat(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = lab.run("mail", every=hours(1))
    cancel_before_write(lab, id, monkeypatch)
    lab.run_through()
    assert (lab.state(id), len(lab.ran)) == ("canceled", 1)


def test_job_that_is_canceled_before_its_final_failure_is_written_is_not_run_by_a_new_leader(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = lab.run("mail")
    lab.works["mail"] = partial(_raise, PermanentError("boom"))
    cancel_before_write(lab, id, monkeypatch)
    lab.run_through()
    job.make_failed_due(lab.clock())
    assert (lab.state(id), "waiting" in lab.jobs.get(id)) == ("canceled", False)


def test_cancel_applies_to_a_job_that_fails_meanwhile(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    id = lab.run("mail")
    executing, cancel = lab.executing(id), job_operations.cancel

    def failing_before(*arguments: Any, **options: Any) -> Any:
        failure = JobOutcome(state=JobState.FAILURE, backoff=seconds(5), error="boom")
        job_attempt.finish(executing, failure, token="elsewhere", now=lab.hand())
        return cancel(*arguments, **options)

    monkeypatch.setattr(job_operations, "cancel", failing_before)
    assert lab.jobs.cancel(id)["state"] == "canceled"


def test_retry_accepts_only_jobs_in_the_given_states(lab: Lab) -> None:
    id = failed(lab)
    assert lab.jobs.retry(id, states=["failure"])["state"] == "pending"
    lab.works.clear()
    lab.run_through()
    with pytest.raises(WrongState, match="is success and was to be retried only if failure"):
        lab.jobs.retry(id, states=["failure"])
    lab.jobs.retry(id, states=["success"])
    lab.executing(id)
    with pytest.raises(WrongState, match="is executing and cannot be retried"):
        lab.jobs.retry(id, states=["executing"])


def test_retry_accepts_canceled_jobs_by_either_spelling(lab: Lab) -> None:
    id = lab.run("mail")
    for state in ("cancelled", "canceled"):
        lab.jobs.cancel(id)
        assert lab.jobs.retry(id, states=[state])["state"] == "pending"


def test_find_returns_jobs_of_the_same_arguments_newest_first(lab: Lab) -> None:
    first, _, second = lab.run("mail", 42), lab.run("mail", 43), lab.run("mail", 42)
    lab.run("report", 42)
    assert [str(found["_id"]) for found in lab.jobs.find("mail", 42)] == [second, first]
    assert [str(found["_id"]) for found in lab.jobs.find("mail", 42, limit=1)] == [second]
    assert lab.jobs.find("mail") == []
    with pytest.raises(InvalidJob, match="limit: must be at least 1"):
        lab.jobs.find("mail", 42, limit=0)


def test_list_is_paged_newest_first(lab: Lab) -> None:
    ids = [lab.run("mail" if number % 2 else "report", number) for number in range(7)][::-1]
    lab.jobs.cancel(ids[0])

    def listed(**query: Any) -> list[str]:
        return [str(found["_id"]) for found in lab.jobs.list(**query)]

    assert listed() == ids
    assert listed(limit=3) == ids[:3]
    assert listed(limit=3, before=ids[2]) == ids[3:6]
    assert listed(name="mail") == ids[1::2]
    assert listed(state="cancelled") == listed(state="canceled") == ids[:1]
    assert listed(state="pending", limit=2, before=ids[1]) == ids[2:4]
    assert listed(name="report", state="pending") == ids[2::2]


def test_reschedule_refuses_the_same_options_as_run(lab: Lab) -> None:
    id = lab.run("mail")
    bad: list[dict[str, Any]] = [
        {"at": datetime(2026, 2, 1)},
        {"at": T0, "delay": seconds(1)},
        {"delay": timedelta(seconds=-1)},
        {"priority": 1000, "delay": seconds(1)},
        {},
    ]
    for options in bad:
        with pytest.raises(InvalidJob):
            lab.jobs.reschedule(id, **options)
    assert lab.jobs.get(id)["due"] == T0
