"""The part of a room's timeline that follows from its own fields."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from models.database import Document, value_at
from models.document_id import shown_id
from queue_manager.core.wording import sentence, when
from queue_manager.explanation import TimelineEvent


def without_time(room: Document) -> str | None:
    """Return what is wrong with a snooze that has no time, or `None`."""
    snooze = room.get("snooze_time")
    is_without = isinstance(snooze, dict) and snooze.get("time") is None
    return "its snooze_time is malformed: it has no time" if is_without else None


def describe_awake(room: Document, now: datetime) -> tuple[str, str]:
    """Return the state of a room that is not snoozed, and a sentence about it."""
    status, woken_at = str(room.get("status", "without a status")), room.get("unsnoozed_at")
    if not isinstance(woken_at, datetime):
        return status, sentence("not snoozed", f"its status is {status}")
    by = f"woken by the task {room['unsnoozed_by_task']}" if "unsnoozed_by_task" in room else ""
    begin = "Open since" if status == "open" else f"Its status is {status}; its last snooze ended at"
    return status, sentence(f"{begin} {when(woken_at, now)}", by)


def past(room: Document) -> Iterator[TimelineEvent]:
    """Yield when it was snoozed, and when its last snooze ended."""
    set_at, set_by = value_at(room, "snooze_time.set_at"), value_at(room, "snooze_time.set_by")
    if isinstance(set_at, datetime):
        yield TimelineEvent(at=set_at, event="Snoozed", detail="" if set_by is None else f"by {shown_id(set_by)}")
    if isinstance(woken_at := room.get("unsnoozed_at"), datetime):
        yield TimelineEvent(at=woken_at, event="Woken", task_id=room.get("unsnoozed_by_task"))
