"""Finished jobs are deleted after their retention, for a limited time of each dispatch, and no others."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from importlib import import_module
from itertools import count
from typing import Any

import pytest

from models import job, job_operations
from models.job import JobState
from models.transaction import transact
from queue_manager.core.clock import seconds
from queue_manager.core.errors import Contended
from queue_manager.core.settings import settings
from services import job_queues
from tests.foreign_jobs import add_foreign_jobs, foreign_jobs
from tests.job_lab import Lab
from tests.real_servers import Servers

WEEK = timedelta(days=7)


@pytest.fixture
def lab(clean: Servers) -> Lab:
    lab = Lab()
    lab.retention = WEEK
    return lab


def one_in_each_state(lab: Lab) -> None:
    for state in JobState:
        id = lab.run("mail", state.value, delay=timedelta(days=30))
        stored = lab.jobs.get(id)["_id"]
        changed: dict[str, Any] = {"state": state}
        if state is JobState.EXECUTING:
            changed["claim"] = {"token": "elsewhere", "claimed_until": lab.clock() + timedelta(days=30)}
        job.jobs().update_one({"_id": stored}, {"$set": changed, "$unset": {"waiting": ""}})


def test_only_finished_jobs_are_deleted_and_only_after_their_retention(lab: Lab) -> None:
    one_in_each_state(lab)
    others = add_foreign_jobs("mail", lab.clock())

    lab.hand.now += WEEK
    assert lab.dispatch(epoch=1)[1] == {}
    lab.hand.now += seconds(1)
    assert lab.dispatch(epoch=1)[1] == {"deleted": 2}

    assert lab.states() == {"pending": 1, "executing": 1, "failure": 1}
    assert foreign_jobs() == others


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Set how many jobs a transaction deletes, and the seconds after which a dispatch starts no further one."""

    def limit(size: int, *, time_limit: float) -> None:
        module = import_module("services.job_queues.dispatch")
        monkeypatch.setattr(module, "FINISHED_BATCH_SIZE", size)
        monkeypatch.setattr(module, "MAX_FINISHED_TIME", time_limit)

    return limit


def test_dispatch_stops_deleting_when_its_time_budget_is_used_up(lab: Lab, limits: Callable[..., None]) -> None:
    limits(2, time_limit=0)
    for number in range(5):
        lab.jobs.cancel(lab.run("mail", number))
    lab.hand.now += 2 * WEEK
    assert [lab.dispatch(epoch=1)[1].get("deleted") for _ in range(4)] == [2, 2, 1, None]


def test_deletion_keeps_up_with_more_jobs_than_one_transaction_deletes(lab: Lab, limits: Callable[..., None]) -> None:
    limits(10, time_limit=60)
    deleted = []
    for _ in range(3):
        lab.jobs.run_many("mail", [[number] for number in range(45)])
        lab.run_through()
        lab.hand.now += WEEK + seconds(1)
        deleted.append(lab.dispatch(epoch=1)[1].get("deleted"))
    assert (deleted, lab.states()) == ([45] * 3, {})


def test_large_jobs_are_deleted_in_transactions_of_few(
    lab: Lab, limits: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    limits(1_000, time_limit=60)
    monkeypatch.setattr(job, "MAX_TRANSACTION_BYTES", 25_000)
    transactions = count()

    def counting(act: Any) -> Any:
        next(transactions)
        return transact(act)

    lab.jobs.run_many("mail", [["x" * 10_000] for _ in range(9)])
    monkeypatch.setattr(job_operations, "transact", counting)
    assert sum(lab.jobs.clear_in_batches(["pending"], keep=lambda gone, session: None)) == 9
    assert next(transactions) == 4  # three of three jobs, and one that found no more

    monkeypatch.setattr(job_operations, "transact", transact)
    lab.jobs.run_many("mail", [["x" * 10_000] for _ in range(9)])
    lab.run_through()
    lab.hand.now += WEEK + seconds(1)
    assert lab.dispatch(epoch=1)[1]["deleted"] == 9
    assert lab.states() == {}


def test_batches_that_were_deleted_before_one_is_locked_are_reported(
    lab: Lab, limits: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    limits(2, time_limit=60)
    for number in range(5):
        lab.jobs.cancel(lab.run("mail", number))
    lab.hand.now += 2 * WEEK
    remove, calls = job_operations.remove_finished, count(1)

    def locked_at_second(*arguments: Any, **options: Any) -> int:
        if next(calls) == 2:
            raise Contended(seconds(5))
        return remove(*arguments, **options)

    monkeypatch.setattr(job_operations, "remove_finished", locked_at_second)
    assert [lab.dispatch(epoch=1)[1].get("deleted") for _ in range(2)] == [2, 3]


def test_refused_leader_deletes_nothing(lab: Lab) -> None:
    lab.jobs.cancel(lab.run("mail"))
    lab.dispatch(epoch=2)
    lab.hand.now += WEEK + seconds(1)
    lab.dispatch(epoch=2)
    lab.jobs.cancel(lab.run("mail"))
    job.jobs().update_many({}, {"$set": {"updated": lab.clock() - 2 * WEEK}})
    assert lab.dispatch(epoch=1)[1] == {"refused": 1}
    assert lab.states() == {"canceled": 1}


@pytest.mark.parametrize(
    ("days", "dry_run", "retention"), [("0", "", None), ("7", "", WEEK), ("7", "job-queues", None)]
)
def test_retention_is_configured_in_days_and_dry_run_deletes_nothing(
    days: str, dry_run: str, retention: timedelta | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JOBS_RETENTION_DAYS", days)
    monkeypatch.setenv("QM_DRY_RUN", dry_run)
    settings.cache_clear()
    try:
        assert job_queues.dispatch().retention == retention
    finally:
        monkeypatch.undo()
        settings.cache_clear()
