"""Status of the message queue: the number of messages in each state, its settings, and the health of its server."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter
from pydantic import BaseModel, Field

from queue_manager.core.settings import settings
from queue_manager.web.http.errors import errors
from queue_manager.web.http.responses import Number
from queue_manager.web.routes.messages.requests import whole
from queue_manager.web.routes.messages.schemas import QueueServerTime
from services.message_queue import queue_admin

router = APIRouter()


class MessageQueueStatus(BaseModel):
    """The number of messages in each state."""

    main: int
    processing: int
    dead: int
    acknowledged: int
    archived: int
    priorities: dict[str, int] = Field(description="Waiting messages by priority.")
    total_acknowledged: int = Field(description="Ever; `acknowledged` counts those that are kept.")
    overdue: int = Field(description="Messages in processing whose deadline has passed.")
    first_deadline_at: Number | None
    server_time: QueueServerTime


class QueueMetrics(BaseModel):
    """The number of messages in each state, under the field names of the older services."""

    main_queue_size: int
    processing_queue_size: int
    dead_letter_queue_size: int
    acknowledged_queue_size: int
    archived_queue_size: int
    total_acknowledged: int
    overdue: int
    server_time: QueueServerTime


class QueueConfig(BaseModel):
    """The settings of the queue."""

    ack_timeout_seconds: Number
    max_attempts: int
    max_priority_levels: int
    max_payload_bytes: int
    require_lock_token: bool
    overdue_check_interval_ms: int
    requeue_batch_size: int


class QueueHealth(BaseModel):
    """The queue's server answers."""

    status: Literal["OK"] = "OK"


@router.get("/queue/status", responses=errors(503))
def status() -> MessageQueueStatus:
    """Return the number of messages in each state."""
    counts = queue_admin().counts()
    return MessageQueueStatus(
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
