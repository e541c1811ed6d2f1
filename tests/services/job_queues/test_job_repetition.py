"""Repeating jobs: one run for each due time, one pending job for each repetition, and retries in between."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from models import job
from queue_manager.core.clock import hours, minutes, seconds
from queue_manager.core.errors import PermanentError
from services.job_queues import InvalidJob, JobRun
from services.job_queues.repetition import next_due
from tests.job_lab import Lab, lost_lease, only
from tests.rooms import T0


def test_repeating_job_runs_once_for_each_due_time(lab: Lab) -> None:
    id = lab.run("mail", every=minutes(1))
    for expected in range(1, 5):
        for _ in range(3):
            lab.serve(epoch=1)
            assert len(lab.ran) == expected
        assert (only(lab)["state"], only(lab)["due"]) == ("pending", T0 + expected * minutes(1))
        lab.hand.now += minutes(1)
    assert str(only(lab)["_id"]) == id
    assert [entry["state"] for entry in only(lab)["history"]] == ["pending", *["success"] * 4]


def test_due_times_do_not_drift_and_missed_ones_are_skipped(lab: Lab) -> None:
    lab.run("mail", every=minutes(1))
    lab.hand.now += minutes(10) + seconds(20)
    lab.serve(epoch=1)
    assert (len(lab.ran), only(lab)["due"]) == (1, T0 + minutes(11))


def test_run_that_outlasts_its_period_is_followed_by_the_next_due_time(lab: Lab) -> None:
    def work(**_: Any) -> None:
        lab.hand.now += minutes(2) + seconds(1)

    lab.works["mail"] = work
    lab.run("mail", every=minutes(1))
    lab.serve(epoch=1)
    assert only(lab)["due"] == T0 + minutes(3)


def test_clock_that_steps_back_does_not_repeat_a_due_time(lab: Lab) -> None:
    def work(**_: Any) -> None:
        lab.hand.now -= seconds(0.001)

    lab.works["mail"] = work
    lab.run("mail", every=minutes(1))
    lab.serve(epoch=1)
    assert only(lab)["due"] == T0 + minutes(1)


def test_job_whose_next_due_time_cannot_be_computed_fails(lab: Lab) -> None:
    id = lab.run("mail", every=minutes(1))
    job.jobs().update_one({}, {"$set": {"repetition": {"cron": "nonsense"}}})
    assert lab.run_through().failed == 1
    assert lab.state(id) == "failure"
    assert only(lab)["last_error"].startswith("Croniter")


def test_failure_is_retried_and_the_repetition_continues(lab: Lab) -> None:
    attempts: list[int] = []

    def fail_twice(*, run: JobRun) -> None:
        attempts.append(run.attempt)
        if run.attempt < 3:
            raise ValueError

    lab.works["mail"] = fail_twice
    lab.run("mail", every=hours(1))
    for _ in range(4):
        lab.serve(epoch=1)
        lab.hand.now += minutes(1)
    assert (attempts, only(lab)["due"]) == ([1, 2, 3], T0 + hours(1))
    lab.hand.now = T0 + hours(1)
    lab.serve(epoch=1)
    assert attempts == [1, 2, 3, 1]


def test_permanent_error_stops_a_repeating_job_until_a_retry(lab: Lab) -> None:
    def fail_for_good(*, run: JobRun) -> None:
        raise PermanentError("no")

    lab.works["mail"] = fail_for_good
    id = lab.run("mail", every=minutes(1))
    lab.serve(epoch=1)
    lab.hand.now += minutes(5)
    lab.serve(epoch=1)
    assert (len(lab.ran), lab.state(id)) == (1, "failure")
    del lab.works["mail"]
    lab.jobs.retry(id)
    lab.serve(epoch=1)
    assert (lab.state(id), only(lab)["due"]) == ("pending", T0 + minutes(6))


def test_lost_run_is_repeated_and_its_late_result_refused(lab: Lab) -> None:
    id = lab.run("mail", every=minutes(1))
    lab.executing(id)
    lost_lease(id)
    lab.serve(epoch=1)
    assert (lab.ran, lab.state(id)) == ([()], "pending")
    assert only(lab)["due"] == T0 + minutes(1)


def test_only_one_job_is_stored_for_a_repetition_until_it_is_canceled(lab: Lab) -> None:
    id = lab.run("mail", 1, every=minutes(1))
    lab.serve(epoch=1)
    assert lab.jobs.run("mail", 1, every=minutes(2)) is None
    assert lab.jobs.run("mail", 1, singular=True) is None
    assert lab.run("mail", 2, every=minutes(1)) != id
    lab.jobs.cancel(id)
    lab.run("mail", 1, every=minutes(2))
    assert lab.states() == {"pending": 2, "canceled": 1}


def test_canceled_repetition_does_not_run(lab: Lab) -> None:
    id = lab.run("mail", every=minutes(1))
    lab.serve(epoch=1)
    lab.jobs.cancel(id)
    lab.hand.now += minutes(5)
    lab.serve(epoch=1)
    assert len(lab.ran) == 1


def test_cron_line_gives_the_due_times_in_utc(lab: Lab) -> None:
    lab.hand.now = datetime(2026, 1, 31, 9, 30, tzinfo=UTC)
    lab.run("mail", cron="0 3 * * *")
    assert only(lab)["due"] == datetime(2026, 2, 1, 3, tzinfo=UTC)
    lab.hand.now = datetime(2026, 2, 1, 3, 0, 2, tzinfo=UTC)
    lab.serve(epoch=1)
    assert (len(lab.ran), only(lab)["due"]) == (1, datetime(2026, 2, 2, 3, tzinfo=UTC))


def test_first_due_time_can_be_given(lab: Lab) -> None:
    lab.run("mail", every=hours(24), at=T0 + hours(5))
    lab.hand.now += hours(5)
    lab.serve(epoch=1)
    assert only(lab)["due"] == T0 + hours(29)


def test_run_before_the_first_due_time_does_not_begin_the_repetition(lab: Lab) -> None:
    id = lab.run("mail", every=hours(1), at=T0 + hours(5))
    for expected in range(1, 3):
        lab.jobs.retry(id)
        lab.serve(epoch=1)
        assert (len(lab.ran), only(lab)["due"]) == (expected, T0 + hours(5))
        lab.hand.now += minutes(1)


@pytest.mark.parametrize(
    "change",
    [{"$unset": {"repetition.since": ""}}, *({"$set": {"repetition.since": since}} for since in (None, "soon", [T0]))],
    ids=["none", "null", "text", "list"],
)
def test_cron_job_succeeds_without_a_first_due_time(lab: Lab, change: dict[str, Any]) -> None:
    id = lab.run("mail", cron="0 3 * * *")
    job.jobs().update_one({}, change)
    lab.hand.now = only(lab)["due"]
    lab.serve(epoch=1)
    assert (lab.state(id), only(lab)["due"] - lab.clock()) == ("pending", hours(24))


@pytest.mark.parametrize(("after", "due"), [(-1, 0), (0, 60), (59, 60), (60, 120), (-60, 0), (-61, -60)])
def test_next_due_time_is_later(after: int, due: int) -> None:
    assert next_due({"every_ms": 60_000, "since": T0}, T0 + seconds(after)) == T0 + seconds(due)


@pytest.mark.parametrize(
    ("repetition", "field"),
    [
        ({"every": timedelta(0)}, "every"),
        ({"every": timedelta(milliseconds=999)}, "every"),
        ({"every": timedelta(days=4_000)}, "every"),
        ({"every": 60}, "every"),
        ({"every": minutes(1), "cron": "* * * * *"}, "every"),
        ({"cron": ""}, "cron"),
        ({"cron": 5}, "cron"),
        ({"cron": "* * * * * *"}, "cron"),
        ({"cron": "99 * * * *"}, "cron"),
        ({"cron": "0 0 31 2 *"}, "cron"),
        ({"cron": "R * * * *"}, "cron"),
        ({"cron": "0 3 * * *" + " " * 500}, "cron"),
    ],
)
def test_malformed_repetition_is_refused_with_the_field(lab: Lab, repetition: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidJob) as refused:
        lab.jobs.run("mail", **repetition)
    assert refused.value.field == field
    assert job.jobs().count_documents({}) == 0
