"""Message queue on Redis Streams: a message that is not acknowledged before its deadline is delivered again.

    queue = message_queue()
    queue.enqueue("send_mail", {"to": "ada@example.org"}, priority=5)
    with queue.receive(timeout=30) as message:
        ...  # acknowledged when the block ends, requeued when it raises

`queue_admin()` lists, moves, replays, changes and deletes messages. `sweeper()` requeues those that are overdue.

Guarantee: a message is in exactly one state. It is delivered until it is acknowledged or has used all its attempts;
then it is kept as a dead letter. Other programs may produce to and consume from the same streams.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta

import redis

from queue_manager.broker.keys import DEFAULT_QUEUE
from queue_manager.core.clock import seconds
from queue_manager.core.errors import ConfigurationError
from queue_manager.core.process import PerProcess
from queue_manager.core.redis_client import make_client
from queue_manager.core.server_check import refused_writes
from queue_manager.core.settings import settings
from queue_manager.core.wording import MAX_IDS, first_ids, many
from queue_manager.health_rules import Rule
from queue_manager.system import SCANS_QUEUE, System, SystemStats
from queue_manager.telemetry.counters import HISTORY_RETENTION_SECONDS, Source
from services.message_queue import adoption
from services.message_queue.admin import QueueAdmin
from services.message_queue.arrivals import READ_BLOCK_TIMEOUT, ArrivalNotifier
from services.message_queue.async_queue import AsyncMessageQueue
from services.message_queue.browser import Filter, MessageListing, MessageState, QueueCounts
from services.message_queue.errors import (
    InvalidMessage,
    LockLost,
    MessageInProgress,
    MessageTooLarge,
    QueueFull,
    QueueUnavailable,
    UnknownMessage,
)
from services.message_queue.explanation import explain
from services.message_queue.fields import Json
from services.message_queue.messages import Message, NewMessage, QueueOptions
from services.message_queue.other_programs import OtherPrograms
from services.message_queue.queue import MessageQueue
from services.message_queue.scripts import Scripts, server_name, server_url, streams
from services.message_queue.sweeper import Sweeper, SweepResult

__all__ = [
    "AsyncMessageQueue",
    "Filter",
    "InvalidMessage",
    "Json",
    "LockLost",
    "Message",
    "MessageInProgress",
    "MessageListing",
    "MessageQueue",
    "MessageState",
    "MessageTooLarge",
    "NewMessage",
    "QueueAdmin",
    "QueueCounts",
    "QueueFull",
    "QueueUnavailable",
    "SweepResult",
    "UnknownMessage",
    "async_message_queue",
    "fold_counts",
    "message_queue",
    "other_programs",
    "queue_admin",
    "server_name",
    "server_url",
    "stats",
    "sweeper",
    "system",
]


FOLDED_ENTRIES, MAX_FOLDS = 1_000, 100  # in one call of the script, and calls in a row


def require_own_key(celery_queues: Iterable[str]) -> None:
    """Raise ConfigurationError if a Celery queue on the same server has the key of the main stream."""
    chosen = settings()
    is_shared = chosen.qm_message_queue and server_url() == chosen.broker_redis_url
    if is_shared and chosen.queue_name in {DEFAULT_QUEUE, SCANS_QUEUE, *celery_queues}:
        raise ConfigurationError(
            f"QUEUE_NAME={chosen.queue_name!r}: must not be the name of a Celery queue on the same Redis, because both "
            "would use this key"
        )


def _blocking_client() -> redis.Redis:
    return make_client(server_url(), socket_timeout=READ_BLOCK_TIMEOUT + 3)


_scripts = PerProcess(lambda: Scripts(make_client(server_url()), queue=settings().queue_name))
_arrivals = PerProcess(
    lambda: ArrivalNotifier(_blocking_client, streams(settings().queue_name, settings().max_priority_levels))
)


def message_queue(*, schedule_sweep: Callable[[timedelta], object] | None = None) -> MessageQueue:
    """Return the queue for producers and consumers. Opens nothing until it is used.

    Args:
        schedule_sweep: called with the delay after which a sweep is needed, when a deadline comes before the next
            periodic sweep. Without it, such a message may be requeued up to one period late.
    """
    return MessageQueue(_scripts(), _arrivals(), _options(), schedule_sweep=schedule_sweep)


async_message_queue = PerProcess(lambda: AsyncMessageQueue(_scripts(), _options()))
"""Returns the queue for producers and consumers that are coroutines. Opens nothing until it is used."""


def queue_admin() -> QueueAdmin:
    """Return the operations for operators."""
    return QueueAdmin(_scripts(), _options())


def sweeper() -> Sweeper:
    """Return the sweeper of overdue messages."""
    return Sweeper(_scripts(), _options(), batch=settings().requeue_batch_size)


def other_programs() -> OtherPrograms:
    """Return the maintenance of messages that other programs add or receive."""
    return OtherPrograms(_scripts(), _options())


def stats() -> SystemStats:
    """Return the numbers of messages by state and of paused types, and the seconds since the oldest passed deadline."""
    admin = queue_admin()
    counts, paused = admin.counts(), admin.pauses()
    first = counts.first_deadline_at
    stats = SystemStats(
        numbers={
            "pending": counts.main,
            "in_progress": counts.processing,
            "overdue": counts.overdue,
            "dead": counts.dead,
            "paused": len(paused),
            "acknowledged_total": counts.total_acknowledged,
            "requeued_total": counts.total_requeued,
            "dead_lettered_total": counts.total_dead_lettered,
            "lag_seconds": max(0.0, round(counts.now - first, 3)) if first else 0.0,
        },
    )
    if stats.numbers["lag_seconds"] > system.late_after(settings()).total_seconds():
        stats.late.extend(admin.first_ids("processing", min(counts.overdue, MAX_IDS), ascending=True))
    if paused:
        stats.details.append(f"paused: {'; '.join(f'{type} {pause}'.strip() for type, pause in paused.items())}")
    if counts.dead:
        newest = admin.first_ids("dead", MAX_IDS)
        stats.problems[Rule.DEAD_MESSAGES] = (
            f"{many(counts.dead, 'dead letter')} in the message queue: used all attempts or cannot be decoded "
            f"({first_ids(newest, counts.dead)})"
        )
    chosen = settings()
    is_own_server = server_url() not in (chosen.redis_url, chosen.broker_redis_url)
    if is_own_server and (why := refused_writes(_scripts().client)) is not None:
        stats.problems[Rule.REFUSED_WRITES] = f"{server_name()} refuses writes ({why})"
    return stats


def fold_counts() -> None:
    """Add up the counts in the event stream, into the totals and those of each minute, and trim the stream."""
    for _ in range(MAX_FOLDS):
        if not _scripts().run("fold_counts", FOLDED_ENTRIES, HISTORY_RETENTION_SECONDS):
            break


def source() -> Source:
    """Return where outcomes and durations of messages are counted."""
    queue, url = settings().queue_name, settings().qm_queue_redis_url
    return Source(totals=f"{queue}:totals", minutes=f"{queue}:minutes:", url=url)


def _options() -> QueueOptions:
    chosen = settings()
    return QueueOptions(
        levels=chosen.max_priority_levels,
        max_payload_bytes=chosen.queue_max_payload_bytes,
        ack_timeout=seconds(chosen.ack_timeout_seconds),
        max_attempts=chosen.max_attempts,
        sweep_period=system.period(chosen),
        is_token_required=chosen.queue_require_lock_token,
        is_shared=chosen.queue_shared,
    )


system: System = System(
    name="overdue-messages",
    title="Messages",
    description="Requeues messages whose consumer did not acknowledge them in time.",
    every=lambda chosen: timedelta(milliseconds=chosen.overdue_check_interval_ms),
    flag="QM_MESSAGE_QUEUE",
    scan_task="tasks.overdue_messages.requeue_overdue_messages",
    trigger="messages/requeue-overdue",
    page="/messages",
    items_name="messages",
    explain=lambda id, dispatch: explain(system, queue_admin(), _options(), id, dispatch),
    state_pages={
        "due": "/messages",
        "late": "/messages/processing",
        "in-progress": "/messages/processing",
        "overdue": "/messages/processing",
        "dead": "/messages/failed",
    },
    stats=stats,
    stats_server="The queue's Redis",
    counts=source,
    on_time_within=seconds(1),
    on_time_of="wait",
    duration_names={
        "due_to_done": "Added to acknowledged",
        "wait": "Added to delivered",
        "run": "Delivered to acknowledged",
    },
    adoption_notes=lambda: adoption.adoption_notes(_scripts(), settings().max_priority_levels),
    adoption_effects=adoption.EFFECTS,
    adoption_steps=adoption.STEPS,
)
