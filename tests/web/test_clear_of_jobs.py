"""Deleting many jobs: one transaction at a time, for a limited time, with their number in the audit."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import pytest
from fastapi import FastAPI, Request
from pymongo.errors import AutoReconnect

from models import job, job_operations, transaction
from models.audit import AuditEntry, AuditQuery, Via
from models.audit import page as audit_page
from models.job import JobState
from queue_manager.core.clock import seconds
from queue_manager.core.errors import Contended, Unavailable
from queue_manager.operations import failures
from queue_manager.operations import jobs as operations
from queue_manager.operations.job_schemas import DeletedJobs, JobsToDelete
from queue_manager.web.http import exception_handlers, requests
from queue_manager.web.http.requests import MAX_DURATION, time_check
from services import audit
from services.audit import INCOMPLETE_DETAIL, Actor
from services.failures import FailureGroup
from services.job_queues import DuplicateJob, jobs, system
from tests import bulk_data
from tests.any_jobs import INVOICE, MODULE, made
from tests.e2e.commands import interrupted_after, invoke
from tests.eventually import eventually
from tests.job_lab import end_job
from tests.real_servers import Servers
from tests.web.web_process import forked_web

ADA = Actor(who="ada", via="page", address="here")
PENDING = JobsToDelete(states=["pending"])
LARGE = 10_000  # bytes of a job
IN_TRANSACTION = 3  # large jobs


@pytest.fixture
def large_jobs(clean: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    """Store nine jobs, of which one transaction deletes three."""
    monkeypatch.setattr(job, "MAX_TRANSACTION_BYTES", (IN_TRANSACTION - 0.5) * LARGE)
    jobs.run_many(INVOICE, [["x" * LARGE]] * 9)


def cleared(*, steps: float = float("inf")) -> DeletedJobs:
    """Delete the pending jobs; the time is over after so many transactions."""
    asked = count(1)
    return operations.clear_jobs(PENDING, ADA, is_over=lambda: next(asked) >= steps)


def audited() -> AuditEntry:
    (entry,) = audit_page(AuditQuery(), after=None, limit=10)[0]
    return entry


@pytest.mark.parametrize(("most", "counted"), [(3, (3, True)), (2, (2, False))])
def test_a_preview_counts_the_jobs_and_deletes_nothing(
    clean: Servers, monkeypatch: pytest.MonkeyPatch, most: int, counted: tuple[int, bool]
) -> None:
    monkeypatch.setattr(operations, "MAX_ARCHIVED", most)
    jobs.run_many(INVOICE, [[number] for number in range(3)])
    body = PENDING.model_copy(update={"preview": True})
    answer = operations.clear_jobs(body, ADA, is_over=lambda: False)
    assert ((answer.deleted, answer.is_complete), answer.undo, jobs.count()) == (counted, None, 3)
    assert audit_page(AuditQuery(), after=None, limit=10)[0] == []


@pytest.mark.usefixtures("large_jobs")
class TestTransactions:
    def test_each_transaction_has_the_time_limit_of_a_call(self, monkeypatch: pytest.MonkeyPatch) -> None:
        counts: list[int] = []

        @contextmanager
        def counting() -> Iterator[None]:
            counts.append(0)
            yield

        def transact(act: Callable[..., Any]) -> Any:
            counts[-1] += 1
            return transaction.transact(act)

        monkeypatch.setattr(operations, "mongodb", counting)
        monkeypatch.setattr(job_operations, "transact", transact)
        assert (cleared().deleted, sum(counts), max(counts)) == (9, 4, 1)

    def test_remaining_jobs_are_kept_when_the_time_is_used_up(self) -> None:
        answer = cleared(steps=2)
        assert (answer.deleted, answer.is_complete, jobs.count()) == (6, False, 3)
        entry = audited()
        assert (entry.outcome, entry.count, entry.detail) == ("done", 6, INCOMPLETE_DETAIL)
        again = cleared()
        assert (again.deleted, again.is_complete, jobs.count()) == (3, True, 0)
        assert {answer.undo, again.undo}.isdisjoint({None})

    @pytest.mark.parametrize(
        ("error", "raised"),
        [
            (Contended(seconds(5)), Unavailable),
            (AutoReconnect("away"), Unavailable),
            (KeyboardInterrupt(), KeyboardInterrupt),
        ],
        ids=["locked", "away", "Ctrl-C"],
    )
    def test_jobs_deleted_before_an_error_are_in_the_audit_log(
        self, error: BaseException, raised: type[BaseException], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fail_after(2, error, monkeypatch)
        with pytest.raises(raised):
            cleared()
        entry = audited()
        assert (entry.outcome != "done", entry.count, jobs.count()) == (True, 6, 3)

    def test_those_before_ctrl_c_are_reported_by_the_command_and_audited(self, monkeypatch: pytest.MonkeyPatch) -> None:
        fail_after(2, KeyboardInterrupt(), monkeypatch)
        result = invoke("jobs", "clear", "pending", "--yes")
        entry = audited()
        assert (result.returncode, result.stderr) == (130, interrupted_after(6, entry.id))
        assert (entry.outcome, entry.count, entry.via, jobs.count()) == ("unknown", 6, "cli", 3)

    @pytest.mark.parametrize(("maximum", "is_kept"), [(8, False), (9, True)])
    def test_a_clear_of_more_jobs_than_are_archived_cannot_be_undone(
        self, maximum: int, is_kept: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(audit, "MAX_ARCHIVED", maximum)
        answer = cleared()
        assert (answer.deleted, answer.undo is not None) == (9, is_kept)


@pytest.mark.parametrize(
    ("error", "outcome"),
    [(Contended(seconds(5)), "failed"), (AutoReconnect("away"), "unknown")],
    ids=["locked", "away"],
)
@pytest.mark.parametrize("action", ["clear", "remove", "remove many"])
def test_undo_is_offered_only_if_something_may_have_been_deleted(
    clean: Servers, action: str, error: Exception, outcome: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = str(made()["_id"])

    def fail_at_the_end(act: Callable[..., Any]) -> Any:
        def fail(session: Any) -> NoReturn:
            act(session)
            raise error

        return transaction.transact(fail)

    monkeypatch.setattr(job_operations, "transact", fail_at_the_end)
    with suppress(Unavailable):
        if action == "clear":
            cleared()
        elif action == "remove":
            operations.change_job(ADA, "remove", id, jobs.remove)
        else:
            operations.change_jobs(ADA, "remove", jobs.remove, [id], is_over=lambda: False)
    entry = audited()
    is_skipped = action == "remove many" and outcome == "failed"
    assert (entry.outcome, entry.undo_until is not None) == ("done" if is_skipped else outcome, outcome == "unknown")


@pytest.mark.parametrize("via", ["page", "cli"])
def test_stored_and_blocked_jobs_of_people_are_audited(clean: Servers, via: Via) -> None:
    actor = Actor(who="ada", via=via, address="here")
    id = str(operations.run_job(actor, INVOICE, [7], unique=True)["_id"])
    entry = audited()
    assert (entry.outcome, entry.ids, entry.count, entry.detail) == ("done", [id], 1, INVOICE)
    with pytest.raises(DuplicateJob):
        operations.run_job(actor, INVOICE, [7], unique=True)
    blocked, _ = audit_page(AuditQuery(), after=None, limit=10)[0]
    assert (blocked.outcome, blocked.ids, blocked.count) == ("failed", [], None)


def test_stored_jobs_of_programs_are_not_audited(clean: Servers) -> None:
    operations.run_job(Actor(who="shop", via="api", address="here"), INVOICE, [7])
    assert audit_page(AuditQuery(), after=None, limit=10)[0] == []


def test_jobs_of_a_group_of_failures_that_were_retried_before_an_outage_are_counted(
    clean: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [str(made()["_id"]) for _ in range(3)]
    for id in ids:
        end_job(id, JobState.FAILURE, error="Boom")
    retry, calls = jobs.retry, count(1)

    def fail_at_third(id: str, **options: Any) -> Any:
        if next(calls) == 3:
            raise AutoReconnect("away")
        return retry(id, **options)

    monkeypatch.setattr(jobs, "retry", fail_at_third)
    group = FailureGroup(kind="job", system=system.name, name=INVOICE, reason="Boom", sample="Boom")
    with pytest.raises(Unavailable):
        failures.replay(group, ids, ADA, is_over=lambda: False)
    assert (audited().outcome, audited().count) == ("unknown", 2)


def fail_after(transactions: int, error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = count(1)

    def fail(act: Callable[..., Any]) -> Any:
        if next(calls) > transactions:
            raise error
        return transaction.transact(act)

    monkeypatch.setattr(job_operations, "transact", fail)


def test_a_clear_ends_after_50_s_or_when_the_process_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    now, ending = 100.0, asyncio.Event()
    monkeypatch.setattr(requests, "time", SimpleNamespace(monotonic=lambda: now))
    request = cast(Request, SimpleNamespace(app=SimpleNamespace(state=SimpleNamespace(ending=ending))))
    first = time_check(request)
    assert not first()
    now += MAX_DURATION
    second = time_check(request)
    assert (first(), second()) == (True, False)
    ending.set()
    assert second()


@pytest.mark.usefixtures("large_jobs")
def test_selected_jobs_beyond_the_time_limit_are_kept() -> None:
    ids = [str(one["_id"]) for one in job.jobs().find({}, {"_id": 1})]
    time_left = iter([False, False, True])
    answer = operations.change_jobs(ADA, "remove", jobs.remove, ids, is_over=lambda: next(time_left))
    assert (answer.changed, answer.of, answer.is_complete) == (2, len(ids), False)
    assert [one.id for one in answer.results] == ids[:2]
    assert (jobs.count(), audited().detail) == (len(ids) - 2, INCOMPLETE_DETAIL)


@pytest.mark.usefixtures("large_jobs")
def test_selected_jobs_before_an_outage_are_reported_and_audited(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = [str(one["_id"]) for one in job.jobs().find({}, {"_id": 1})]
    fail_after(2, AutoReconnect("away"), monkeypatch)
    with pytest.raises(Unavailable) as raised:
        operations.change_jobs(ADA, "remove", jobs.remove, ids, is_over=lambda: False)
    entry = audited()
    assert (entry.outcome, entry.ids, entry.count, entry.total) == ("unknown", ids[:2], 2, len(ids))
    assert jobs.count() == len(ids) - 2
    assert response_to(raised.value) == (
        503,
        f"{raised.value}; the outcome of the request is unknown; 2 changed before; "
        f"to undo it within 10 minutes: queue-manager audit undo {entry.id}",
    )


@pytest.mark.usefixtures("large_jobs")
def test_the_response_to_a_clear_that_meets_a_locked_job_has_the_number(monkeypatch: pytest.MonkeyPatch) -> None:
    fail_after(2, Contended(seconds(5)), monkeypatch)
    with pytest.raises(Unavailable) as raised:
        cleared()
    assert response_to(raised.value) == (
        503,
        "other transactions hold the document; try again; 6 changed before; "
        f"to undo it within 10 minutes: queue-manager audit undo {audited().id}",
    )


def response_to(error: Exception) -> tuple[int, str]:
    """Return the status of the response to a `POST` that raises this error, and its message."""
    api = FastAPI()
    exception_handlers.install(api)
    request = Request({"type": "http", "method": "POST", "path": "/api/jobs/clear", "headers": []})
    response = asyncio.run(exception_handlers.error_handler(api, error)(request, error))
    return response.status_code, json.loads(response.body)["message"]


@pytest.mark.slow
def test_a_clear_in_a_terminated_process_keeps_the_remaining_jobs(clean: Servers, tmp_path: Path) -> None:
    stored = 50_000
    bulk_data.jobs(stored, JobState.PENDING)
    with forked_web(tmp_path, QM_JOBS="true", JOBS_IMPORTS=f'["{MODULE}"]') as process:
        with ThreadPoolExecutor() as pool:
            pool.submit(process.post, "/api/jobs/clear", {"states": ["pending"]})
            eventually(lambda: job.jobs().estimated_document_count() < stored)
            process.child.end(grace=20)
    left = job.jobs().estimated_document_count()
    assert 0 < left < stored
    entry = audited()
    assert (entry.outcome, entry.count, entry.detail) == ("done", stored - left, INCOMPLETE_DETAIL)
