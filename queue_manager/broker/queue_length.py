"""How much is waiting in the broker."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import TYPE_CHECKING

from queue_manager.core.clock import seconds

if TYPE_CHECKING:
    from celery import Celery

JUST_DELIVERED = seconds(5)  # a worker renews the leases of what it received well within this time


def waiting(app: Celery, queue: str, *, just_delivered: timedelta = JUST_DELIVERED) -> int:
    """Count the messages of `queue` that wait for a worker, those that a worker took only just now included.

    A worker renews the leases of what it holds only a moment after it received it, so messages delivered within
    `just_delivered` and not yet acknowledged still count as waiting. A queue that does not exist has nothing waiting.

    Raises what kombu and redis-py raise when the broker is away, without waiting for it to come back.
    """
    with app.connection_or_acquire() as connection:
        connection.ensure_connection(max_retries=0)
        channel = connection.default_channel
        with channel.conn_or_acquire() as client:
            delivered_after = client.time()[0] - just_delivered.total_seconds()  # the clock of the index
            tags = client.zrange(channel.unacked_index_key, delivered_after, "+inf", byscore=True)
            delivered = client.hmget(channel.unacked_key, tags) if tags else []
        return int(channel._size(queue)) + sum(_queue_of(entry) == queue for entry in delivered)


def length(app: Celery, queue: str) -> int:
    """Count the messages in `queue`, without those that workers took. Raises as `waiting`."""
    with app.connection_or_acquire() as connection:
        connection.ensure_connection(max_retries=0)
        return int(connection.default_channel._size(queue))


def _queue_of(entry: bytes | None) -> str | None:
    """Return the routing key of an unacknowledged message as kombu keeps it: [message, exchange, routing key]."""
    return None if entry is None else json.loads(entry)[2]
