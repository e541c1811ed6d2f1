"""Celery tasks of the job queues: a scan for queues that have due jobs, and one task for each queue."""

from __future__ import annotations

from typing import Any

from queue_manager.core.clock import seconds
from queue_manager.core.retry import RetryPolicy
from services import job_queues
from tasks.item import current_task_id, item_task
from tasks.scan import ScanReport, fan_out, scan_task

JOBS_QUEUE = str(job_queues.system.queue)


@scan_task(initiator=job_queues.JOBS_INITIATOR, sent="Dispatched job queues.", failed="Error in job dispatch")
def dispatch_due_jobs(epoch: int | None = None) -> ScanReport:
    return fan_out(run_queue, job_queues.dispatch(epoch))


@item_task(queue=JOBS_QUEUE, work=job_queues.dispatch, retry=RetryPolicy(max_attempts=3, base=seconds(1)), is_long=True)
def run_queue(name: str, epoch: int | None = None) -> dict[str, Any]:
    return job_queues.run_queue(name, epoch, token=current_task_id())
