"""The semaphore of a worker's pool: what waits for a process is called one after another, never from within another.

A request that was revoked, has expired or was put back releases its slot at once. Celery's semaphore calls the next one
from within, so that some hundred of them in a row exceed the depth of Python's stack, and the worker exits.
"""

from __future__ import annotations

from typing import Any

from celery import bootsteps
from kombu.asynchronous.semaphore import LaxBoundedSemaphore


class FlatSemaphore(LaxBoundedSemaphore):
    """Celery's, whose `release` returns while another one runs, which then does its work."""

    def __init__(self, value: int) -> None:
        super().__init__(value)
        self._releases = 0
        self._is_releasing = False

    def release(self) -> None:
        self._releases += 1
        if self._is_releasing:
            return
        self._is_releasing = True
        try:
            while self._releases:
                self._releases -= 1
                super().release()
        finally:
            self._is_releasing = False  # the next call does what an error left


class PoolSemaphore(bootsteps.Step):
    """Gives the pool of a worker, before it starts, a `FlatSemaphore` for its own. Some pools have none."""

    requires = ("celery.worker.components:Pool",)

    def create(self, worker: Any) -> None:
        if worker.semaphore is not None:
            worker.semaphore = worker.pool.options["semaphore"] = FlatSemaphore(worker.min_concurrency)
            worker._quick_acquire, worker._quick_release = worker.semaphore.acquire, worker.semaphore.release
