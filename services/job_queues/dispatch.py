"""Dispatch of job queues: the leader sends one message for each name that has a due job. The declaration is last.

What is due: a queue that is not paused, executes no job, and has a job that is due before the next dispatch.
Guarantee: only the newest leader dispatches. A queue in flight is not dispatched again; its lease ends with its run.
A job whose worker was lost is due again, at once after the first loss, and with backoff after further ones in a row.
The cost grows with the number of names and of executing jobs, not of waiting jobs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from models import database, executing_job, job, job_attempt, job_counts, job_operations, job_queue, schema
from models.database import Document
from models.executing_job import ExecutingJob
from models.job import JobState
from models.job_attempt import RENEWALS_PER_LEASE, JobOutcome
from queue_manager.beat import leader_lock
from queue_manager.broker.backlog import Backlog
from queue_manager.core.clock import minutes, seconds
from queue_manager.core.errors import Contended, Unavailable, reason
from queue_manager.core.log import get_logger
from queue_manager.core.process import has_ended
from queue_manager.core.retry import doubling
from queue_manager.core.settings import settings
from queue_manager.items import DueItem
from queue_manager.leases import Attempts, Leases, lease_server
from queue_manager.system import System, SystemStats
from services.due_work import Due, DueBatch, DueWork
from services.job_queues.adoption import adoption_notes
from services.job_queues.attempt_counts import JOBS_INITIATOR, AttemptCounts
from services.job_queues.explanation import explain
from services.job_queues.job_run import CANCELED, Stop, timed_out
from services.job_queues.registry import registry
from services.job_queues.repetition import declared_details, store_declared
from services.job_queues.stats import read_stats

FINISHED_BATCH_SIZE = 1_000  # finished jobs that one transaction deletes, or adds to the counts
MAX_FINISHED_TIME = 1.0  # seconds for each of the two in one dispatch
LOST_ERROR = "The worker was lost while it executed the job"
MIN_LOSS_BACKOFF, MAX_LOSS_BACKOFF = seconds(5), minutes(10)

log = get_logger(JOBS_INITIATOR)


def lease_name(name: str, epoch: int | None) -> str:
    """Return the name of a queue's lease. It contains the epoch, because messages of an older leader are refused and
    must not delay the dispatch of a newer one."""
    return f"{name}@{'' if epoch is None else epoch}"


@dataclass(frozen=True, kw_only=True)
class Dispatch(DueWork):
    """Job queues as due work; the arguments of an item are `(name, epoch)`.

    `epoch` is that of the dispatching leader, `None` for a dispatch triggered by an operator.
    """

    epoch: int | None = None
    retention: timedelta | None = None
    """Age at which finished jobs are deleted; `None` keeps them."""
    declared: Mapping[str, Document] = field(default_factory=dict)
    """Repetitions that code declares, by name."""

    def take_due(self, measure: Callable[[], Backlog]) -> Iterator[DueBatch]:
        """Record the leader, store declared jobs, requeue lost ones, lease due queues; count, delete finished jobs."""
        now = self.clock()
        if not self._leads(now):
            yield DueBatch(other_counts={"refused": 1})
            return
        store_declared(self.declared, now)
        if malformed := executing_job.fail_unclaimed(now):
            log.warning(executing_job.MALFORMED_CLAIM_ERROR, jobs=malformed)
        if reaped := _reap_all(now, lease=self.leases.lease):
            yield DueBatch(other_counts={"reaped": len(reaped)})
            epoch = self._current_epoch()
            self.leases.release([lease_name(name, epoch) for name in reaped])
        yield from super().take_due(measure)
        _in_batches(job_counts.add_finished)
        if self.retention is not None:
            deleted = _in_batches(job_operations.remove_finished, now - self.retention)
            if deleted:
                yield DueBatch(other_counts={"deleted": deleted})
        _recount(now)  # last, because it may take long

    def find_due(self, until: datetime) -> Iterator[Due]:
        first_due = job.due_names(until)
        if not first_due:
            return
        epoch, skipped = self._current_epoch(), {*job_queue.pauses(), *(one.name for one in executing_job.find())}
        for name, due_at in sorted(first_due.items(), key=lambda one: one[1]):
            if name not in skipped:
                yield Due(id=name, due_at=due_at, args=(name, epoch), lease=lease_name(name, epoch))

    def lease_of(self, args: Sequence[Any]) -> str:
        return lease_name(*args)

    @contextmanager
    def attempt(self, item: DueItem) -> Iterator[Attempts]:
        """Release the lease when the run ends, because a job may have been added. Losses are counted per job."""
        attempts = Attempts()
        yield attempts
        if item.lease in attempts.done:
            try:
                self.release([item])
            except Unavailable as error:
                log.warning(
                    "A queue could not be released; its lease will expire", name=item.args[0], error=reason(error)
                )

    def lost(self, item: DueItem, why: str) -> None:
        _reap_of_task(item.task_id, self.clock())
        super().lost(item, why)

    def renew_claims(self, running: Mapping[str, int]) -> None:
        job_attempt.renew_claims(running, until=self.clock() + self.leases.lease)

    def over_limit(self, running: Mapping[str, int]) -> dict[str, str]:
        found = job_attempt.over_limit(running, self.clock())
        return {one.token: f"The job {one.id} of {one.name} {_stop_of(one).text}" for one in found}

    def give_up(self, item: DueItem, *, error: str) -> None:
        """Start a cool-down of one lease duration: the run itself failed, not one of its jobs."""
        self.leases.release([item.lease], cool_down=self.leases.lease)

    def _take(self, some: Sequence[Due], *, is_manual: bool = False) -> DueBatch:
        """Lease the queues; also those dispatched ahead of time for a later job, if a job is due now."""
        now = self.clock()
        if due := [one.lease for one in some if one.due_at <= now]:
            self.leases.end_early(due)
        return super()._take(some, is_manual=is_manual)

    def mark_dispatched_ahead(self, waits: Mapping[str, timedelta]) -> None:
        """Hold queues for one lease after their due time: `end_early` recognizes them by the end of their lease."""
        self.leases.renew(list(waits), wait=max(waits.values()))

    def _leads(self, now: datetime) -> bool:
        """Record the leader and complete its takeover; return False if it is refused."""
        if self.epoch is None:
            return True
        try:
            # A lease lasts longer after its last renewal, and dispatches are more frequent.
            min_gap = max(self.leases.lease / RENEWALS_PER_LEASE, 2 * self.ahead)
            is_settling = job_queue.lead(self.epoch, now=now, min_gap=min_gap)
        except job_queue.NewerLeader:
            log.warning("A dispatch of an older leader was refused", epoch=self.epoch)
            _raise_epoch(now)
            return False
        if is_settling:
            failed = job.make_failed_due(now)
            log.info("A new leader dispatches; failed jobs are due now", failed=failed, epoch=self.epoch)
            job_queue.settle(self.epoch)
        return True

    def _current_epoch(self) -> int | None:
        return job_queue.leader_epoch() if self.epoch is None else self.epoch


def _raise_epoch(now: datetime) -> None:
    """Raise the epoch in Redis above the one in MongoDB, in case Redis lost its data and counts from one again."""
    if (leader := job_queue.leader()) is None:
        return
    known, age = int(leader["epoch"]), now - leader["since"]
    try:
        with lease_server() as client:
            is_raised = leader_lock.raise_epoch(client, leader_lock.LEADER_LOCK, known=known, age=age)
        if is_raised:
            log.warning("Redis had lost the epoch; the leader takes a new one", known_epoch=known)
    except Unavailable as error:
        log.warning("The epoch could not be raised; the next dispatch tries again", error=reason(error))


def _in_batches(act: Callable[..., int], *arguments: Any) -> int:
    """Count or delete finished jobs until none is left, the time is over, or they are locked; return their number."""
    ends_at, done = time.monotonic() + MAX_FINISHED_TIME, 0
    try:
        while some := act(*arguments, limit=FINISHED_BATCH_SIZE):
            done += some
            if time.monotonic() >= ends_at:
                break
    except Contended:
        log.warning("Finished jobs are locked by another transaction; the next dispatch counts or deletes them")
    return done


def _recount(now: datetime) -> None:
    """Correct the counts if a recount is due. If it fails, the dispatch goes on, and it is retried after a pause."""
    try:
        if job_counts.begin_recount(now):
            job_counts.recount(now)
    except (database.Error, Contended) as error:
        log.warning("Finished jobs could not be recounted; a later dispatch tries again", error=reason(error))


# Jobs whose process is gone


def _reap_all(now: datetime, *, lease: timedelta) -> list[str]:
    """Reap the jobs whose lease has ended; return their names.

    If it ended while the database was unavailable, or no dispatch ran, its worker may be alive, so it gets time for a
    renewal first.
    """
    ended = [one for one in executing_job.find() if one.claimed_until <= now]
    gap = job_queue.last_gap() if ended else None
    if gap is not None and now < gap.ended + lease / RENEWALS_PER_LEASE:
        ended = [one for one in ended if one.claimed_until <= gap.began]
    return [lost.name for lost in ended if reap(lost, now)]


def _reap_of_task(token: str, now: datetime) -> None:
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
        outcome = _stop_of(lost).outcome(lost.attempt)
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


def _stop_of(executing: ExecutingJob) -> Stop:
    """Return why the process of a job is killed."""
    return CANCELED if executing.is_canceled else timed_out(seconds(executing.timeout_seconds or 0))


# The declaration


def dispatch(epoch: int | None = None) -> Dispatch:
    """Return the dispatch of due queues for the leader of `epoch`."""
    is_dry_run, days = system.name in settings().qm_dry_run, settings().jobs_retention_days
    return Dispatch(
        leases=Leases(system.name, seconds(settings().jobs_lease_seconds)),
        ahead=system.period(settings()),
        epoch=epoch,
        retention=timedelta(days=days) if days and not is_dry_run else None,
        declared={} if is_dry_run else registry.repetitions(),
    )


def stats() -> SystemStats:
    """Return the statistics of all job queues."""
    found = read_stats(dispatch(), late=system.late_after(settings()))
    found.details.extend(declared_details(registry.repetitions()))
    return found


system: System = System(
    name="job-queues",
    title="Jobs",
    description="Dispatches the queue of each name that has a due job.",
    every=lambda chosen: timedelta(milliseconds=chosen.jobs_timer_ms),
    flag="QM_JOBS",
    may_run=lambda chosen: chosen.allows_jobs,
    scan_task="tasks.job_queues.dispatch_due_jobs",
    takes_epoch=True,
    item_task="tasks.job_queues.run_queue",
    queue="jobs",
    trigger="jobs/dispatch",
    page="/jobs",
    items_name="jobs",
    explain=explain,
    state_pages={
        "due": "/jobs?state=pending",
        "late": "/jobs?state=pending",
        "in-progress": "/jobs?state=executing",
        "stuck": "/jobs",
        "failed": "/jobs?state=failure",
    },
    stats=stats,
    stats_server="MongoDB or Redis",
    counted_as=JOBS_INITIATOR,
    on_time_within=seconds(1),
    on_time_of="wait",
    duration_names={"due_to_done": "Due to finished", "wait": "Due to started", "run": "Run"},
    collections=lambda: {**job.JOB_INDEXES, **job_queue.QUEUE_INDEXES},
    adoption_notes=adoption_notes,
    obsolete_indexes={**job.OBSOLETE_INDEXES, job_queue.QUEUES_COLLECTION: schema.CLAIM_INDEXES},
)
