"""Sending many messages that are made from one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

from queue_manager.broker import connection_guard

PUSHED_AT_ONCE = 500  # messages of one command: about half a megabyte


class Channel(connection_guard.Channel):
    """A channel that can tell what it would send, and that sends what it is given."""

    _captured: list[tuple[str, dict[str, Any]]] | None = None

    @contextmanager
    def capturing(self) -> Iterator[list[tuple[str, dict[str, Any]]]]:
        """Keep what is published to queues within, as (list, message), instead of sending it."""
        self._captured = []
        try:
            yield self._captured
        finally:
            self._captured = None

    def _put(self, queue: str, message: dict[str, Any], **kwargs: Any) -> None:
        if self._captured is not None:
            name = self._q_for_pri(queue, self._get_message_priority(message, reverse=False))
            self._captured.append((name, message))
        else:
            super()._put(queue, message, **kwargs)

    def put_many(self, name: str, messages: Iterable[str]) -> None:
        """Push messages on a list, the first to be taken first. Raises what redis-py raises: delivery is uncertain."""
        rest = iter(messages)
        with self.conn_or_acquire() as client:
            while some := list(islice(rest, PUSHED_AT_ONCE)):
                client.lpush(name, *some)
