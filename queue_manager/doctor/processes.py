"""Checks of workers and queues beyond those of health, and of what release 0.1 left."""

from __future__ import annotations

from collections.abc import Iterator

from beat_schedule import systems
from models import schema
from queue_manager.broker import backlog as broker_backlog
from queue_manager.broker import old_keys
from queue_manager.broker.keys import DEFAULT_QUEUE
from queue_manager.core.redis_client import make_client
from queue_manager.core.settings import settings
from queue_manager.core.wording import first_ids, many
from queue_manager.doctor import redis_servers
from queue_manager.doctor.findings import Finding, Findings
from queue_manager.server_calls import broker, redis_server
from queue_manager.system import SCANS_QUEUE, item_queues
from queue_manager.telemetry import worker_heartbeats
from queue_manager.telemetry.worker_heartbeats import OWN_RELEASE, is_same_database


def broker_at_redis_url() -> Iterator[Findings]:
    """Check the broker if it is the main Redis, which health does not check as a broker. Raises `Unavailable`."""
    if settings().broker == settings().redis_url:
        with broker():
            yield from ()


def other_workers() -> Iterator[Findings]:
    """Yield the workers of other releases, and those of another database or broker."""
    with redis_server() as client:
        workers = worker_heartbeats.online_details(client)
    database, own_broker = worker_heartbeats.own_database(), worker_heartbeats.own_broker()
    others = [f"{name} ({one.release or 'before 0.2'})" for name, one in workers if one.release != OWN_RELEASE]
    elsewhere = [f"{name} ({one.database})" for name, one in workers if not is_same_database(one.database, database)]
    apart = [f"{name} ({one.broker})" for name, one in workers if not is_same_database(one.broker, own_broker)]
    if others:
        yield Finding(
            f"{many(len(others), 'worker')} of another release than this, {OWN_RELEASE}: "
            f"{first_ids(others, len(others))}",
            "Restart them with this release; during a rolling upgrade this is expected.",
        )
    if elsewhere:
        yield Finding(
            f"{many(len(elsewhere), 'worker')} with another database than this, {database}, "
            f"on the same Redis: {first_ids(elsewhere, len(elsewhere))}",
            "Give the processes of one deployment the same MONGO_DB_URL, and each deployment its own Redis database.",
        )
    if apart:
        yield Finding(
            f"{many(len(apart), 'worker')} with another broker than this, {own_broker}, which get "
            f"none of its messages although health counts them: {first_ids(apart, len(apart))}",
            "Restart them with the same BROKER_URL.",
        )


def backlog() -> Iterator[Findings]:
    """Yield the queues with too many messages, and those with messages that nothing consumes."""
    on = {system.queue for system in systems() if system.is_on(settings())}
    with redis_server() as client:
        workers = worker_heartbeats.online(client)
    queues = [DEFAULT_QUEUE, SCANS_QUEUE, *item_queues(systems())]
    with broker() as connection:
        waiting = {queue: broker_backlog.length_on(connection, queue) for queue in queues}
    limit = settings().qm_max_queue
    for queue, length in waiting.items():
        if length > limit:
            yield Finding(
                f"The queue {queue} has {length:,} messages, more than QM_MAX_QUEUE={limit}, so scans dispatch no more",
                "Start more workers for this queue, or find out what slows them down.",
            )
    # Queues of systems that are on, and of scans, are a matter of the health rules.
    for queue in worker_heartbeats.unconsumed(workers, [queue for queue in queues if queue not in on | {SCANS_QUEUE}]):
        if waiting[queue]:
            yield Finding(
                f"No worker consumes the queue {queue}, which has {many(waiting[queue], 'message')}",
                f"Start `celery -A tasks worker --queues {queue}`; the system of the queue must be on.",
            )
    yield from redis_servers.left_messages()


def old_release() -> Iterator[Findings]:
    """Yield messages in the keys of release 0.1, and its indexes."""
    if (url := settings().broker_redis_url) is not None:
        from queue_manager.worker.old_keys import queues_by_task  # imported here, because it takes a second
        from tasks.systems import require_tasks

        require_tasks()
        with make_client(url) as client:
            found = old_keys.count(client, queues_by_task())
        if found:
            yield Finding(
                f"{many(found, 'message')} for tasks of Queue Manager in the keys of release 0.1 (celery, unacked)",
                "Start a worker of this release, which moves them, and stop processes of release 0.1.",
            )
    indexes = [name for system in systems() if system.is_switched_on(settings()) for name in schema.obsolete(system)]
    if indexes:
        yield Finding(
            f"Indexes that only earlier releases needed: {first_ids(indexes, len(indexes))}",
            "Run `queue-manager migrate --finish` once no worker of those releases is online.",
        )
