"""Renews the leases of every item that this worker has taken from the broker and not finished; samples the clock.

A message that waits in a slow worker is neither in the queue nor lost. Without a renewal its lease would run out
and the next scan would send the item again. A worker that dies stops renewing: that is how its items come back.
The main process also renews the claims of long tasks and ends those that exceed their time limit, since a process that
hangs, is stopped or holds the GIL can do neither.
The main thread judges ETAs by the sample of the database server's clock (`database.estimated_now`).
"""

from __future__ import annotations

import os
import signal
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from threading import Event

from celery.worker import state
from celery.worker.request import Request

from models.database import is_outage, server_now
from queue_manager.batching.request import lost_requests
from queue_manager.core.background import ServiceThread
from queue_manager.core.errors import reason, typed_reason
from queue_manager.core.log import get_logger
from queue_manager.core.redis_client import REDIS_OUTAGES
from queue_manager.core.settings import settings
from tasks.item import ItemTask

RENEWAL_INTERVAL = 0.5  # seconds; an item held for two rounds is renewed, and `broker.backlog` covers the time before

log = get_logger("QM/leases")


class Heartbeat(ServiceThread):
    """One thread of the worker's main process."""

    def __init__(self) -> None:
        super().__init__(self._run, name="heartbeat")
        self._seen: set[str] = set()
        self._renewed: set[str] = set()
        self._renewed_at = self._claims_renewed_at = 0.0
        self._ended: set[str] = set()
        self._failing: set[tuple[str, ...]] = set()

    def _run(self, is_over: Event) -> None:
        steps = (self.supervise, self.renew_leases, self.release_lost, server_now)
        while not is_over.wait(RENEWAL_INTERVAL):
            for act in steps:
                with self._contained(act.__name__):
                    act()

    def release_lost(self) -> None:
        """Release the items of processes that died; repeated while MongoDB is unavailable."""
        while lost_requests:
            request, why = lost_requests.popleft()
            try:
                request.task.work().lost(request.task.item(request.id, request.args, request.kwargs), why)
            except Exception as error:
                if is_outage(error):
                    lost_requests.append((request, why))
                    raise
                log.error("A lost item waits for its lease to end", task_id=request.id, error=reason(error))

    def supervise(self) -> None:
        """Renew the claims of long tasks while their process lives, and end the processes that exceeded their limit.

        A process cannot do either itself while its task holds the GIL, or while it is stopped.
        """
        running: dict[ItemTask, dict[str, int]] = defaultdict(dict)
        for request in snapshot(state.reserved_requests):
            if isinstance(request.task, ItemTask) and request.task.is_long and request.worker_pid:
                running[request.task][request.id] = request.worker_pid
        is_renewal = time.monotonic() - self._claims_renewed_at > settings().jobs_lease_seconds / 3
        for task, pids in running.items():
            with self._contained("supervise", task=task.name):
                if is_renewal:
                    task.work().renew_claims(pids)
                for task_id, text in task.work().over_limit(pids).items():
                    self._end_process(task_id, pids[task_id], text)
        self._ended &= {task_id for pids in running.values() for task_id in pids}
        if is_renewal:
            self._claims_renewed_at = time.monotonic()

    def _end_process(self, task_id: str, pid: int, text: str) -> None:
        """End a process of the pool, once. A pool of threads has none, so that the task goes on."""
        if pid == os.getpid() or task_id in self._ended:
            return
        self._ended.add(task_id)
        log.error(f"{text}, and did not stop: its process is killed", pid=pid)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    def renew_leases(self) -> None:
        """Renew the leases held since the previous round, and all leases after a third of their duration.

        Most items complete before their second round: their own start renews them.
        """
        received = snapshot(state.reserved_requests)
        held = {request.id: request for request in received if isinstance(request.task, ItemTask)}
        shortest = min(settings().qm_lease_seconds, settings().jobs_lease_seconds)
        everything = time.monotonic() - self._renewed_at > shortest / 3
        chosen = set(held) if everything else (held.keys() & self._seen) - self._renewed
        of_task: dict[ItemTask, list[Request]] = defaultdict(list)
        for task_id, request in held.items():
            if task_id in chosen:
                of_task[request.task].append(request)
        renewed = set[str]()
        for task, requests in of_task.items():
            with self._contained("renew_leases", task=task.name):
                work = task.work()
                items = [task.read_item(work, one.id, one.args, one.kwargs) for one in requests]
                work.renew([item for item in items if item is not None])  # arguments that name no item hold nothing
                renewed |= {one.id for one in requests}
        self._seen = set(held)
        self._renewed = (self._renewed - chosen | renewed) & self._seen
        if everything:
            self._renewed_at = time.monotonic()

    @contextmanager
    def _contained(self, step: str, **system: str) -> Iterator[None]:
        """Log an error of a step, or of one system in it, when it begins and when it ends.

        An outage concerns all systems, so that it ends the step. While MongoDB is unavailable, leases may end, which
        costs duplicates without effect; the last sample of the clock is used.
        """
        failing = (step, *system.values())
        try:
            yield
        except Exception as error:
            if system and (is_outage(error) or isinstance(error.__cause__, REDIS_OUTAGES)):
                raise
            if failing not in self._failing:
                self._failing.add(failing)
                report = log.error if system else log.warning
                report("A step of the heartbeat failed", step=step, **system, error=typed_reason(error))
        else:
            if failing in self._failing:
                self._failing.remove(failing)
                log.info("The heartbeat works again", step=step, **system)


def snapshot(requests: Iterable[Request]) -> list[Request]:
    """Return the requests of one of Celery's sets. The main thread may change it while it is read."""
    while True:
        try:
            return list(requests)
        except RuntimeError:
            continue
