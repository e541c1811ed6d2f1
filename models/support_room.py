"""Support rooms: `support_rooms`, written by the product; here only their snooze is touched.

    {account_id, status: open | snoozed | closed, assigned_to, snooze_time: {time, set_by, set_at},
     snooze_queue_in_progress, unsnooze_error}                                          the product's fields
    {claim, unsnoozed_at, unsnoozed_by_task, unsnooze_failures, unsnooze_retry_at}      ours

A room is due when `snooze_time.time` has come. Everything of ours belongs to one `snooze_time.time`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from pymongo import ASCENDING, IndexModel, ReturnDocument
from pymongo.collection import Collection

from models.claimable import A_DATE, Claimable
from models.claims import Claims, doubled
from models.database import Document, collection
from queue_manager.core.clock import hours, minutes, seconds
from queue_manager.core.retry import doubling
from queue_manager.core.settings import settings

NAME = "support_rooms"
DUE = "snooze_time.time"
COOL_OFF, LONGEST_COOL_OFF = minutes(1), hours(1)
SHOWN_IDS = 20
WOKEN = {"account_id": 1, "status": 1, "unsnoozed_at": 1}
SHOWN = ("account_id", "unsnooze_error", "unsnooze_failures")
"""What a list of rooms shows beside their claim."""

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
"""A snooze that is not a document, or whose `time` is not a date, or one before the epoch: it can never fall due."""


def rooms() -> Collection[Document]:
    return collection(NAME)


def claims() -> Claims:
    return Claims(
        collection=rooms,
        of=Claimable(due_field=DUE, flag_field="snooze_queue_in_progress", rest_field="unsnooze_retry_at"),
        history=("unsnooze_error", "unsnooze_failures", "unsnooze_retry_at"),
        lease=seconds(settings().qm_lease_seconds),
    )


def indexes() -> list[IndexModel]:
    malformed = IndexModel([(DUE, ASCENDING)], name="malformed_snooze", partialFilterExpression=MALFORMED)
    return [*claims().of.indexes(), malformed]


def find(room_id: Any) -> Document | None:
    """Return what is needed to judge a room that could not be woken."""
    fields = {
        "account_id": 1,
        "status": 1,
        "snooze_time": 1,
        "unsnoozed_at": 1,
        "unsnoozed_by_task": 1,
        "claim": 1,
    }
    return rooms().find_one({"_id": room_id}, fields)


def wake(room_id: Any, *, snoozed_until: datetime | None, task_id: str, now: datetime) -> Document | None:
    """End the snooze of one room if it has ended and is still the one meant: one atomic write.

    Args:
        snoozed_until: the snooze that is meant; `None`: whichever the room has.

    Returns:
        `{account_id, status, unsnoozed_at}` as written; `None` when the room is not in that state.
    """
    return rooms().find_one_and_update(
        {"_id": room_id, **_ended(snoozed_until, now)},
        _woken({"$literal": task_id}, now),
        projection=WOKEN,
        return_document=ReturnDocument.AFTER,
        hint="_id_",
    )


def wake_many(room_ids: Sequence[Any], tokens: Sequence[str], *, now: datetime) -> list[Document]:
    """End the snoozes of rooms for which one of these tokens claimed them, as `wake` does: one write and one read.

    Returns:
        `{_id, account_id, status, unsnoozed_at, unsnoozed_by_task}` of each that one of these tokens has woken now,
        even if it was snoozed again since; or at an earlier delivery, if it was not.
    """
    these = {"_id": {"$in": room_ids}}
    is_meant = {"$expr": {"$eq": ["$claim.due_at", "$snooze_time.time"]}}
    held = {**these, "claim.token": {"$in": tokens}, **_ended(None, now), **is_meant}
    rooms().update_many(held, _woken("$claim.token", now), hint="_id_")
    now_or_before = [{"unsnoozed_at": now}, {"unsnoozed_at": A_DATE, "snooze_time": {"$exists": False}}]
    woken = {**these, "unsnoozed_by_task": {"$in": tokens}, "$or": now_or_before}
    return list(rooms().find(woken, {**WOKEN, "unsnoozed_by_task": 1}, hint="_id_"))


def _woken(task_id: Any, now: datetime) -> list[Document]:
    """Return the update that opens a room; `task_id` is an expression."""
    return [
        {
            "$set": {
                "status": {"$cond": [{"$eq": ["$status", "snoozed"]}, "open", "$status"]},
                "snooze_queue_in_progress": False,
                "unsnoozed_at": now,
                "unsnoozed_by_task": task_id,
            }
        },
        {"$unset": ["snooze_time", "claim", *claims().history]},
    ]


def cool_off(room_id: Any, *, snoozed_until: datetime | None, token: str, error: str, now: datetime) -> Document | None:
    """Record that all attempts at one snooze failed; the room may be claimed again after a growing pause.

    Applies only to the snooze that is meant, once it has ended, and not while another token holds the room.

    Returns:
        `{unsnooze_failures, unsnooze_retry_at}` as written, or `None`.
    """
    failures: Document = {"$ifNull": ["$unsnooze_failures", 0]}
    retry_at = {"$add": [now, doubled(COOL_OFF, "$$failures", cap=LONGEST_COOL_OFF)]}
    # Stages: a void history goes first, so that the count and the pause of a new snooze start from none.
    return rooms().find_one_and_update(
        {
            "_id": room_id,
            **_ended(snoozed_until, now),
            "$or": [{"claim.held": {"$ne": True}}, {"claim.token": token}],
        },
        [
            {"$set": claims().kept_history()},
            {"$set": {"unsnooze_retry_at": {"$let": {"vars": {"failures": failures}, "in": retry_at}}}},
            {
                "$set": {
                    "snooze_queue_in_progress": False,
                    "unsnooze_error": {"$literal": error},
                    "unsnooze_failures": {"$add": [failures, 1]},
                    "claim": claims().given_back("$unsnooze_retry_at"),
                }
            },
        ],
        projection={"unsnooze_failures": 1, "unsnooze_retry_at": 1},
        return_document=ReturnDocument.AFTER,
        hint="_id_",
    )


def pause_after(failures: int) -> timedelta:
    """Return how long a room rests that failed so often, as `cool_off` works it out."""
    return doubling(COOL_OFF, failures - 1, cap=LONGEST_COOL_OFF)


def _ended(snoozed_until: datetime | None, now: datetime) -> Document:
    """Return the condition that the snooze has ended, and is the one meant unless that is `None`."""
    return claims().of.dated({"$lte": now} if snoozed_until is None else {"$lte": now, "$eq": snoozed_until})


@dataclass(frozen=True, kw_only=True)
class Malformed:
    """How many rooms have a malformed snooze, and the first of their ids."""

    count: int
    ids: list[Any]


def malformed() -> Malformed:
    found = rooms().find(MALFORMED, {"_id": 1}, hint="malformed_snooze", limit=SHOWN_IDS)
    return Malformed(
        count=rooms().count_documents(MALFORMED, hint="malformed_snooze"), ids=[room["_id"] for room in found]
    )


def collections() -> dict[str, list[IndexModel]]:
    """Return what this module keeps, for `migrate`."""
    return {NAME: indexes()}
