"""Status of the message queue: the number of messages in each state, its settings, and the health of its server."""

from __future__ import annotations

from typing import Annotated

import msgspec
from fastapi import APIRouter, Query, Response

from queue_manager.core.settings import settings
from queue_manager.web.http.errors import errors
from queue_manager.web.http.requests import EmptyIsNone
from queue_manager.web.routes.messages.requests import whole
from queue_manager.web.routes.messages.response_schemas import (
    AcknowledgedLength,
    LengthsByOlderNames,
    MessageQueueStatus,
    QueueConfig,
    QueueHealth,
    QueueLength,
    QueueMetrics,
    QueueTotals,
)
from services.message_queue import MessageState, QueueCounts, queue_admin

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
    body = _status().model_dump(mode="json")
    if has_messages:
        types: set[str] = set()
        for state, name in OLDER_NAMES.items():
            messages = queue_admin().list(state, limit=MAX_STATUS_MESSAGES, max_bytes=MAX_STATE_BYTES).messages
            body[name]["messages"] = [msgspec.Raw(message.to_json().encode()) for message in messages]
            types |= {message.type for message in messages}
        body["availableTypes"] = sorted(types)
    return Response(msgspec.json.encode(body), media_type="application/json")


def _status() -> MessageQueueStatus:
    counts = queue_admin().counts()
    return MessageQueueStatus(
        pauses=queue_admin().pauses(),
        main=counts.main,
        processing=counts.processing,
        dead=counts.dead,
        acknowledged=counts.acknowledged,
        archived=counts.archived,
        priorities={str(priority): waiting for priority, waiting in enumerate(counts.waiting)},
        total_acknowledged=counts.total_acknowledged,
        overdue=counts.overdue,
        first_deadline_at=counts.first_deadline_at,
        server_time=counts.now,
        **dict(_by_older_names(counts)),
    )


def _by_older_names(counts: QueueCounts) -> LengthsByOlderNames:
    name, total = settings().queue_name, counts.total_acknowledged
    return LengthsByOlderNames(
        mainQueue=QueueLength(name=name, length=counts.main),
        processingQueue=QueueLength(name="processing_pending", length=counts.processing),
        deadLetterQueue=QueueLength(name=f"{name}_dlq", length=counts.dead),
        acknowledgedQueue=AcknowledgedLength(name=f"{name}_acknowledged", length=counts.acknowledged, total=total),
        archivedQueue=QueueLength(name=f"{name}_archived", length=counts.archived),
        metadata=QueueTotals(totalProcessed=total, totalFailed=counts.total_dead_lettered, totalAcknowledged=total),
    )


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
    chosen = settings()
    return QueueConfig(
        ack_timeout_seconds=whole(chosen.ack_timeout_seconds),
        max_attempts=chosen.max_attempts,
        max_priority_levels=chosen.max_priority_levels,
        max_payload_bytes=chosen.queue_max_payload_bytes,
        require_lock_token=chosen.queue_require_lock_token,
        overdue_check_interval_ms=chosen.overdue_check_interval_ms,
        requeue_batch_size=chosen.requeue_batch_size,
    )


@router.get("/health", responses=errors(503))
def health() -> QueueHealth:
    """Return 200 if the server of the queue answers and executes scripts."""
    queue_admin().counts()
    return QueueHealth()
