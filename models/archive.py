"""What people deleted, so that they can undo it for ten minutes: collection `qm_archive`.

    {_id, action, kind, records: [BSON], expires_at}    `action` is the `_id` of the entry in `qm_audit`

Records are stored before what they describe is deleted. Each document is small enough for MongoDB.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

import bson
from bson import ObjectId
from bson.codec_options import CodecOptions, DatetimeConversion
from pymongo import IndexModel
from pymongo.client_session import ClientSession

from models.database import Document, collection
from queue_manager.core.clock import hours, milliseconds, minutes

ARCHIVE_COLLECTION = "qm_archive"
UNDO_TIME = minutes(10)
MAX_ARCHIVED = 100_000
"""Maximum number of records that are archived for one action, if their number is known before."""
MAX_ARCHIVE_BYTES = 4 * 1024 * 1024
# Longer than an action, after whose end the time to undo it begins, and an undo take.
_RETENTION = hours(2)
_EXPIRES: Document = {"expires_at": {"$add": ["$$NOW", milliseconds(_RETENTION)]}}
_EXACT: CodecOptions[Document] = CodecOptions(
    tz_aware=True, tzinfo=UTC, datetime_conversion=DatetimeConversion.DATETIME_AUTO
)

Kind = Literal["message", "job", "dead-letter"]


@dataclass(frozen=True)
class Slice:
    """Some records of one action."""

    id: ObjectId
    kind: Kind
    records: Sequence[Document]


def add(
    action: ObjectId, kind: Kind, records: Sequence[Mapping[str, Any]], session: ClientSession | None = None
) -> list[ObjectId]:
    """Store records of an action, in as many documents as needed; return their ids."""
    size, some, ids = 0, list[bytes](), list[ObjectId]()
    for record in map(bson.encode, records):
        if some and size + len(record) > MAX_ARCHIVE_BYTES:
            ids.append(_insert(action, kind, some, session))
            size, some = 0, []
        some.append(record)
        size += len(record)
    return [*ids, _insert(action, kind, some, session)] if some else ids


def _insert(action: ObjectId, kind: Kind, records: list[bytes], session: ClientSession | None) -> ObjectId:
    id = ObjectId()
    stored = {"_id": id, "action": action, "kind": kind, "records": records}
    replacement = {"$replaceWith": {"$mergeObjects": [{"$literal": stored}, _EXPIRES]}}
    collection(ARCHIVE_COLLECTION).update_one({"_id": id}, [replacement], upsert=True, session=session)
    return id


def prolong(action: ObjectId) -> None:
    """Keep the remaining records of an action as long as new ones, if they would expire within `UNDO_TIME`."""
    is_late = {"$expr": {"$lt": ["$expires_at", {"$add": ["$$NOW", milliseconds(UNDO_TIME)]}]}}
    collection(ARCHIVE_COLLECTION).update_many({"action": action, **is_late}, [{"$set": _EXPIRES}])


def was_extended(action: ObjectId, *, since: datetime) -> bool:
    """Return True if records of an action were stored after a time of the database server."""
    newer = {"action": action, "expires_at": {"$gt": since + _RETENTION}}
    return collection(ARCHIVE_COLLECTION).find_one(newer, {"_id": 1}) is not None


def slices(action: ObjectId) -> Iterator[Slice]:
    """Yield the stored records of an action, in the order in which they are restored."""
    stored = list(collection(ARCHIVE_COLLECTION).find({"action": action}, {"kind": 1}).sort("_id"))
    if stored and stored[0]["kind"] == "dead-letter":  # restored behind those that are left, so the newest first
        stored.reverse()
    for id in [one["_id"] for one in stored]:
        if (found := collection(ARCHIVE_COLLECTION).find_one({"_id": id})) is not None:
            yield Slice(id, found["kind"], [bson.decode(one, _EXACT) for one in found["records"]])


def delete(ids: Sequence[ObjectId]) -> None:
    collection(ARCHIVE_COLLECTION).delete_many({"_id": {"$in": list(ids)}})


ARCHIVE_INDEXES = {
    ARCHIVE_COLLECTION: [
        IndexModel(["action", "_id"], name="archive_of_an_action"),
        IndexModel("expires_at", name="archive_kept_until", expireAfterSeconds=0),
    ]
}
