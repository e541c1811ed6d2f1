"""Celery tasks that requeue overdue messages: a scan every period, and a task at each deadline before the next one."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

from models.database import estimated_now
from queue_manager.core.clock import Pace
from queue_manager.core.log import get_logger
from queue_manager.system import SCANS_QUEUE
from services.message_queue import SweepResult, fold_counts, other_programs, sweeper
from services.message_queue.other_programs import HEAL_INTERVAL
from tasks.app import app
from tasks.scan import ScanReport, scan_task

MESSAGE_QUEUE_INITIATOR = "QM/message-queue"

log = get_logger(MESSAGE_QUEUE_INITIATOR)
_heals = Pace(HEAL_INTERVAL)


@scan_task(initiator=MESSAGE_QUEUE_INITIATOR, sent="Requeued overdue messages.", failed="Overdue requeue worker failed")
def requeue_overdue_messages() -> ScanReport:
    swept = sweep()
    if _heals.allows():
        other_programs().heal()
    fold_counts()
    requeued, dead = len(swept.requeued), len(swept.dead_lettered)
    return ScanReport(
        found=requeued + dead,
        claimed=requeued + dead,
        enqueued=requeued,
        other_counts=Counter(requeued=requeued, dead_lettered=dead),
        details={"ids": swept.requeued, "dlq_ids": swept.dead_lettered},
    )


@app.task(queue_name=SCANS_QUEUE, acks_late=False, Strategy="queue_manager.batching.strategy:by_server_clock")
def requeue_at_deadline() -> None:
    """Sweep between two periods; the periodic scan compensates for a lost one."""
    swept = sweep(is_scheduled=True)
    if swept.requeued or swept.dead_lettered:
        log.info(requeue_overdue_messages.sent, requeued=len(swept.requeued), dead_lettered=len(swept.dead_lettered))


def sweep(*, is_scheduled: bool = False) -> SweepResult:
    """Requeue overdue messages, and schedule a sweep at the next deadline."""
    swept = sweeper().sweep(can_schedule=True, is_scheduled=is_scheduled)
    if swept.next_sweep_in is not None:
        schedule_sweep(swept.next_sweep_in)
    return swept


def schedule_sweep(wait: timedelta) -> None:
    """Let a worker sweep after `wait`; an argument of `message_queue(schedule_sweep=…)`."""
    # Not `countdown`, which Celery adds to this machine's time.
    requeue_at_deadline.apply_async(eta=estimated_now() + wait, retry=False)
