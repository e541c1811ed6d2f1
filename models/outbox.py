"""The outbox, pending calls of `after`: collection `qm_owed`, one record per batch of a system with an `after`.

    {_id: of the record, system, at, items: [{id, due_at}]}
    {postponed_until}      when scans may repeat the call: until then it is the turn of the process that wrote
    {error}                why the last call failed; null if it did not fail

Guarantee: a record is inserted in the transaction that writes the documents, and deleted after the call returned. After
a crash the call is repeated, so `after` is called at least once for each document.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

from pymongo import DESCENDING, IndexModel, WriteConcern
from pymongo.client_session import ClientSession

from models.database import Document, collection
from models.document_id import id_key
from models.malformed import readable, readable_one, typed
from queue_manager.core.clock import seconds

OUTBOX_COLLECTION = "qm_owed"
BY_AGE = "owed_by_age"
GRACE_OF_0_2 = seconds(10)
MAX_SEARCHED_RECORDS = 1_000


@dataclass(frozen=True, kw_only=True)
class OutboxRecord:
    """The record of one batch."""

    id: str
    system: str
    lease: timedelta
    """The time after the write in which only the process that wrote the batch may call `after`."""
    clock: Callable[[], datetime]
    """Returns the time of the write, which may come long after `now` if the item function is slow."""

    def insert(self, due_at: Mapping[Any, datetime], *, now: datetime, session: ClientSession) -> None:
        items = [{"id": id, "due_at": at} for id, at in due_at.items()]
        until = self.clock() + self.lease
        record = {"_id": self.id, "system": self.system, "at": now, "items": items, "postponed_until": until}
        collection(OUTBOX_COLLECTION).insert_one(record, session=session)


@dataclass(frozen=True, kw_only=True)
class PendingCall:
    """The content of a record: the time of the write, the due times of the documents by id, and the last error."""

    written_at: datetime
    due_at: dict[Any, datetime]
    error: str | None = None


def delete(id: str) -> None:
    # Without waiting for the journal and other members: if it is lost, the call is repeated.
    collection(OUTBOX_COLLECTION).with_options(write_concern=WriteConcern(w=1)).delete_one({"_id": id})


def get(id: str) -> PendingCall | None:
    """Return the pending call of a batch; `None` if it is done."""
    record = collection(OUTBOX_COLLECTION).find_one({"_id": id})
    return None if record is None else _read_call(record)


def failing_of(system: str, id: Any) -> PendingCall | None:
    """Return a failed call for a document, among the newest `MAX_SEARCHED_RECORDS` of the system."""
    newest: list[Document] = [
        {"$match": {"system": system}},
        {"$sort": {"at": DESCENDING}},
        {"$limit": MAX_SEARCHED_RECORDS},
    ]
    failed = {"items.id": {"$eq": id}, "error": {"$type": "string"}}
    found = collection(OUTBOX_COLLECTION).aggregate([*newest, {"$match": failed}, {"$limit": 1}])
    return readable_one(next(found, None), _read_call, of=OUTBOX_COLLECTION)


def oldest(system: str, *, before: datetime) -> PendingCall | None:
    """Return the oldest of the calls that `count_pending` counts."""
    found = collection(OUTBOX_COLLECTION).find_one(_pending(system, before), hint=BY_AGE, sort=["at"])
    return readable_one(found, _read_call, of=OUTBOX_COLLECTION)


def _read_call(record: Document) -> PendingCall:
    due_at = {id_key(one["id"]): one["due_at"] for one in record["items"]}
    error = typed(record, "error", str, type(None)) if "error" in record else None
    return PendingCall(written_at=typed(record, "at", datetime), due_at=due_at, error=error)


def record_error(id: str, error: str) -> None:
    """Store why a repeated call failed."""
    collection(OUTBOX_COLLECTION).update_one({"_id": id}, {"$set": {"error": error}})


def postpone(id: str, *, until: datetime, error: str | None = None) -> None:
    """Leave the call of a batch to scans after `until`; `error` says why the last call failed."""
    collection(OUTBOX_COLLECTION).update_one({"_id": id}, {"$set": {"postponed_until": until, "error": error}})


def halve(id: str, *, at_once: int) -> bool:
    """Replace the record of a batch by two, each with half of its documents; return True if that was done.

    It is not done with a single document, or if that many older records of several documents have failed.
    """
    record = collection(OUTBOX_COLLECTION).find_one({"_id": id}) or {}
    items = record.get("items")
    if not isinstance(items, list) or len(items) < 2:
        return False
    is_older = {"system": record.get("system"), "at": {"$lt": record.get("at")}}
    failed = {**is_older, "error": {"$type": "string"}, "items.1": {"$exists": True}}
    if collection(OUTBOX_COLLECTION).count_documents(failed, hint=BY_AGE, limit=at_once) == at_once:
        return False
    middle = len(items) // 2
    halves = [{**record, "_id": uuid4().hex, "items": half} for half in (items[:middle], items[middle:])]
    # Not atomic: if this process dies before it deletes the old record, calls are repeated.
    collection(OUTBOX_COLLECTION).insert_many(halves)
    delete(id)
    return True


def pending(system: str, *, now: datetime) -> Iterator[tuple[str, datetime]]:
    """Yield id and time of the records that are not postponed, oldest first."""
    # During the upgrade from 0.2, whose processes write no `postponed_until`, and call `after` themselves in this time.
    new_of_0_2 = {"postponed_until": None, "at": {"$gt": now - GRACE_OF_0_2}}
    where = {"system": system, "postponed_until": {"$not": {"$gt": now}}, "$nor": [new_of_0_2]}
    found = collection(OUTBOX_COLLECTION).find(where, {"at": 1}, hint=BY_AGE, sort=["at", "_id"])
    yield from readable(found, read_pending, of=OUTBOX_COLLECTION)


def read_pending(record: Document) -> tuple[str, datetime]:
    """Return id and time of a record."""
    return typed(record, "_id", str), typed(record, "at", datetime)


def count_pending(system: str, *, before: datetime) -> int:
    """Count the records that were written before then, except those that are postponed beyond it."""
    return collection(OUTBOX_COLLECTION).count_documents(_pending(system, before), hint=BY_AGE)


def _pending(system: str, before: datetime) -> Document:
    return {"system": system, "at": {"$lte": before}, "postponed_until": {"$not": {"$gt": before}}}


def counts() -> dict[str, int]:
    """Count the records by the name of the system, the highest count first."""
    of_systems = {"$match": {"system": {"$type": "string"}}}
    found = collection(OUTBOX_COLLECTION).aggregate([of_systems, {"$sortByCount": "$system"}])
    return {one["_id"]: one["count"] for one in found}


OUTBOX_INDEXES = {OUTBOX_COLLECTION: [IndexModel(["system", "at", "_id"], name=BY_AGE)]}
