"""How many messages a scan may still send: it waits for workers that keep up, and ends when they do not."""

from __future__ import annotations

import time
from datetime import timedelta

from celery import Celery

from queue_manager.transport import backlog
from services.due_work import Backlog

POLL_INTERVAL = 0.02  # seconds
STALLED_AFTER = 1.0  # seconds without a message taken, after which the next scan is soon enough


class QueueBacklog(Backlog):
    """The backlog of one Celery queue.

    Args:
        time_left: how long the scan may wait for workers in all.

    Raises what `transport.backlog.waiting` raises.
    """

    def __init__(self, app: Celery, queue: str, *, time_left: timedelta) -> None:
        super().__init__(backlog.waiting(app, queue))
        self._app, self._queue = app, queue
        self._ends_at = time.monotonic() + time_left.total_seconds()

    def length(self, wanted: int) -> int:
        length = shortest = backlog.length(self._app, self._queue)
        shrank_at = time.monotonic()
        while length > wanted and (now := time.monotonic()) < min(self._ends_at, shrank_at + STALLED_AFTER):
            time.sleep(POLL_INTERVAL)
            length = backlog.length(self._app, self._queue)
            if length < shortest:
                shortest, shrank_at = length, now
        return length
