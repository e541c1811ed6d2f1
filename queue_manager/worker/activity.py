"""Samples what a worker does for its heartbeat: from Celery's state in the main process, at no cost for a task."""

from __future__ import annotations

import os
import time
from collections import defaultdict, deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from celery.worker import state
from celery.worker.request import Request

from queue_manager import leases
from queue_manager.core.errors import PermanentError
from queue_manager.core.process import resident_memory
from queue_manager.telemetry.worker_heartbeats import (
    MAX_ITEM_ID_LENGTH,
    MAX_PROCESSES_SHOWN,
    MAX_TASKS_SHOWN,
    Activity,
    PoolProcess,
    RunningTask,
)
from queue_manager.worker.heartbeat import snapshot
from tasks.item import ItemTask

RATE_PERIOD = 60.0  # seconds
POOL_NAMES = {"thread": "threads"}
"""Celery's names of kinds of pools that differ from those of their modules."""


class Sampler:
    """Samples the activity of the worker of this process, at every heartbeat."""

    def __init__(self) -> None:
        self._pool: Any = None
        self._ended: deque[tuple[float, int]] = deque()

    def watch(self, pool: Any) -> None:
        """Begin to sample the worker that has this pool."""
        self._pool = pool

    def sample(self) -> Activity | None:
        """Return what the worker does; `None` while it starts, and when its pool has ended."""
        pool = self._pool
        if pool is None:
            return None
        try:
            pids, size = list(pool.info.get("processes", ())), pool.num_processes
        except AttributeError:  # the pool has dropped its processes, and the hub still sends heartbeats
            return None
        running: dict[int, list[Request]] = defaultdict(list)
        accepted = [request for request in snapshot(state.active_requests) if request.time_start is not None]
        for request in accepted:
            running[request.worker_pid].append(request)
        own = os.getpid()
        pids = pids or [own]  # of a pool of threads
        tasks = {pid: _tasks(running.get(pid, ()), is_batch=pid != own) for pid in pids[:MAX_PROCESSES_SHOWN]}
        return Activity(
            pool=_kind(pool),
            size=size,
            busy=len(running) - (own in running) + len(running.get(own, ())),
            done_per_minute=self._rate(state.all_total_count[0] - len(accepted)),
            memory_bytes=resident_memory(own),
            processes=[
                PoolProcess(pid=pid, memory_bytes=resident_memory(pid), running=of_process)
                for pid, of_process in tasks.items()
            ],
        )

    def _rate(self, ended: int) -> int:
        """Return how many tasks ended in the last minute, of `ended` since the worker began."""
        now = time.monotonic()
        self._ended.append((now, ended))
        while len(self._ended) > 1 and self._ended[1][0] <= now - RATE_PERIOD:
            self._ended.popleft()
        return max(ended - self._ended[0][1], 0)


def _kind(pool: Any) -> str:
    module = type(pool).__module__.rpartition(".")[2]
    return POOL_NAMES.get(module, module)


def _tasks(requests: Sequence[Request], *, is_batch: bool) -> list[RunningTask]:
    """Return what one process executes: tasks, or one batch, whose tasks began together."""
    if is_batch and requests:
        return [_task(requests[0], tasks=len(requests))]
    by_start = sorted(requests, key=lambda request: request.time_start)
    return [_task(request) for request in by_start[:MAX_TASKS_SHOWN]]


def _task(request: Request, *, tasks: int = 1) -> RunningTask:
    # Celery computes the start of a task by this clock, too.
    elapsed_ms = max(round((time.time() - request.time_start) * 1000), 0)
    item = _item(request) if tasks == 1 else None
    return RunningTask(task=request.name, id=request.id, item=item, tasks=tasks, elapsed_ms=elapsed_ms)


def _item(request: Request) -> str | None:
    """Return the id of the item of a task, unless it has none."""
    if not isinstance(request.task, ItemTask):
        return None
    with suppress(PermanentError):  # arguments that name no item
        id = leases.id_of(request.task.item(request.id, request.args, request.kwargs).lease)
        return id if len(id) <= MAX_ITEM_ID_LENGTH else None
    return None
