"""The pool of a worker."""

from __future__ import annotations

from typing import Any

from celery import bootsteps

from queue_manager.batching import semaphore


class PoolSemaphore(bootsteps.Step):
    """Gives the pool a semaphore that does not recurse, before it starts."""

    requires = ("celery.worker.components:Pool",)

    def create(self, worker: Any) -> None:
        semaphore.install(worker)
