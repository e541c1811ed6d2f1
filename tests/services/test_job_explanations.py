"""Why a job is in its state: the explanation of each state, and its timeline."""

from __future__ import annotations

from typing import Any

import pytest
from bson import ObjectId

from models import job_queue, schema
from models.database import server_now
from models.job import JobState, jobs
from queue_manager.core.clock import hours, minutes, seconds
from queue_manager.explanation import Explanation
from services.job_queues import explanation, system
from tests.job_lab import Lab, end_job, lost_lease, start_job
from tests.services.test_explanations import dispatch


@pytest.fixture
def lab(clean: object) -> Lab:
    schema.migrate([system])
    return Lab(server_now)


def why(id: str, **fields: Any) -> Explanation:
    (found,) = system.explain(id, dispatch(server_now(), system=system, **fields))
    return found


def test_job_that_is_not_due(lab: Lab) -> None:
    id = lab.run("mail", delay=hours(1))
    found = why(id)
    assert (found.label, found.title, found.kind) == ("pending", "mail", "job")
    assert (found.page, found.document, found.retry) == (f"/jobs/{id}", f"/api/jobs/{id}", f"/api/jobs/{id}/retry")
    assert found.retry_body == {"state": "pending"}
    assert found.answer.startswith("Due at ")
    assert [one.event for one in found.timeline] == ["Stored"]


def test_due_job_and_why_it_does_not_run(lab: Lab) -> None:
    id = lab.run("mail")
    assert "; waiting; the next scan runs at " in why(id).answer
    assert why(id, workers=[]).answer.endswith("; waiting; no worker consumes the queue jobs.")
    other = lab.run("mail", delay=seconds(0))
    assert "; waiting, with 1 other due job of its name; " in why(id).answer
    start_job(other)
    assert why(id).answer.endswith(f"; waiting for the job {other}, since jobs of one name run one at a time.")
    lab.jobs.pause(["mail"], by="alice", reason="the provider is down")
    assert "; its queue is paused since " in why(id).answer
    assert why(id).answer.endswith(" by alice (the provider is down): see `queue-manager jobs resume mail`.")
    job_queue.queues().update_one({"_id": "mail"}, {"$unset": {"pause": ""}})  # an older release paused it
    assert why(id).answer.endswith("; its queue is paused: see `queue-manager jobs resume mail`.")


def test_due_jobs_are_counted_up_to_a_limit(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explanation, "MAX_COUNTED_JOBS", 3)
    ids = [lab.run("mail") for _ in range(5)]
    assert "; waiting, with at least 2 other due jobs of its name; " in why(ids[0]).answer


def test_attempt_that_a_shutdown_stopped(lab: Lab) -> None:
    id = lab.run("mail")
    end_job(id, JobState.PENDING, is_counted=False)
    assert [one.event for one in why(id).timeline] == ["Attempt 1 was stopped by a shutdown", "Stored"]


@pytest.mark.parametrize(
    ("change", "answer"),
    [
        ({"$unset": {"due": ""}}, "Malformed: KeyError: 'due'."),
        ({"$set": {"due": "today"}}, "Malformed: TypeError: due must be datetime, and is str."),
    ],
)
def test_malformed_job(change: Any, answer: str, lab: Lab) -> None:
    id = lab.run("mail")
    jobs().update_one({"_id": ObjectId(id)}, change)
    found = why(id)
    assert (found.title, found.label, found.tone) == ("mail", "pending", "bad")
    assert found.answer == answer


def test_executing_job(lab: Lab) -> None:
    id = lab.run("mail")
    start_job(id)
    found = why(id)
    assert (found.label, found.tone, found.retry) == ("executing", "good", None)
    assert found.answer.startswith("Being executed by ")
    assert ", in its 1st attempt; its worker's lease is renewed, and ends at " in found.answer
    lost_lease(id)
    assert "; the lease of its worker ended at " in why(id).answer


def test_failed_job(lab: Lab) -> None:
    id = lab.run("mail")
    end_job(id, JobState.FAILURE, backoff=minutes(5), error="Boom")
    found = why(id)
    assert found.answer.startswith("Its 1st attempt failed; the next one is due at ")
    assert found.answer.endswith(". Last error: Boom.")
    failed, stored = found.timeline
    assert (failed.event, failed.error, failed.task_id) == ("Attempt 1 failed", "Boom", "worker")
    assert stored.event == "Stored"
    given_up = lab.run("report")
    end_job(given_up, JobState.FAILURE, error="Boom")
    assert why(given_up).answer == "Its 1st attempt failed, and it is not retried by itself. Last error: Boom."


def test_attempts_of_a_repeating_job_are_counted_from_its_last_success(lab: Lab) -> None:
    id = lab.run("mail", every=hours(1))
    end_job(id, JobState.SUCCESS, next_due=server_now())
    start_job(id)
    assert ", in its 1st attempt for this due time; " in why(id).answer
    failed = lab.run("report", every=hours(1))
    end_job(failed, JobState.SUCCESS, next_due=server_now())
    end_job(failed, JobState.FAILURE, error="Boom")
    assert why(failed).answer.startswith("Its 1st attempt for this due time failed, and it is not retried by itself.")


def test_finished_job(lab: Lab) -> None:
    done, canceled = lab.run("mail"), lab.run("report")
    end_job(done, JobState.SUCCESS)
    lab.jobs.cancel(canceled)
    assert why(done).answer.startswith("Succeeded at ")
    assert why(done).answer.endswith("; at attempt 1.")
    assert why(done).timeline[0].event == "Attempt 1 succeeded"
    assert why(canceled).answer.endswith(", so it is not executed until someone retries it.")


def test_document_that_is_not_a_job(lab: Lab) -> None:
    jobs().insert_one({"_id": "another", "name": "x"})
    for id in ("another", "nothing", "5"):
        assert list(system.explain(id, dispatch(server_now(), system=system))) == []
    assert list(system.explain(lab.run("mail"), dispatch(server_now(), system=system, is_on=False))) == []
