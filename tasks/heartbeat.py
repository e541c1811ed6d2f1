"""Renews the leases of every item that this worker has taken from the broker and not finished; samples the clock.

A message that waits in a slow worker is neither in the queue nor lost. Without a renewal its lease would run out
and the next scan would send the item again. A worker that dies stops renewing: that is how its items come back.
The main thread judges ETAs by the sample of the database server's clock (`database.estimated_now`).
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from contextlib import suppress
from threading import Event, Thread

from celery.worker import state
from celery.worker.request import Request

from models.database import OUTAGES, server_now
from queue_manager.core.errors import PermanentError, reason
from queue_manager.core.log import get_logger
from queue_manager.core.settings import settings
from services.due_work import DueItem
from tasks.item import ItemTask

RENEW_DELAY = 0.5  # seconds until a message just received is renewed; `transport.backlog` covers the time before

log = get_logger("QM/leases")

lost: deque[Request] = deque()
"""Requests whose process died: their items are released by the heartbeat, since MongoDB may keep a caller waiting."""


class Heartbeat:
    """One thread of the worker's main process."""

    def __init__(self) -> None:
        self._stop = Event()
        self._thread: Thread | None = None
        self._known: set[str] = set()
        self._renewed_at = 0.0

    def start(self) -> None:
        """Begin renewing; a second call (a consumer that restarted) changes nothing."""
        if self._thread is None:
            self._thread = Thread(target=self._run, name="heartbeat", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.wait(RENEW_DELAY):
            for act in (self.beat, self.release_lost, server_now):
                try:
                    act()
                except Exception as error:
                    # MongoDB is away: leases may run out, which costs duplicates that are left alone; the clock's last
                    # sample goes on.
                    log.warning("A step of the heartbeat failed", step=act.__name__, error=reason(error))

    def release_lost(self) -> None:
        """Make the items of processes that died due again, as soon as MongoDB takes it."""
        while lost:
            request = lost.popleft()
            try:
                request.task.work().lost(request.task.item(request.id, request.args, request.kwargs))
            except OUTAGES:
                lost.append(request)
                raise
            except Exception as error:
                log.error("A lost item waits for its lease to end", task_id=request.id, error=reason(error))

    def beat(self) -> None:
        """Renew what arrived since the last time, and everything when a third of a lease has passed."""
        held = {request.id: request for request in _reserved() if isinstance(request.task, ItemTask)}
        shortest = min(settings().qm_lease_seconds, settings().jobs_lease_seconds)
        everything = time.monotonic() - self._renewed_at > shortest / 3
        items: dict[ItemTask, list[DueItem]] = defaultdict(list)
        for token in held.keys() if everything else held.keys() - self._known:
            request = held[token]
            with suppress(PermanentError):  # arguments that name no item hold nothing
                items[request.task].append(request.task.item(token, request.args, request.kwargs))
        for task, of_task in items.items():
            task.work().renew(of_task)
        self._known = set(held)
        if everything:
            self._renewed_at = time.monotonic()


def _reserved() -> list[Request]:
    """Return the requests received and not finished. The main thread may change the set while it is read."""
    while True:
        try:
            return list(state.reserved_requests)
        except RuntimeError:
            continue
