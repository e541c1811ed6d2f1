"""Systems whose items are documents that fall due at a date: `DueDocuments`, and what is derived from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pymongo import IndexModel

from models import failed_item, outbox
from models.due_documents import DueCollection
from queue_manager.core.clock import minutes, seconds
from queue_manager.core.settings import settings
from queue_manager.system import SystemStats
from services.due_documents.declaration import CallAgain, DueDocuments, Failure, Run, Written
from services.due_documents.explanation import explain
from services.due_documents.listing import DocumentList
from services.due_documents.stats import stats
from services.due_documents.work import DocumentWork
from services.due_work import leases_of

__all__ = [
    "CallAgain",
    "DueDocuments",
    "Failure",
    "Run",
    "Written",
    "implementation",
    "work_of",
]

MAX_AHEAD = minutes(5)  # a worker holds an item that is dispatched ahead until its due time


def work_of(system: DueDocuments) -> DocumentWork:
    """Return the work of a system, on the real database, clock and Redis."""
    period = system.period(settings())
    return DocumentWork(
        system=system,
        documents=_documents(system),
        leases=leases_of(system.name),
        ahead=min(period, MAX_AHEAD) if settings().qm_ahead_limit else seconds(0),
        max_rate=system.max_rate,
        period=period,
    )


def implementation(system: DueDocuments) -> dict[str, Callable[..., Any]]:
    """Return the functions of the declaration that every system of this kind shares."""

    def collections() -> dict[str, Sequence[IndexModel]]:
        indexes = [*_documents(system).indexes(), *system.more_indexes()]
        return {system.collection: indexes, **failed_item.FAILED_ITEM_INDEXES, **outbox.OUTBOX_INDEXES}

    def system_stats() -> SystemStats:
        found = stats(work_of(system))
        system.add_stats(found)
        return found

    return {
        "items": lambda: DocumentList(work=work_of(system)),
        "explain": lambda id, dispatch: explain(work_of(system), id, dispatch),
        "stats": system_stats,
        "collections": collections,
    }


def _documents(system: DueDocuments) -> DueCollection:
    return DueCollection(name=system.collection, due=system.due, where=system.where)
