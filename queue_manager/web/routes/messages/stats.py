"""Status of the message queue: the number of messages in each state, its settings, and the health of its server."""

from __future__ import annotations

from typing import Annotated

import msgspec
from fastapi import APIRouter, Query, Response

from queue_manager.core.settings import settings
from queue_manager.operations.message_schemas import MessageQueueStatus, QueueConfig, QueueHealth, QueueMetrics
from queue_manager.operations.messages import queue_config, queue_status
from queue_manager.operations.schemas import EmptyIsNone
from queue_manager.web.http.errors import errors
from services.message_queue import MessageState, queue_admin

MAX_STATUS_MESSAGES = 100
MAX_STATE_BYTES = 2 * 1024 * 1024  # of the messages in one state
OLDER_NAMES: dict[MessageState, str] = {
    "main": "mainQueue",
    "processing": "processingQueue",
    "dead": "deadLetterQueue",
    "acknowledged": "acknowledgedQueue",
    "archived": "archivedQueue",
}

router = APIRouter()


@router.get("/queue/status", response_model=MessageQueueStatus, responses=errors(503))
def status(
    has_messages: Annotated[
        bool | None,
        EmptyIsNone,
        Query(alias="include_messages", description="Without it, true only if no lock tokens are required."),
    ] = None,
) -> Response:
    """Return the number of messages in each state; with `include_messages` also the newest 100 in each, or 2 MiB."""
    if has_messages is None:
        has_messages = not settings().queue_require_lock_token  # clients of the older service expect them
    body = queue_status().model_dump(mode="json")
    if has_messages:
        types: set[str] = set()
        for state, name in OLDER_NAMES.items():
            messages = queue_admin().list(state, limit=MAX_STATUS_MESSAGES, max_bytes=MAX_STATE_BYTES).messages
            body[name]["messages"] = [msgspec.Raw(message.to_json().encode()) for message in messages]
            types |= {message.type for message in messages}
        body["availableTypes"] = sorted(types)
    return Response(msgspec.json.encode(body), media_type="application/json")


@router.get("/queue/metrics", responses=errors(503))
def metrics() -> QueueMetrics:
    """Return the number of messages in each state, under the field names of the older services."""
    counts = queue_admin().counts()
    return QueueMetrics(
        main_queue_size=counts.main,
        processing_queue_size=counts.processing,
        dead_letter_queue_size=counts.dead,
        acknowledged_queue_size=counts.acknowledged,
        archived_queue_size=counts.archived,
        total_acknowledged=counts.total_acknowledged,
        overdue=counts.overdue,
        priority_levels=len(counts.waiting),
        details={f"priority_{priority}_queued": waiting for priority, waiting in enumerate(counts.waiting)},
        server_time=counts.now,
    )


@router.get("/queue/config")
def config() -> QueueConfig:
    """Return the settings of the queue."""
    return queue_config()


@router.get("/health", responses=errors(503))
def health() -> QueueHealth:
    """Return 200 if the server of the queue answers and executes scripts."""
    queue_admin().counts()
    return QueueHealth()
