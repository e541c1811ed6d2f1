"""The activity log, its anomalies, and the history of a message, with the names of an older service."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Annotated, Literal, get_args

from fastapi import APIRouter, Depends, Query
from pydantic import AfterValidator, BaseModel, Field, WithJsonSchema

from queue_manager.core.json_types import Number
from queue_manager.web.http.errors import errors
from queue_manager.web.http.requests import EmptyIsNone
from queue_manager.web.routes.messages.requests import MAX_FILTER_BYTES, MAX_WHOLE, MomentOf
from services.message_queue import Json, Message, MessageState, queue_admin
from services.message_queue.activity import ActivityEntry, Anomaly, AnomalyType, QueueEventType, Severity
from services.message_queue.history import EventKind, HistoryEvent, parse_events

Action = Literal["enqueue", "dequeue", "touch", "ack", "nack", "requeue", "dlq", "move", "update", "delete", "clear"]
ACTIONS: dict[EventKind | QueueEventType, Action] = {
    "delivered": "dequeue",
    "touched": "touch",
    "requeued": "requeue",
    "dead-lettered": "dlq",
    "acknowledged": "ack",
    "replayed": "move",
    "archived": "move",
    "enqueue": "enqueue",
    "dequeue": "dequeue",
    "touch": "touch",
    "acknowledge": "ack",
    "nack": "nack",
    "requeue": "requeue",
    "move_to_dlq": "dlq",
    "move": "move",
    "update": "update",
    "delete": "delete",
    "clear": "clear",
}
SEVERITIES: tuple[Severity, ...] = ("info", "warning", "critical")
NO_PAYLOAD = Json("null")
DEFAULT_ACTIVITY_LIMIT, MAX_ACTIVITY_LIMIT = 100, 1_000

router = APIRouter(responses=errors(503))


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
    batch_size: int | None = Field(default=None, description="Messages of the operation.")
    message_age_ms: int | None = Field(default=None, description="Of a delivery.")
    processing_time_ms: int | None = Field(default=None, description="Of the delivery that this action ended.")
    payload_size_bytes: int | None = None
    anomaly: Anomaly | None = Field(default=None, description="The most severe anomaly.")


class MessageActivity(BaseModel):
    """The history of a message, oldest first; empty if there is no such message."""

    message_id: str
    history: list[Activity]


class ActivityPagination(BaseModel):
    """The position of a page in the log."""

    total: int = Field(description="Matching entries among those that are kept.")
    limit: int
    offset: int
    has_more: bool


class ActivityPage(BaseModel):
    """A page of the activity log, newest first."""

    logs: list[Activity]
    pagination: ActivityPagination


class AnomalySummary(BaseModel):
    """The number of anomalies in the page."""

    total: int
    by_type: dict[AnomalyType, int]
    by_severity: dict[Severity, int]


class Anomalies(BaseModel):
    """Entries with an anomaly."""

    anomalies: list[Activity]
    summary: AnomalySummary
    pagination: ActivityPagination


class ConsumerStats(BaseModel):
    """The deliveries to a consumer in the events that are kept."""

    dequeue_count: int
    last_dequeue: Number


class ConsumersStats(BaseModel):
    """By the consumer's name; with `consumer_id`, those of one consumer, or null."""

    stats: dict[str, ConsumerStats] | ConsumerStats | None


ActivityLimit = Annotated[
    Annotated[int, Field(ge=1, le=MAX_ACTIVITY_LIMIT)] | None,
    EmptyIsNone,
    Query(description=f"Default: {DEFAULT_ACTIVITY_LIMIT}."),
]


def checked_actions(text: str) -> str:
    """Return the text if it is a list of actions. Raises ValueError."""
    if set(text.split(",")) <= set(get_args(Action)):
        return text
    raise ValueError(f"must be a comma-separated list of: {', '.join(get_args(Action))}")


_ANY_ACTION = f"({'|'.join(get_args(Action))})"
ActionList = Annotated[
    Annotated[
        str,
        AfterValidator(checked_actions),
        WithJsonSchema({"type": "string", "pattern": f"^{_ANY_ACTION}(,{_ANY_ACTION})*$"}),
    ]
    | None,
    EmptyIsNone,
    Query(description="Comma-separated list of actions."),
]
IdText = Annotated[Annotated[str, Field(max_length=MAX_FILTER_BYTES)] | None, EmptyIsNone]


def entries_of(
    action: ActionList = None,
    start: Annotated[MomentOf, Query(alias="start_time")] = None,
    end: Annotated[MomentOf, Query(alias="end_time")] = None,
) -> list[ActivityEntry]:
    """Return the entries with these actions between two times, newest first."""
    actions = action and action.split(",")
    return [
        entry
        for entry in reversed(queue_admin().activity())
        if (not actions or ACTIONS[entry.type] in actions)
        and (start is None or entry.at >= start)
        and (end is None or entry.at <= end)
    ]


Entries = Annotated[list[ActivityEntry], Depends(entries_of)]


@router.get("/queue/activity")
def activity(
    entries: Entries,
    message_id: IdText = None,
    consumer_id: IdText = None,
    has_anomaly: Annotated[bool | None, EmptyIsNone] = None,
    anomaly_type: Annotated[AnomalyType | None, EmptyIsNone] = None,
    limit: ActivityLimit = None,
    offset: Annotated[Annotated[int, Field(ge=0, le=MAX_WHOLE)] | None, EmptyIsNone] = None,
) -> ActivityPage:
    """Return what happened in the queue, newest first, as far back as the events are kept (about 10,000)."""
    found = [
        entry
        for entry in entries
        if (message_id is None or entry.message_id == message_id.strip())
        and (consumer_id is None or entry.event.consumer_id == consumer_id.strip())
        and (has_anomaly is None or has_anomaly == (entry.anomaly is not None))
        and (anomaly_type is None or (entry.anomaly is not None and entry.anomaly.type == anomaly_type))
    ]
    pagination = _pagination(found, limit, offset or 0)
    return ActivityPage(logs=_page(found, pagination), pagination=pagination)


@router.get("/queue/activity/anomalies")
def anomalies(
    entries: Entries,
    severity: Annotated[Severity | None, EmptyIsNone] = None,
    type: Annotated[AnomalyType | None, EmptyIsNone] = None,
    limit: ActivityLimit = None,
    sort_by: Literal["timestamp", "severity", "type", "action"] = "timestamp",
    sort_order: Literal["asc", "desc"] = "desc",
) -> Anomalies:
    """Return the entries with an anomaly, as far back as the events are kept."""
    found = [
        (entry, anomaly)
        for entry in reversed(entries)
        if (anomaly := entry.anomaly) is not None
        and (severity is None or anomaly.severity == severity)
        and (type is None or anomaly.type == type)
    ]
    if sort_by == "severity":
        found.sort(key=lambda one: SEVERITIES.index(one[1].severity))
    elif sort_by == "type":
        found.sort(key=lambda one: one[1].type)
    elif sort_by == "action":
        found.sort(key=lambda one: ACTIONS[one[0].type])
    if sort_order == "desc":
        found.reverse()
    pagination = _pagination(found, limit, 0)
    shown = found[: pagination.limit]
    by_severity = Counter(anomaly.severity for _, anomaly in shown)
    return Anomalies(
        anomalies=_page([entry for entry, _ in found], pagination),
        summary=AnomalySummary(
            total=len(shown),
            by_type=Counter(anomaly.type for _, anomaly in shown),
            by_severity={severity: by_severity[severity] for severity in SEVERITIES},
        ),
        pagination=pagination,
    )


@router.get("/queue/activity/consumers")
def consumers(consumer_id: IdText = None) -> ConsumersStats:
    """Return the deliveries to each consumer that gave its name, as far back as the events are kept."""
    stats: dict[str, ConsumerStats] = {}
    for entry in queue_admin().activity():
        name = entry.event.consumer_id
        if entry.type == "dequeue" and name is not None:
            count = stats[name].dequeue_count if name in stats else 0
            stats[name] = ConsumerStats(dequeue_count=count + 1, last_dequeue=entry.at)
    return ConsumersStats(stats=stats.get(consumer_id) if consumer_id else stats)


@router.get("/queue/activity/message/{id:path}", responses=errors(404))
def of_message(id: str) -> MessageActivity:
    """Return the history of a message in the form of the older service; see also `GET /api/queue/message/{id}`."""
    message = queue_admin().find(id)
    return MessageActivity(message_id=id, history=list(_history(message)) if message else [])


def _pagination(found: Sequence[object], limit: int | None, offset: int) -> ActivityPagination:
    limit = limit or DEFAULT_ACTIVITY_LIMIT
    return ActivityPagination(total=len(found), limit=limit, offset=offset, has_more=offset + limit < len(found))


def _page(found: Sequence[ActivityEntry], page: ActivityPagination) -> list[Activity]:
    """Return the entries of a page, with what is known of their messages now."""
    shown = found[page.offset : page.offset + page.limit]
    ids = dict.fromkeys(entry.message_id for entry in shown if entry.message_id is not None)
    messages = {message.id: _without_payload(message) for _, message in queue_admin().locate([*ids])}
    return [_logged(entry, *messages.get(entry.message_id or "", (None, None))) for entry in shown]


def _without_payload(message: Message) -> tuple[Message, int]:
    """Return the message and the bytes of its payload: the payloads of a page would have up to 1 GiB."""
    return replace(message, payload_json=NO_PAYLOAD), len(message.payload_json.encode())


def _logged(entry: ActivityEntry, message: Message | None, payload_size: int | None) -> Activity:
    event = entry.event
    history = parse_events(message.packed_events) if message else ()
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


def _history(message: Message) -> Iterator[Activity]:
    yield _activity(message, "enqueue", message.fields["created_at"])
    for event in parse_events(message.packed_events):
        yield _activity(message, ACTIONS[event.event], event.at, event)


def _activity(message: Message, action: Action, at: float, event: HistoryEvent | None = None) -> Activity:
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
