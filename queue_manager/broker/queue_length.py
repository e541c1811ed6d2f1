"""How many messages are in the broker."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from kombu import Connection
from kombu.transport import redis

from queue_manager.broker import dead_letters
from queue_manager.core.clock import seconds

if TYPE_CHECKING:
    from celery import Celery

NOT_FOUND = 404  # AMQP's code for a queue that does not exist
JUST_DELIVERED = seconds(5)  # a worker renews the leases of what it received well within this time


def waiting(app: Celery, queue: str, *, just_delivered: timedelta = JUST_DELIVERED) -> int:
    """Count the messages of `queue` that wait for a worker, those that a worker took only just now included.

    A worker renews the leases of what it holds only a moment after it received it, so messages delivered within
    `just_delivered` and not yet acknowledged still count as waiting. A queue that does not exist has nothing waiting.

    AMQP does not tell what it delivered, and when: there messages that a worker took do not count.

    Raises what kombu and redis-py raise when the broker is away, without waiting for it to come back.
    """
    with app.connection_or_acquire() as connection:
        connection.ensure_connection(max_retries=0)
        return length_on(connection, queue) + _just_delivered(connection.default_channel, queue, just_delivered)


def _just_delivered(channel: Any, queue: str, within: timedelta) -> int:
    if not isinstance(channel, redis.Channel):
        return 0
    with channel.conn_or_acquire() as client:
        delivered_after = client.time()[0] - within.total_seconds()  # the clock of the index
        tags = client.zrange(channel.unacked_index_key, delivered_after, "+inf", byscore=True)
        delivered = client.hmget(channel.unacked_key, tags) if tags else []
    return sum(_queue_of(entry) == queue for entry in delivered)


def length(app: Celery, queue: str) -> int:
    """Count the messages in `queue`, without those that workers took. Raises as `waiting`."""
    with app.connection_or_acquire() as connection:
        connection.ensure_connection(max_retries=0)
        return length_on(connection, queue)


def length_on(connection: Connection, queue: str) -> int:
    """Count the messages in `queue`, which need not exist."""
    if isinstance(connection.default_channel, redis.Channel):
        return int(connection.default_channel._size(queue))
    # Only an answer shows whether a pooled connection still stands: one that does not is made anew, once.
    ask = connection.ensure(connection, _declared_length, max_retries=1, interval_start=0)
    return int(ask(connection, queue))


def _declared_length(connection: Connection, queue: str) -> int:
    with connection.channel() as channel:  # the server closes it when there is no such queue
        try:
            return int(channel.queue_declare(queue, passive=True).message_count)
        except connection.channel_errors as error:
            if getattr(error, "code", None) != NOT_FOUND:
                raise
            return 0


def unacknowledged_on(connection: Connection) -> int | None:
    """Count the messages that workers hold; `None`: the broker does not tell."""
    return _asked(connection, lambda channel, client: int(client.hlen(channel.unacked_key)))


def dead_letters_on(connection: Connection) -> int | None:
    """Count the dead letters; `None`: the broker has no place for them."""
    return _asked(connection, lambda _, client: dead_letters.count(client))


def _asked(connection: Connection, ask: Callable[[Any, Any], int]) -> int | None:
    channel = connection.default_channel
    if not isinstance(channel, redis.Channel):
        return None
    with channel.conn_or_acquire() as client:
        return ask(channel, client)


def _queue_of(entry: bytes | None) -> str | None:
    """Return the routing key of an unacknowledged message as kombu keeps it: [message, exchange, routing key]."""
    return None if entry is None else json.loads(entry)[2]
