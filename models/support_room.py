"""Support rooms: collection `support_rooms`, written by the product; this module handles only their snooze.

    {account_id, status: open | snoozed | closed, assigned_to, snooze_time: {time, set_by, set_at},
     snooze_queue_in_progress, unsnooze_error}                                          the product's fields
    {unsnoozed_at, unsnoozed_by_task, unsnooze_failures, unsnooze_retry_at}             ours

A room is due when `snooze_time.time` has come. Our fields apply to one `snooze_time.time`.
"""

from __future__ import annotations

from datetime import datetime

from pymongo import IndexModel
from pymongo.collection import Collection

from models.database import Document, collection
from models.due_documents import A_DATE
from models.listing import Sample, sample

ROOMS_COLLECTION = "support_rooms"
DUE = "snooze_time.time"
FLAG = "snooze_queue_in_progress"
HISTORY = ("unsnooze_error", "unsnooze_failures", "unsnooze_retry_at")

_NO_DATES = [
    *("string", "double", "int", "long", "decimal", "bool", "array", "timestamp", "objectId", "binData", "regex"),
    *("javascript", "javascriptWithScope", "symbol", "dbPointer", "undefined", "minKey", "maxKey"),
]
MALFORMED: Document = {
    "$or": [
        {DUE: {"$type": [*_NO_DATES, "object", "null"]}},
        {"snooze_time": {"$type": [*_NO_DATES, "date"]}},
        {"snooze_time": {"$type": "object"}, DUE: None},
        {DUE: {"$type": "date", "$lt": A_DATE["$gte"]}},
    ]
}
"""A snooze that can never fall due: not a document, or its `time` is not a date since the epoch."""


def rooms() -> Collection[Document]:
    return collection(ROOMS_COLLECTION)


def indexes() -> list[IndexModel]:
    return [IndexModel(DUE, name="malformed_snooze", partialFilterExpression=MALFORMED)]


def malformed() -> Sample:
    """Return the number of rooms with a malformed snooze, and the first of their ids."""
    return sample(rooms(), MALFORMED, index="malformed_snooze")


def count_malformed_unindexed() -> int:
    """Count rooms with a malformed snooze by reading the whole collection, before the index exists."""
    return rooms().count_documents(MALFORMED)


def count_flagged(until: datetime) -> int:
    """Count due rooms with the flag, which another program may have set, by reading the whole collection."""
    return rooms().count_documents({DUE: {**A_DATE, "$lte": until}, FLAG: True})
