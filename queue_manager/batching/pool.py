"""Changes to the pool of a worker that batches need. A `PoolStep` makes them before the pool starts.

Semaphore: requests that wait for a process are started one after another. A request that was revoked, has expired or
was put back releases its slot at once. Celery's semaphore then starts the next one recursively, so that a few hundred
of them in a row exceed Python's recursion limit, and the worker exits.

Pipes: each holds a whole batch. With Linux's 64 KiB the worker sends and receives a batch in parts, one per turn of its
event loop, and the process waits for each of them.

Timeouts: after a pause, because it was suspended or its broker did not answer, a worker finds expired timeouts of items
whose results it has not read yet. Celery would kill their processes and count the items as lost.
"""

from __future__ import annotations

import fcntl
from contextlib import suppress
from typing import Any

from billiard.pool import TimeoutHandler
from celery import bootsteps
from celery.concurrency.asynpool import AsynPool
from kombu.asynchronous import get_event_loop
from kombu.asynchronous.semaphore import LaxBoundedSemaphore

PIPE_SIZE = 512 * 1024
"""In bytes. A batch of 1,000 rooms has some 400 KB, its results 120 KB."""
READING_TIME = 1.0
"""Seconds in which the event loop reads a result that waits."""


class FlatSemaphore(LaxBoundedSemaphore):
    """Celery's semaphore without recursion: a nested `release` returns at once, and the outer one does its work."""

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
            self._is_releasing = False  # after an error, the next call does the rest


class ResultsFirst(TimeoutHandler):
    """Billiard's handler of timeouts, which does not kill a process whose result waits to be read."""

    def on_hard_timeout(self, job: Any) -> None:
        process, _ = self._process_by_pid(job._worker_pid)
        if process is not None and process.outq._reader.poll(0):
            get_event_loop().call_later(READING_TIME, self.on_hard_timeout, job)
        else:
            super().on_hard_timeout(job)


class WidePool(AsynPool):
    """Celery's pool of processes, with pipes that hold a batch."""

    TimeoutHandler = ResultsFirst

    def create_process_queues(self) -> Any:
        jobs, results, *others = super().create_process_queues()
        if hasattr(fcntl, "F_SETPIPE_SZ"):  # Linux
            for queue in (jobs, results):
                with suppress(OSError):  # a limit of the user for pipes is reached
                    fcntl.fcntl(queue._writer, fcntl.F_SETPIPE_SZ, PIPE_SIZE)
        return jobs, results, *others


class PoolStep(bootsteps.Step):
    """Gives the pool of a worker a `FlatSemaphore`, and processes with a `WidePool`. Some pools have neither."""

    requires = ("celery.worker.components:Pool",)

    def create(self, worker: Any) -> None:
        if worker.semaphore is not None:
            worker.semaphore = worker.pool.options["semaphore"] = FlatSemaphore(worker.min_concurrency)
            worker._quick_acquire, worker._quick_release = worker.semaphore.acquire, worker.semaphore.release
        if getattr(worker.pool, "Pool", None) is AsynPool:
            worker.pool.Pool = WidePool
