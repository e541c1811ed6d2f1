"""How many messages a scan may still send: it waits for workers that keep up, and ends when they do not."""

from __future__ import annotations

import time
from datetime import timedelta

from celery import Celery

from queue_manager.broker import queue_length
from services.due_work import Backlog

POLL_INTERVAL = 0.02  # seconds
STALLED_AFTER = 1.0  # seconds without a message taken, after which the next scan is soon enough


class QueueBacklog(Backlog):
    """The backlog of one Celery queue.

    Args:
        time_left: after which the scan ends, even if items are left; its first batch is always sent.

    Raises what `transport.backlog.waiting` raises.
    """

    def __init__(self, app: Celery, queue: str, *, time_left: timedelta) -> None:
        super().__init__(queue_length.waiting(app, queue))
        self._app, self._queue = app, queue
        self._has_sent = self._is_stalled = False
        self._ends_at = time.monotonic() + time_left.total_seconds()

    def room(self, limit: int, *, at_least: int = 1) -> int:
        is_over = self._is_stalled or (self._has_sent and time.monotonic() > self._ends_at)
        return 0 if is_over else super().room(limit, at_least=at_least)

    def add(self, count: int) -> None:
        super().add(count)
        self._has_sent = True

    def length(self, wanted: int) -> int:
        length = shortest = queue_length.length(self._app, self._queue)
        shrank_at = time.monotonic()
        while length > wanted and (now := time.monotonic()) < min(self._ends_at, shrank_at + STALLED_AFTER):
            time.sleep(POLL_INTERVAL)
            length = queue_length.length(self._app, self._queue)
            if length < shortest:
                shortest, shrank_at = length, now
        self._is_stalled = length > wanted
        return length
