"""`GET /api/queue/activity/message/{id}`: the history of a message, in the form of an older service."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from fastapi import APIRouter
from pydantic import BaseModel, Field

from queue_manager.web.http.errors import errors
from queue_manager.web.http.responses import Number
from services.message_queue import Message, queue_admin
from services.message_queue.history import EventKind, MessageEvent, parse_events

Action = Literal["enqueue", "dequeue", "touch", "requeue", "dlq", "ack", "move"]
ACTIONS: dict[EventKind, Action] = {
    "delivered": "dequeue",
    "touched": "touch",
    "requeued": "requeue",
    "dead-lettered": "dlq",
    "acknowledged": "ack",
    "replayed": "move",
    "archived": "move",
}

router = APIRouter(responses=errors(404, 503))


class Activity(BaseModel):
    """What happened to a message. Members that do not apply are null."""

    log_id: str = Field(description="The action and its time.")
    message_id: str
    message_type: str
    message_created_at: Number
    priority: int
    action: Action
    timestamp: Number
    consumer_id: str | None
    attempt_count: int | None
    error_reason: str | None


class MessageActivity(BaseModel):
    """The history of a message, oldest first; empty if there is no such message."""

    message_id: str
    history: list[Activity]


@router.get("/queue/activity/message/{id:path}")
def of_message(id: str) -> MessageActivity:
    """Return the history of a message in the form of the older service; see also `GET /api/queue/message/{id}`."""
    message = queue_admin().find(id)
    return MessageActivity(message_id=id, history=list(_history(message)) if message else [])


def _history(message: Message) -> Iterator[Activity]:
    yield _activity(message, "enqueue", message.fields["created_at"])
    for event in parse_events(message.packed_events):
        yield _activity(message, ACTIONS[event.event], event.at, event)


def _activity(message: Message, action: Action, at: float, event: MessageEvent | None = None) -> Activity:
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
