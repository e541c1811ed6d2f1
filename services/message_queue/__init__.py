"""A message queue on Redis Streams: a message that was taken must be acknowledged before its deadline, or comes back.

    queue = message_queue()
    queue.enqueue("send_mail", {"to": "ada@example.org"}, priority=5)
    with queue.receive(timeout=30) as message:
        ...  # acknowledged at the end of the block, given back when it raises

`queue_admin()` lists, moves, replays, changes and deletes messages; `requeue_overdue()` is what the schedule does.

Guarantee: a message is in one place, and is delivered until it is acknowledged or out of attempts; what is out of
attempts is kept as a dead letter. Producers and consumers of other kinds may use the same streams.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import redis

from queue_manager.core.clock import seconds
from queue_manager.core.per_process import PerProcess
from queue_manager.core.redis_client import make_client
from queue_manager.core.settings import Settings, settings
from queue_manager.system import System, SystemStats
from services.message_queue.admin import Counts, Filter, Page, Place, QueueAdmin
from services.message_queue.arrivals import BLOCK, Arrivals
from services.message_queue.errors import (
    InvalidMessage,
    LockLost,
    MessageHeld,
    MessageTooLarge,
    QueueFull,
    QueueUnavailable,
    UnknownMessage,
)
from services.message_queue.messages import Bounds, Json, Message, NewMessage
from services.message_queue.queue import Defaults, Enqueued, MessageQueue, Touched
from services.message_queue.requeue import Sweeper, Swept, streams
from services.message_queue.scripts import Scripts
from services.problems import MAX_IDS, counted, ids

__all__ = [
    "Counts",
    "Enqueued",
    "Filter",
    "InvalidMessage",
    "Json",
    "LockLost",
    "Message",
    "MessageHeld",
    "MessageQueue",
    "MessageTooLarge",
    "NewMessage",
    "Page",
    "Place",
    "QueueAdmin",
    "QueueFull",
    "QueueUnavailable",
    "Sweeper",
    "Swept",
    "Touched",
    "UnknownMessage",
    "message_queue",
    "queue_admin",
    "requeue_overdue",
    "server_url",
    "stats",
    "sweeper",
    "system",
]


def server_url(chosen: Settings | None = None) -> str:
    """Return the address of the queue's server."""
    chosen = chosen or settings()
    return chosen.qm_queue_redis_url or chosen.redis_url


def _waiting_client() -> redis.Redis:
    return make_client(server_url(), socket_timeout=BLOCK + 3)


_scripts = PerProcess(lambda: Scripts(make_client(server_url()), queue=settings().queue_name))
_arrivals = PerProcess(
    lambda: Arrivals(_waiting_client, streams(settings().queue_name, settings().max_priority_levels))
)


def message_queue(*, plan_sweep: Callable[[timedelta], object] | None = None) -> MessageQueue:
    """Return the queue for producers and consumers. Opens nothing until it is used.

    Args:
        plan_sweep: is told in how long a sweep is needed for a deadline before the next periodic one. Without it such
            a message may be requeued late, by up to one period.
    """
    chosen = settings()
    return MessageQueue(
        _scripts(),
        _arrivals(),
        bounds=_bounds(chosen),
        defaults=Defaults(ack_timeout=seconds(chosen.ack_timeout_seconds), max_attempts=chosen.max_attempts),
        needs_token=chosen.queue_require_lock_token,
        sweep_within=system.period(chosen),
        plan_sweep=plan_sweep,
    )


def queue_admin() -> QueueAdmin:
    """Return the queue for people."""
    return QueueAdmin(_scripts(), bounds=_bounds(settings()))


def sweeper() -> Sweeper:
    """Return what takes overdue messages back."""
    chosen = settings()
    return Sweeper(
        _scripts(),
        batch=chosen.requeue_batch_size,
        max_attempts=chosen.max_attempts,
        ack_timeout=seconds(chosen.ack_timeout_seconds),
        within=system.period(chosen),
        levels=chosen.max_priority_levels,
    )


def requeue_overdue() -> dict[str, Any]:
    """Take back every overdue message, once. Returns `{requeued, dead_lettered, ids, dlq_ids}`."""
    return sweeper().sweep().as_dict()


def stats() -> SystemStats:
    """Return what waits, is held, overdue and dead, and the age of the oldest deadline that has passed, in seconds."""
    counts = queue_admin().counts()
    first = counts.first_deadline_at
    stats = SystemStats(
        numbers={
            "pending": counts.main,
            "in_progress": counts.processing,
            "overdue": counts.overdue,
            "dead": counts.dead,
            "acknowledged_in_all": counts.total_acknowledged,
            "requeued_in_all": counts.total_requeued,
            "dead_lettered_in_all": counts.total_dead_lettered,
            "lag_seconds": max(0.0, round(counts.now - first, 3)) if first else 0.0,
        },
    )
    if stats.numbers["lag_seconds"] > system.late_after(settings()).total_seconds():
        overdue = queue_admin().list("processing", limit=MAX_IDS, sort_by="deadline_at", ascending=True).messages
        stats.late.extend(one.id for one in overdue)
    if counts.dead:
        newest = queue_admin().list("dead", limit=MAX_IDS).messages
        stats.add_problem(
            f"{counted(counts.dead, 'dead letter')} in the message queue: used all attempts or cannot be read; see "
            f"`queue-manager queue list dead`, then replay or delete ({ids((one.id for one in newest), counts.dead)})",
            state="dead",
        )
    return stats


def _bounds(chosen: Settings) -> Bounds:
    return Bounds(levels=chosen.max_priority_levels, max_payload_bytes=chosen.queue_max_payload_bytes)


system = System(
    name="overdue-messages",
    title="Messages",
    description="Messages whose consumer did not acknowledge them in time, taken back.",
    every=lambda chosen: timedelta(milliseconds=chosen.overdue_check_interval_ms),
    flag="QM_MESSAGE_QUEUE",
    scan_task="tasks.overdue_messages.requeue_overdue_messages",
    trigger="messages/requeue-overdue",
    page="/messages",
    state_pages={"dead": "/messages/failed"},
    stats=stats,
    stats_server="The queue's server",
)
