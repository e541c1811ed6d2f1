"""Jobs whose process is gone: its worker was lost, or it was killed because the job was canceled or exceeded its limit.

Guarantee: a lost job is due again, at once after the first loss, and with backoff after further losses in a row.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from models import database, executing_job, job_attempt, job_queue
from models.executing_job import ExecutingJob
from models.job import JobState
from models.job_attempt import RENEWALS_PER_LEASE, JobOutcome
from queue_manager.core.clock import minutes, seconds
from queue_manager.core.errors import reason
from queue_manager.core.log import get_logger
from queue_manager.core.process import has_ended
from queue_manager.core.retry import doubling
from services.job_queues.attempt_counts import AttemptCounts
from services.job_queues.job_run import CANCELED, Stop, timed_out

LOST_ERROR = "The worker was lost while it executed the job"
MIN_LOSS_BACKOFF, MAX_LOSS_BACKOFF = seconds(5), minutes(10)

log = get_logger("QM/jobs")


def reap_all(now: datetime, *, lease: timedelta) -> list[str]:
    """Reap the jobs whose lease has ended; return their names.

    If it ended while the database was unavailable, or no dispatch ran, its worker may be alive, so it gets time for a
    renewal first.
    """
    ended = [one for one in executing_job.find() if one.claimed_until <= now]
    gap = job_queue.last_gap() if ended else None
    if gap is not None and now < gap.ended + lease / RENEWALS_PER_LEASE:
        ended = [one for one in ended if one.claimed_until <= gap.began]
    return [lost.name for lost in ended if reap(lost, now)]


def reap_of_task(token: str, now: datetime) -> None:
    """Reap the jobs of a task whose process died or was killed."""
    for lost in executing_job.find({"claim.token": token}):
        is_over_limit = lost.ends_at is not None and lost.ends_at <= now
        # A task that is delivered twice has one token: the job may belong to another process, which is alive.
        if is_over_limit or lost.worker is None or has_ended(lost.worker):
            reap(lost, now, is_over_limit=is_over_limit)


def reap(lost: ExecutingJob, now: datetime, *, is_over_limit: bool = False) -> bool:
    """Record the end of an attempt whose process is gone; return False if that was not possible or not necessary."""
    if is_loss := not (lost.is_canceled or is_over_limit):
        backoff = doubling(MIN_LOSS_BACKOFF, lost.losses - 1, cap=MAX_LOSS_BACKOFF) if lost.losses else seconds(0)
        outcome = JobOutcome(state=JobState.FAILURE, backoff=backoff, error=LOST_ERROR)
    else:
        outcome = stop_of(lost).outcome(lost.attempt)
    try:
        is_reaped = job_attempt.reap(lost, outcome, now=now, is_loss=is_loss)
    except database.Error as error:
        if database.is_outage(error):
            raise
        # One document that cannot be changed, such as one of 16 MB, must not stop the dispatch of all jobs.
        log.error("The end of a job could not be recorded", job=str(lost.id), name=lost.name, error=reason(error))
        return False
    if is_reaped:
        counts = AttemptCounts(lost.name)
        counts.add(outcome)
        counts.write()
    if is_reaped and is_loss:
        log.warning(LOST_ERROR, job=str(lost.id), name=lost.name)
    return is_reaped


def stop_of(executing: ExecutingJob) -> Stop:
    """Return why the process of a job is killed."""
    return CANCELED if executing.is_canceled else timed_out(seconds(executing.timeout_seconds or 0))
