"""The lists of a channel's queues, and the queues that a worker need not request because their lists are empty.

The server notifies the worker when one of these lists changes, by what Redis has for client-side caches (`CLIENT
TRACKING`): it notifies a connection once when a key changes that the connection has read. So `scripts.TAKE_MESSAGES`
reads the lists that it leaves empty.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

from kombu.utils.encoding import bytes_to_str
from kombu.utils.json import dumps
from redis.exceptions import ResponseError

from queue_manager.broker.errors import refusals_as_connection_errors
from queue_manager.core.log import get_logger
from queue_manager.core.redis_client import REDIS_OUTAGES

POLL_INTERVAL = 5.0  # seconds between two requests of all queues, which notice a server that became a replica
FALLBACK_POLL_INTERVAL = 1.0  # seconds, if the server sends no notifications

log = get_logger("QM/transport")


class PriorityList(NamedTuple):
    """The list of the messages of one queue and priority."""

    name: str
    queue: str
    priority: int
    ending: str
    """The text after a message in its entry in `unacked`."""


class PriorityLists:
    """The lists of a channel. Their names are made once: a worker of all systems has 70 of them.

    Args:
        names_of: returns the names of a queue's lists, each with its priority.
    """

    def __init__(self, names_of: Callable[[str], list[tuple[str, int]]]) -> None:
        self._names_of = names_of
        self._of_queue: dict[str, list[PriorityList]] = {}
        self.queue_of: dict[str, str] = {}
        """By the name of each list that was used."""

    def of(self, queues: Collection[str]) -> list[PriorityList]:
        """Return the lists of queues, by priority and then in the order of the queues."""
        for queue in queues:
            if queue not in self._of_queue:
                self._of_queue[queue] = self._made(queue)
        return [one for same in zip(*map(self._of_queue.__getitem__, queues), strict=True) for one in same]

    def _made(self, queue: str) -> list[PriorityList]:
        names, ending = self._names_of(queue), f', "", {dumps(queue)}]'
        self.queue_of.update((name, queue) for name, _ in names)
        return [PriorityList(name, queue, priority, ending) for name, priority in names]


class EmptyQueues(set[str]):
    """The queues that one connection found empty, and that have not changed since. The channel adds them."""

    def __init__(self, lists: PriorityLists) -> None:
        super().__init__()
        self._lists = lists
        self._is_notified = False
        self._socket: Any = None  # of the connection that asked for notifications
        self._next_poll_at = 0.0

    def ask_for_notifications(self, connection: Any) -> None:
        """Let the server notify a connection, once after it was opened. No queue is known to be empty then."""
        if connection._sock is self._socket:
            return
        self.clear()
        try:
            connection.send_command("CLIENT", "TRACKING", "ON", "NOLOOP")
            connection.read_response()
        except ResponseError as error:
            self._is_notified = False
            log.warning("Redis sends no notifications; its queues are polled every second", error=str(error))
        else:
            self._is_notified = True
            connection._parser.set_invalidation_push_handler(self._lists_changed)
        self._socket = connection._sock
        self._schedule_poll()

    def read_notifications(self, connection: Any) -> None:
        """Read the notifications of the server. Raises a connection error if it closes the connection."""
        try:
            with refusals_as_connection_errors():
                while connection.can_read():
                    connection.read_response(push_request=True)
        except REDIS_OUTAGES:
            connection.disconnect()
            raise

    def _lists_changed(self, push: Sequence[Any]) -> None:
        _, names = push
        if names is None:  # the server has lost its data
            self.clear()
        else:
            self.difference_update(map(self._lists.queue_of.get, map(bytes_to_str, names)))

    def poll(self) -> None:
        """Forget which queues are empty if the poll interval has passed, so that all are requested."""
        if time.monotonic() >= self._next_poll_at:
            self._schedule_poll()
            self.clear()

    def _schedule_poll(self) -> None:
        self._next_poll_at = time.monotonic() + (POLL_INTERVAL if self._is_notified else FALLBACK_POLL_INTERVAL)
