"""Items whose last attempt failed: `qm_failed_items`, one document each until the item succeeds.

    {_id: {system, id}, due_at, error, failures, failed_at, retry_at}

`failures` belongs to one due time: a new one starts from none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pymongo import ASCENDING, IndexModel, ReturnDocument
from pymongo.collection import Collection

from models import listing
from models.database import Document, collection, doubled, id_key
from models.listing import Position
from queue_manager.core.clock import hours, minutes

NAME = "qm_failed_items"
BY_TIME, BY_AGE = "failed_by_time", "failed_kept"
FIRST_PAUSE, MAX_PAUSE = minutes(1), hours(1)
ORDER = ("failed_at", "_id")
RETENTION = hours(24 * 30)


@dataclass(frozen=True, kw_only=True)
class Failure:
    """What is known of an item whose last attempt failed."""

    id: Any
    due_at: datetime
    error: str
    failures: int
    failed_at: datetime
    retry_at: datetime
    position: Position


def record(system: str, id: Any, due_at: datetime, *, error: str, now: datetime) -> Failure:
    """Record that all attempts at an item failed; the pause before the next ones grows."""
    same = {"$eq": ["$due_at", due_at]}
    failures = {"$cond": [same, {"$ifNull": ["$failures", 0]}, 0]}
    pause = doubled(FIRST_PAUSE, "$$failures", cap=MAX_PAUSE)
    document: Any = _failed().find_one_and_update(
        {"_id": _key(system, id)},
        [
            {
                "$set": {
                    "retry_at": {"$let": {"vars": {"failures": failures}, "in": {"$add": [now, pause]}}},
                    "failures": {"$add": [failures, 1]},
                    "error": {"$literal": error},
                    "failed_at": now,
                }
            },
            {"$set": {"due_at": due_at}},  # after the stage that compares it
        ],
        upsert=True,
        return_document=ReturnDocument.AFTER,
    )
    return _failure(document)


def delete(system: str, ids: Sequence[Any]) -> None:
    """Forget failures of items that succeeded."""
    if _failed().estimated_document_count():  # usually none, which costs less than to look for each
        _failed().delete_many({"_id": {"$in": [_key(system, id) for id in ids]}})


def page(system: str, *, after: Position | None, is_descending: bool) -> Iterator[Failure]:
    """Yield the failures of a system by their time, beyond a position."""
    found = listing.walk(
        _failed(), {"_id.system": system}, index=BY_TIME, order=ORDER, after=after, is_descending=is_descending
    )
    return map(_failure, found)


def _failure(document: Document) -> Failure:
    fields = {name: document[name] for name in ("due_at", "error", "failures", "failed_at", "retry_at")}
    return Failure(id=id_key(document["_id"]["id"]), position=listing.position(document, ORDER), **fields)


def _key(system: str, id: Any) -> Document:
    return {"system": system, "id": id}


def _failed() -> Collection[Document]:
    return collection(NAME)


def collections() -> dict[str, list[IndexModel]]:
    """Return what this module keeps, for `migrate`."""
    by_time = [("_id.system", ASCENDING), ("failed_at", ASCENDING), ("_id", ASCENDING)]
    kept = IndexModel([("failed_at", ASCENDING)], name=BY_AGE, expireAfterSeconds=int(RETENTION.total_seconds()))
    return {NAME: [IndexModel(by_time, name=BY_TIME), kept]}
