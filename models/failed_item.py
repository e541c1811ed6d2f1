"""Failed items: collection `qm_failed_items`, one document per item until it succeeds.

    {_id: {system, id}, due_at, error, failures, failed_at, retry_at}

`failures` counts for one due time and restarts with a new one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pymongo import IndexModel, ReturnDocument
from pymongo.collection import Collection

from models import listing
from models.database import Document, collection
from models.document_id import id_text, read_id
from models.listing import Position
from models.malformed import readable, readable_one, typed
from queue_manager.core.clock import hours, milliseconds
from queue_manager.leases import MAX_COOL_DOWN, MIN_COOL_DOWN

FAILED_ITEMS_COLLECTION = "qm_failed_items"
BY_TIME, BY_AGE = "failed_by_time", "failed_kept"
FAILED_ITEM_ORDER = ("failed_at", "_id")
FAILED_ITEM_RETENTION = hours(24 * 30)


@dataclass(frozen=True, kw_only=True)
class FailedItem:
    """An item whose last attempt failed."""

    id: Any
    due_at: datetime
    error: str
    failures: int
    failed_at: datetime
    retry_at: datetime
    position: Position


def record(system: str, id: Any, due_at: datetime, *, error: str, now: datetime) -> FailedItem:
    """Record that all attempts of an item failed; its cool-down doubles with each failure."""
    same = {"$and": [{"$eq": ["$due_at", due_at]}, {"$in": [{"$type": "$failures"}, ["int", "long"]]}]}
    failures = {"$cond": [same, "$failures", 0]}
    # The formula of `queue_manager.core.retry.doubling`, computed by the server, because it has the count.
    doubled = {"$multiply": [milliseconds(MIN_COOL_DOWN), {"$pow": [2, {"$min": ["$$failures", 32]}]}]}
    cool_down = {"$toLong": {"$min": [milliseconds(MAX_COOL_DOWN), doubled]}}
    document: Any = _failed().find_one_and_update(
        {"_id": _key(system, id)},
        [
            {
                "$set": {
                    "retry_at": {"$let": {"vars": {"failures": failures}, "in": {"$add": [now, cool_down]}}},
                    "failures": {"$add": [failures, 1]},
                    "error": {"$literal": error},
                    "failed_at": now,
                }
            },
            {"$set": {"due_at": due_at}},  # a later stage, because the first one compares it
        ],
        upsert=True,
        return_document=ReturnDocument.AFTER,
    )
    return read_failure(document)


def get(system: str, id: Any) -> FailedItem | None:
    """Return the failure of one item, or `None`."""
    return readable_one(_failed().find_one({"_id": _key(system, id)}), read_failure, of=FAILED_ITEMS_COLLECTION)


def delete(system: str, ids: Sequence[Any]) -> None:
    """Delete the failures of items that succeeded."""
    if _failed().find_one({}, {"_id": 1}) is not None:  # usually empty; cheaper than a delete by ids
        _failed().delete_many({"_id": {"$in": [_key(system, id) for id in ids]}})


def page(system: str, *, since: datetime, after: Position | None, is_descending: bool) -> Iterator[FailedItem]:
    """Yield the failures of a system that occurred after `since`, by time, after a position."""
    found = listing.walk(
        _failed(),
        {"_id.system": system, "failed_at": {"$gt": since}},
        index=BY_TIME,
        order=FAILED_ITEM_ORDER,
        after=after,
        is_descending=is_descending,
    )
    return readable(found, read_failure, of=FAILED_ITEMS_COLLECTION)


def read_failure(document: Document) -> FailedItem:
    return FailedItem(
        id=read_id(id_text(document["_id"]["id"]), field="id"),
        due_at=typed(document, "due_at", datetime),
        error=typed(document, "error", str),
        failures=typed(document, "failures", int),
        failed_at=typed(document, "failed_at", datetime),
        retry_at=typed(document, "retry_at", datetime),
        position=listing.position(document, FAILED_ITEM_ORDER),
    )


def _key(system: str, id: Any) -> Document:
    return {"system": system, "id": id}


def _failed() -> Collection[Document]:
    return collection(FAILED_ITEMS_COLLECTION)


FAILED_ITEM_INDEXES = {
    FAILED_ITEMS_COLLECTION: [
        IndexModel(["_id.system", "failed_at", "_id"], name=BY_TIME),
        IndexModel("failed_at", name=BY_AGE, expireAfterSeconds=int(FAILED_ITEM_RETENTION.total_seconds())),
    ]
}
