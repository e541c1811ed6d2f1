"""Marks in the charts: collection `qm_marks`, what happened at a time and may explain a change.

    {_id, kind: "deployment", "leader" or "outage", at, until?, text, by?}

Guarantee: a leader and an outage are marked once, whichever process notices them.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Literal

from bson import ObjectId
from pydantic import Field, TypeAdapter, with_config
from pymongo import DESCENDING, IndexModel

from models.database import Document, collection
from models.malformed import readable
from queue_manager.core.clock import hours, minutes, unix_ms
from queue_manager.core.json_types import ALWAYS_PRESENT, Moment

MARKS_COLLECTION = "qm_marks"
MARK_RETENTION = hours(92 * 24)
MAX_TEXT_LENGTH = 200  # characters
MAX_MARKS = 1_000  # in a response
MAX_LEAD = minutes(1)  # by which the stored time may be later than the time that this process has read
BY_MARK_TIME = "marks_by_time"
LAST_SEEN = "last_seen"
"""The id of the document with the time of the last scan."""
MarkKind = Literal["deployment", "leader", "outage"]


@with_config(ALWAYS_PRESENT)
@dataclass(frozen=True, kw_only=True)
class ChartMark:
    """Something that happened and may explain a change."""

    kind: MarkKind
    at: Moment
    until: Annotated[Moment | None, Field(description="Its end, for what lasted.")] = None
    text: str
    by: Annotated[str | None, Field(description="Who made it; null for what Queue Manager noticed.")] = None


_MARK = TypeAdapter(ChartMark)


def add(mark: ChartMark) -> None:
    """Store a mark. A leader or an outage that is stored already is not changed."""
    known_by = ObjectId() if mark.kind == "deployment" else f"{mark.kind}/{unix_ms(mark.at)}"
    fields = {name: value for name, value in vars(mark).items() if value is not None}
    collection(MARKS_COLLECTION).update_one({"_id": known_by}, {"$setOnInsert": fields}, upsert=True)


def read(since: datetime) -> list[ChartMark]:
    """Return the last `MAX_MARKS` marks of what happened, or ended, after a time, oldest first."""
    after = {"$or": [{"at": {"$gte": since}}, {"until": {"$gte": since}}]}
    newest = collection(MARKS_COLLECTION).find(after, sort=[("at", DESCENDING)], limit=MAX_MARKS, hint=BY_MARK_TIME)
    return list(readable(newest, read_mark, of=MARKS_COLLECTION))[::-1]


def record_scan(now: datetime) -> None:
    """Record that a scan ran."""
    # A slightly later time is that of a faster process. A much later one, or a malformed one, would hide every outage.
    is_later = {"$and": [{"$gt": ["$seen_at", now]}, {"$lte": ["$seen_at", now + MAX_LEAD]}]}
    change = [{"$set": {"seen_at": {"$cond": [is_later, "$seen_at", now]}}}]
    collection(MARKS_COLLECTION).update_one({"_id": LAST_SEEN}, change, upsert=True)


def current_outage(now: datetime, *, gap: timedelta) -> ChartMark | None:
    """Return the present outage, if the last scan ran longer ago than `gap`."""
    last = collection(MARKS_COLLECTION).find_one({"_id": LAST_SEEN}) or {}
    seen_at = last.get("seen_at")
    if not isinstance(seen_at, datetime):
        return None
    return ChartMark(kind="outage", at=seen_at, until=now, text="No scan was recorded") if now - seen_at > gap else None


def read_mark(found: Document) -> ChartMark:
    return _MARK.validate_python({name: found.get(name) for name in ChartMark.__dataclass_fields__})


MARK_INDEXES = {
    MARKS_COLLECTION: [IndexModel("at", name=BY_MARK_TIME, expireAfterSeconds=int(MARK_RETENTION.total_seconds()))]
}
