"""Celery tasks of the job queues: a scan for queues that have due jobs, and one task for each queue."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import timedelta
from threading import Lock
from typing import Any

from models import job
from models.database import server_now
from queue_manager import pauses
from queue_manager.core.clock import seconds
from queue_manager.core.errors import ConfigurationError, ContinueLater, NotYetDue, Unavailable
from queue_manager.core.retry import RetryPolicy
from queue_manager.core.settings import settings
from services import job_queues
from services.job_queues import registry, system
from services.job_queues.runner import Runner, RunReport
from tasks.item import current_task_id, item_task
from tasks.scan import ScanReport, fan_out, scan_task

JOBS_QUEUE = str(system.queue)
RUN_BUDGET = seconds(30)  # maximum duration of a run, so that other queues get their turn
SYSTEM_PAUSED = "the system is paused"

_running: set[str] = set()
_running_lock = Lock()


@scan_task(initiator=job_queues.JOBS_INITIATOR, sent="Dispatched job queues.", failed="Error in job dispatch")
def dispatch_due_jobs(epoch: int | None = None) -> ScanReport:
    return fan_out(run_queue, job_queues.dispatch(epoch))


@item_task(
    queue=JOBS_QUEUE,
    work=job_queues.dispatch,
    retry=RetryPolicy(max_attempts=3, base=seconds(1)),
    is_long=True,
    is_counted=False,  # its jobs are
)
def run_queue(name: str, epoch: int | None = None) -> dict[str, Any]:
    return run_jobs(name, epoch, token=current_task_id())


def run_jobs(name: str, epoch: int | None, *, token: str) -> dict[str, Any]:
    """Run the due jobs of `name` one after another; `token` is the id of this task.

    A run of the leader of `epoch` starts none while the system is paused; that of an operator, `None`, starts them.

    Returns:
        `{succeeded, failed, canceled, lost, stopped}`: number of attempts by outcome, and the reason of an early stop.

    Raises:
        ContinueLater: the time budget is used and more jobs are due, unless the system is paused.
        NotYetDue: the next job is due before the next dispatch, unless the system is paused.
        ConfigurationError: jobs may not run in this environment.
    """
    if not settings().allows_jobs:
        raise ConfigurationError(settings().jobs_disabled_reason)
    if epoch is not None and _is_system_paused():  # this task may have waited for a worker, or for its ETA
        return asdict(RunReport(stopped=SYSTEM_PAUSED))
    runner = Runner(
        name=name,
        registry=registry,
        clock=server_now,
        lease=seconds(settings().jobs_lease_seconds),
        budget=RUN_BUDGET,
        token=token,
        epoch=epoch,
        timeout=seconds(settings().jobs_timeout_seconds),
        grace=seconds(settings().jobs_grace_seconds),
    )
    with _alone_in_this_process(token) as is_alone:
        report = runner.run() if is_alone else RunReport(stopped="this process already runs this task")
    due = None if report.stopped else job.next_due(name)
    remaining = None if due is None else due - server_now()
    if remaining is not None and remaining <= system.period(settings()):
        if not _is_system_paused():
            raise NotYetDue(remaining) if remaining > timedelta(0) else ContinueLater
        report.stopped = SYSTEM_PAUSED  # the scan dispatches the name after the system is resumed
    return asdict(report)


def _is_system_paused() -> bool:
    """Return False also if Redis cannot be read: an outage must not stop the jobs."""
    try:
        return pauses.is_paused(system.name)
    except Unavailable:
        return False


@contextmanager
def _alone_in_this_process(token: str) -> Iterator[bool]:
    """Yield False if the task of `token` runs in this process already.

    A pool of threads executes both copies of a task that is delivered twice in one process, whose claims and
    reservations are the same.
    """
    with _running_lock:
        is_alone = token not in _running
        _running.add(token)
    try:
        yield is_alone
    finally:
        if is_alone:
            with _running_lock:
                _running.discard(token)
