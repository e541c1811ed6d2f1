"""Counts the messages that wait in the broker, and limits how many more a scan may send."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from kombu import Connection
from kombu.transport import redis
from kombu.utils.json import dumps

from queue_manager.broker import dead_letters
from queue_manager.core.clock import seconds

if TYPE_CHECKING:
    from celery import Celery

NOT_FOUND = 404  # AMQP's code for a queue that does not exist
JUST_DELIVERED = seconds(5)  # a worker renews the leases of what it received well within this time
BACKLOG_POLL_INTERVAL = 0.02  # seconds
ENTRIES_PER_READ = 500  # unacknowledged messages, each of any size
STALLED_AFTER = 1.0  # seconds without a message taken, after which the next scan is soon enough

_TAKEN_AT = re.compile(rb"~(\d+)@")


class Backlog:
    """The messages of one queue: how many wait for a worker, and how many more a scan may send.

    When the queue is full, `room` waits for workers while they take messages, and ends the scan when they do not.

    Args:
        waiting: messages when the scan begins, including those that a worker received only just now.
        length: counts the messages in the queue; by default, no worker takes any during the scan.
        time_left: after which the scan ends even if items are left; its first batch is always sent.
    """

    def __init__(
        self, waiting: int = 0, *, length: Callable[[], int] | None = None, time_left: timedelta = timedelta.max
    ) -> None:
        self.waiting = waiting
        self._expected = waiting
        self._length = length
        self._ends_at = time.monotonic() + time_left.total_seconds()
        self._has_sent = self._is_stalled = False

    @classmethod
    def of_queue(cls, app: Celery, queue: str, *, time_left: timedelta) -> Self:
        """Return the backlog of a Celery queue. Raises like `waiting`, and so does `room`."""
        return cls(waiting(app, queue), length=partial(length, app, queue), time_left=time_left)

    def room(self, limit: int, *, at_least: int = 1) -> int:
        """Return how many more messages may be sent so that at most `limit` wait; 0 ends the scan.

        The queue is counted again only if there may be no room for `at_least` messages.
        """
        if self._is_stalled or (self._has_sent and time.monotonic() > self._ends_at):
            return 0
        wanted = min(at_least, limit // 2 or 1)
        if limit - self._expected < wanted and self._length is not None:
            self._expected = self._wait_until_at_most(limit - wanted, self._length)
        return max(limit - self._expected, 0)

    def add(self, count: int) -> None:
        """Count messages that are sent now."""
        self._expected += count
        self._has_sent = self._has_sent or count > 0

    def _wait_until_at_most(self, wanted: int, count: Callable[[], int]) -> int:
        """Wait until at most `wanted` messages are in the queue, as long as workers take some; return how many are."""
        now_there = fewest = count()
        fell_at = time.monotonic()
        while now_there > wanted and (now := time.monotonic()) < min(self._ends_at, fell_at + STALLED_AFTER):
            time.sleep(BACKLOG_POLL_INTERVAL)
            now_there = count()
            if now_there < fewest:
                fewest, fell_at = now_there, now
        self._is_stalled = now_there > wanted
        return now_there


def waiting(app: Celery, queue: str, *, just_delivered: timedelta = JUST_DELIVERED) -> int:
    """Count the messages of `queue` that wait for a worker, those that a worker took only just now included.

    A worker renews the leases of what it holds only a moment after it received it, so messages delivered within
    `just_delivered` and not yet acknowledged still count as waiting. A queue that does not exist has nothing waiting.

    With AMQP, the messages that a worker took are not counted, because the broker does not report them.

    Raises the errors of kombu and redis-py if the broker is unavailable, without waiting for it.
    """
    with app.connection_or_acquire() as connection:
        connection.ensure_connection(max_retries=0)
        return length_on(connection, queue) + _just_delivered(connection.default_channel, queue, just_delivered)


def _just_delivered(channel: Any, queue: str, within: timedelta) -> int:
    if not isinstance(channel, redis.Channel):
        return 0
    count, end = 0, f", {dumps(queue)}]".encode()
    with channel.conn_or_acquire() as client:
        delivered_after = client.time()[0] - within.total_seconds()  # the clock of the index
        renewed = client.zrange(channel.unacked_index_key, delivered_after, "+inf", byscore=True)
        tags = [tag for tag in renewed if _taken_at(tag, otherwise=delivered_after) >= delivered_after]
        for first in range(0, len(tags), ENTRIES_PER_READ):
            entries = client.hmget(channel.unacked_key, tags[first : first + ENTRIES_PER_READ])
            count += sum(entry is not None and entry.endswith(end) for entry in entries)
    return count


def _taken_at(tag: bytes, *, otherwise: float) -> float:
    """Return when a message was taken, from its tag; `otherwise` for tags of kombu's own transport.

    The score in the index is no help: a worker renews it while it holds the message.
    """
    found = _TAKEN_AT.search(tag)
    return otherwise if found is None else float(found[1])


def length(app: Celery, queue: str) -> int:
    """Count the messages in `queue`, without those that workers took. Raises as `waiting`."""
    with app.connection_or_acquire() as connection:
        connection.ensure_connection(max_retries=0)
        return length_on(connection, queue)


def length_on(connection: Connection, queue: str) -> int:
    """Count the messages in `queue`, which need not exist."""
    if isinstance(connection.default_channel, redis.Channel):
        return int(connection.default_channel._size(queue))
    # A request shows whether a pooled connection is still open; if it is not, it is opened again, once.
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


def held_and_dead_on(connection: Connection) -> tuple[int, int] | None:
    """Count the messages that workers hold, and the dead letters; `None` if the broker is not Redis, which has both."""
    channel = connection.default_channel
    if not isinstance(channel, redis.Channel):
        return None
    with channel.conn_or_acquire() as client:
        return int(client.hlen(channel.unacked_key)), dead_letters.count(client)
