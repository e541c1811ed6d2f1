"""The activity log of the message queue, with the names of an older service."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Literal, get_args

from pydantic import BaseModel, Field

from queue_manager.core.json_types import Number
from services.message_queue import Json, Message, MessageState, queue_admin
from services.message_queue.activity import ActivityEntry, Anomaly, AnomalyType, QueueEventType
from services.message_queue.messages import EventKind, HistoryEvent

Action = Literal["enqueue", "dequeue", "touch", "ack", "nack", "requeue", "dlq", "move", "update", "delete", "clear"]
ACTIONS: dict[EventKind | QueueEventType | Action, Action] = {
    **{action: action for action in get_args(Action)},
    "delivered": "dequeue",
    "touched": "touch",
    "requeued": "requeue",
    "dead-lettered": "dlq",
    "acknowledged": "ack",
    "replayed": "move",
    "archived": "move",
    "acknowledge": "ack",
    "move_to_dlq": "dlq",
}
DEFAULT_ACTIVITY_LIMIT, MAX_ACTIVITY_LIMIT = 100, 1_000
NO_PAYLOAD = Json("null")


class Activity(BaseModel):
    """What happened to a message. Members that do not apply, or are not known any more, are null."""

    log_id: str = Field(description="The action and its time, or its position in the log.")
    message_id: str | None
    message_type: str | None
    message_created_at: Number | None
    priority: int | None
    action: Action
    timestamp: Number
    consumer_id: str | None
    attempt_count: int | None
    error_reason: str | None
    source_queue: MessageState | None = None
    dest_queue: MessageState | None = None
    queue: str | None = Field(default=None, description="The queue that was cleared; `all` for all queues.")
    triggered_by: str | None = None
    batch_size: int | None = Field(default=None, description="The number of messages of the operation.")
    message_age_ms: int | None = Field(
        default=None, description="The age of the message at a delivery, in milliseconds."
    )
    processing_time_ms: int | None = Field(
        default=None, description="The duration of the delivery that this action ended, in milliseconds."
    )
    payload_size_bytes: int | None = None
    anomaly: Anomaly | None = Field(default=None, description="The most severe anomaly.")


class ActivityPagination(BaseModel):
    """The position of a page in the log."""

    total: int = Field(description="The number of matching entries that are kept.")
    limit: int
    offset: int
    has_more: bool


class ActivityPage(BaseModel):
    """A page of the activity log, newest first."""

    logs: list[Activity]
    pagination: ActivityPagination


class MessageActivity(BaseModel):
    """The history of a message, oldest first; empty if there is no such message."""

    message_id: str
    history: list[Activity]


def checked_actions(text: str) -> str:
    """Return the text if it is a list of actions. Raises ValueError."""
    if set(text.split(",")) <= set(get_args(Action)):
        return text
    raise ValueError(f"must be a comma-separated list of: {', '.join(get_args(Action))}")


def entries_of(actions: str | None, start: float | None, end: float | None) -> list[ActivityEntry]:
    """Return the entries with any of these actions, separated by commas, between two times, newest first."""
    wanted = actions and actions.split(",")
    return [
        entry
        for entry in reversed(queue_admin().activity())
        if (not wanted or ACTIONS[entry.type] in wanted)
        and (start is None or entry.at >= start)
        and (end is None or entry.at <= end)
    ]


def activity_page(
    entries: Sequence[ActivityEntry],
    *,
    message_id: str | None,
    consumer_id: str | None,
    has_anomaly: bool | None,
    anomaly_type: AnomalyType | None = None,
    limit: int | None,
    offset: int,
) -> ActivityPage:
    """Return a page of those entries that match."""
    found = [
        entry
        for entry in entries
        if (message_id is None or entry.message_id == message_id.strip())
        and (consumer_id is None or entry.event.consumer_id == consumer_id.strip())
        and (has_anomaly is None or has_anomaly == (entry.anomaly is not None))
        and (anomaly_type is None or (entry.anomaly is not None and entry.anomaly.type == anomaly_type))
    ]
    return page_of(found, limit, offset)


def page_of(found: Sequence[ActivityEntry], limit: int | None, offset: int) -> ActivityPage:
    """Return a page of entries, with what is known of their messages now."""
    limit = limit or DEFAULT_ACTIVITY_LIMIT
    shown = found[offset : offset + limit]
    ids = dict.fromkeys(entry.message_id for entry in shown if entry.message_id is not None)
    messages = {message.id: _without_payload(message) for _, message in queue_admin().locate([*ids])}
    return ActivityPage(
        logs=[_activity_of(entry, *messages.get(entry.message_id or "", (None, None))) for entry in shown],
        pagination=ActivityPagination(
            total=len(found), limit=limit, offset=offset, has_more=offset + limit < len(found)
        ),
    )


def _without_payload(message: Message) -> tuple[Message, int]:
    """Return the message and the bytes of its payload: the payloads of a page would have up to 1 GiB."""
    return replace(message, payload_json=NO_PAYLOAD), len(message.payload_json.encode())


def _activity_of(entry: ActivityEntry, message: Message | None, payload_size: int | None) -> Activity:
    event = entry.event
    history = message.events() if message else ()
    took = entry.processing_seconds
    return Activity(
        log_id=entry.log_id,
        message_id=entry.message_id,
        message_type=message.type if message else None,
        message_created_at=message.fields["created_at"] if message else None,
        priority=message.priority if message else None,
        action=ACTIONS[entry.type],
        timestamp=entry.at,
        consumer_id=event.consumer_id,
        attempt_count=event.attempt,
        error_reason=next((past.reason for past in history if past.at == entry.at and past.reason), None),
        source_queue=event.source or None,
        dest_queue=event.target,
        queue=event.queue,
        triggered_by=event.triggered_by,
        batch_size=event.count,
        message_age_ms=event.age_ms,
        processing_time_ms=None if took is None else round(took * 1000),
        payload_size_bytes=payload_size,
        anomaly=entry.anomaly,
    )


def history_of(message: Message) -> Iterator[Activity]:
    """Yield what happened to a message, oldest first."""
    yield _in_history(message, "enqueue", message.fields["created_at"])
    for event in message.events():
        yield _in_history(message, ACTIONS[event.event], event.at, event)


def _in_history(message: Message, action: Action, at: float, event: HistoryEvent | None = None) -> Activity:
    return Activity(
        log_id=f"{action}-{at:.3f}",
        message_id=message.id,
        message_type=message.type,
        message_created_at=message.fields["created_at"],
        priority=message.priority,
        action=action,
        timestamp=at,
        consumer_id=event.consumer_id if event else None,
        attempt_count=event.attempt if event else None,
        error_reason=event.reason if event else None,
    )
