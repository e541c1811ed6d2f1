"""Renews the leases of every item that this worker has taken from the broker and not finished.

A message that waits in a slow worker is neither in the queue nor lost. Without a renewal its lease would run out
and the next scan would send the item again. A worker that dies stops renewing: that is how its items come back.
"""

from __future__ import annotations

import time
from collections import defaultdict
from threading import Event, Thread

from celery.worker import state
from celery.worker.request import Request

from queue_manager.core.log import get_logger
from queue_manager.core.settings import settings
from tasks.base import ItemTask

LOOK_EVERY = 0.5  # seconds until a message just received is renewed; `transport.backlog` covers the time before

log = get_logger("QM/leases")


class LeaseKeeper:
    """One thread of the worker's main process."""

    def __init__(self) -> None:
        self._stop = Event()
        self._thread: Thread | None = None
        self._known: set[str] = set()
        self._renewed_at = 0.0

    def start(self) -> None:
        """Begin renewing; a second call (a consumer that restarted) changes nothing."""
        if self._thread is None:
            self._thread = Thread(target=self._run, name="lease-keeper", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.wait(LOOK_EVERY):
            try:
                self.look()
            except Exception as error:
                # MongoDB is away: leases may run out, which costs duplicates that are left alone.
                log.warning("Leases could not be renewed", error=str(error))

    def look(self) -> None:
        """Renew what arrived since the last look, and everything when a third of a lease has passed."""
        held = {request.id: request for request in _reserved() if isinstance(request.task, ItemTask)}
        everything = time.monotonic() - self._renewed_at > settings().qm_lease_seconds / 3
        wanted = held.keys() if everything else held.keys() - self._known
        tokens: dict[ItemTask, list[str]] = defaultdict(list)
        for token in wanted:
            tokens[held[token].task].append(token)
        for task, of_task in tokens.items():
            task.work().keep(of_task)
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
