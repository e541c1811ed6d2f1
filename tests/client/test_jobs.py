"""Jobs by the clients: stored, changed, waited for, listed."""

from __future__ import annotations

import json
import threading
from datetime import UTC, datetime, timedelta

import pytest

from models import job as stored
from models import job_queue
from models.job import JobState
from queue_manager.client import Client, ClientError
from tests.any_jobs import INVOICE, PARCEL
from tests.client.clients import connected
from tests.client.test_retries import HandClock, responding, response
from tests.job_lab import end_job

HOUR = timedelta(hours=1)


def test_a_job_is_stored_and_found(client: Client) -> None:
    job = client.jobs.run(INVOICE, 42, {"a": [None, 1.5]}, delay=HOUR, priority=3)
    assert (job.name, job.arguments, job.priority, job.state) == (INVOICE, [42, {"a": [None, 1.5]}], 3, "pending")
    assert job.due is not None
    assert job.created is not None
    assert job.due - job.created == HOUR
    assert client.jobs.get(job.id) == job


def test_a_due_time_is_kept(client: Client) -> None:
    at = datetime(2030, 1, 31, 9, 30, tzinfo=UTC)
    job = client.jobs.run(INVOICE, at=at)
    assert job.due == at
    assert client.jobs.reschedule(job.id, at=at + HOUR).due == at + HOUR


def test_an_error_names_the_field(client: Client) -> None:
    with pytest.raises(ClientError) as caught:
        client.jobs.run(INVOICE, priority=101)
    assert (caught.value.status, caught.value.error, caught.value.field) == (422, "invalid", "priority")
    assert str(caught.value) == f"422 invalid: {caught.value.message}"


@pytest.mark.parametrize("is_singular", [False, True], ids=["unique", "singular"])
def test_a_second_unique_job_is_blocked(is_singular: bool, client: Client) -> None:
    client.jobs.run(INVOICE, 1, unique=not is_singular, singular=is_singular)
    with pytest.raises(ClientError) as caught:
        client.jobs.run(INVOICE, 1, unique=not is_singular, singular=is_singular)
    assert (caught.value.status, caught.value.error) == (409, "blocked")


def test_a_job_is_repeated(client: Client) -> None:
    client.jobs.run(INVOICE, every=HOUR)
    client.jobs.run(PARCEL, cron="30 9 * * *")
    found = {job["name"]: job["repetition"] for job in stored.jobs().find()}
    assert (found[INVOICE]["every_ms"], found[PARCEL]["cron"]) == (3_600_000, "30 9 * * *")


def test_a_job_is_canceled_retried_and_removed(client: Client) -> None:
    id = client.jobs.run(INVOICE, delay=HOUR).id
    assert client.jobs.cancel(id).state == "canceled"
    assert client.jobs.retry(id).state == "pending"
    assert client.jobs.remove(id).id == id
    with pytest.raises(ClientError) as caught:
        client.jobs.get(id)
    assert (caught.value.status, caught.value.error) == (404, "not found")


def test_a_job_that_succeeded_since_it_was_listed_is_not_run_again(client: Client) -> None:
    for number in range(2):
        end_job(client.jobs.run(INVOICE, number).id, JobState.FAILURE, backoff=timedelta(0))
    first, second = client.jobs.list(state="failure")
    assert client.jobs.retry(first.id, state="failure").state == "pending"
    end_job(second.id, JobState.SUCCESS)
    with pytest.raises(ClientError) as caught:
        client.jobs.retry(second.id, state="failure")
    assert (caught.value.status, caught.value.error) == (409, "wrong state")
    assert client.jobs.get(second.id).state == "success"


def test_a_list_follows_the_cursor(client: Client) -> None:
    ids = [client.jobs.run(INVOICE, number).id for number in range(5)]
    client.jobs.run(PARCEL)
    assert [job.id for job in client.jobs.list(name=INVOICE, page_size=2)] == ids[::-1]


def test_a_list_is_filtered_and_sorted(client: Client) -> None:
    low, high = (client.jobs.run(INVOICE, text, priority=at).id for at, text in enumerate(["ada", "bob"]))
    client.jobs.cancel(client.jobs.run(INVOICE, "ada").id)
    assert [job.id for job in client.jobs.list(state="pending", sort="priority", order="asc")] == [low, high]
    assert [job.id for job in client.jobs.list(state="pending", search="ada")] == [low]


def test_malformed_fields_of_a_foreign_job_are_none(client: Client) -> None:
    odd = {"created": "yesterday", "due": 5, "priority": True, "history": [{"state": "pending"}], "waiting": []}
    stored.jobs().insert_one({"_id": "odd", "attempts": 2.0, "state": "failure", "last_error": "gone", **odd})
    id = client.jobs.run(INVOICE, 5).id
    normal, job = client.jobs.list()
    assert (normal.id, normal.arguments, normal.state) == (id, [5], "pending")
    assert (job.id, job.attempts, job.state, job.last_error) == ("odd", 2, "failure", "gone")
    fields = job.name, job.arguments, job.due, job.waiting, job.priority, job.created, job.updated, job.history
    assert fields == (None,) * len(fields)
    assert client.jobs.get("odd") == job


def test_queues_are_paused_and_resumed(client: Client) -> None:
    client.jobs.run(INVOICE)
    client.jobs.pause([INVOICE], reason="spilling")
    assert {queue.name: queue.is_paused for queue in client.jobs.status()}[INVOICE]
    assert [pause.reason for pause in job_queue.pauses().values()] == ["spilling"]
    client.jobs.resume([INVOICE])
    (invoices,) = [queue for queue in client.jobs.status() if queue.name == INVOICE]
    assert (invoices.is_paused, invoices.states["pending"]) == (False, 1)


def test_finished_jobs_are_cleared(client: Client) -> None:
    end_job(client.jobs.run(INVOICE).id, JobState.SUCCESS)
    assert client.jobs.clear(["success"], INVOICE) == 1


def test_jobs_are_cleared_by_as_many_requests_as_the_server_needs(kind: str) -> None:
    parts = ({"deleted": 5, "is_complete": False}, {"deleted": 3, "is_complete": True}, {"deleted": 1})
    turns = [(0.0, response("application/json", json.dumps(part))) for part in parts]
    with responding(HandClock(), *turns) as server, connected(kind, server.url) as client:
        assert [client.jobs.clear(["success"]) for _ in range(2)] == [8, 1]


@pytest.mark.parametrize("state", [JobState.SUCCESS, JobState.FAILURE])
def test_a_job_is_waited_for(state: JobState, client: Client) -> None:
    id = client.jobs.run(INVOICE).id
    worker = threading.Timer(0.3, end_job, [id, state])
    worker.start()
    job = client.jobs.wait(id, timeout=30)
    worker.join()
    assert (job.state, job.is_finished, job.attempts) == (state, True, 1)
    assert job.history is not None
    assert job.history[-1].state == state


def test_waiting_for_a_job_ends_after_its_timeout(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("queue_manager.client.jobs.MIN_REQUEST_TIMEOUT", 30.0)  # the last request is always answered
    id = client.jobs.run(INVOICE).id
    with pytest.raises(TimeoutError, match="its state is pending"):
        client.jobs.wait(id, timeout=0.2)
