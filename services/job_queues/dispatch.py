"""Dispatch of job queues: finds names with due jobs, and requeues jobs whose worker was lost.

What is due: a queue that is not paused, executes no job, and has a job that is due before the next dispatch.
Guarantee: only the newest leader dispatches. A queue in flight is not dispatched again; its lease ends with its run.
The cost grows with the number of names and of executing jobs, not of waiting jobs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import redis
from pymongo import IndexModel

from models import database, job, job_attempt, job_queue, old_claims
from models.job import ExecutingJob
from queue_manager.beat import leader_lock
from queue_manager.core.clock import minutes, seconds, truncate
from queue_manager.core.errors import Unavailable, reason
from queue_manager.core.log import get_logger
from queue_manager.core.redis_client import PerProcess, make_client
from queue_manager.core.retry import doubling
from queue_manager.core.settings import settings
from queue_manager.leases import Attempts, Leases
from queue_manager.system import System, SystemStats
from services.due_work import Backlog, Due, DueBatch, DueItem, DueWork
from services.job_queues.adoption import adoption_notes
from services.job_queues.stats import read_stats

JOBS_INITIATOR = "QM/jobs"
LOST_ERROR = "The worker was lost while it executed the job"
RETENTION_BATCH_SIZE = 1_000  # finished jobs that one dispatch deletes
MIN_LOSS_BACKOFF, MAX_LOSS_BACKOFF = seconds(5), minutes(10)

log = get_logger(JOBS_INITIATOR)
_redis = PerProcess(lambda: make_client(settings().redis_url))


@dataclass(frozen=True, kw_only=True)
class DueQueue(Due):
    """A due queue; `id` is its name."""

    @property
    def lease(self) -> str:
        return lease_name(*self.args)


def lease_name(name: str, epoch: int | None) -> str:
    """Return the name of a queue's lease. It contains the epoch, because messages of an older leader are refused and
    must not delay the dispatch of a newer one.
    """
    return f"{name}@{'' if epoch is None else epoch}"


@dataclass(frozen=True, kw_only=True)
class Dispatch(DueWork):
    """Job queues as due work; the arguments of an item are `(name, epoch)`.

    `epoch` is that of the dispatching leader, `None` for a dispatch triggered by an operator.
    """

    epoch: int | None = None
    retention: timedelta | None = None
    """Age at which finished jobs are deleted; `None` keeps them."""

    def take_due(self, backlog: Backlog) -> Iterator[DueBatch]:
        """Record the leader, requeue lost jobs, lease the due queues, and delete old jobs."""
        now = self.clock()
        if not self._leads(now):
            yield DueBatch(found=0, items=[], other_counts={"refused": 1})
            return
        reaped = [lost.name for lost in job.executing() if lost.claimed_until <= now and _reap(lost, now)]
        if reaped:
            yield DueBatch(found=0, items=[], other_counts={"reaped": len(reaped)})
            epoch = self._current_epoch()
            self.leases.release([lease_name(name, epoch) for name in reaped])
        yield from super().take_due(backlog)
        if self.retention and (deleted := job.remove_finished(now - self.retention, limit=RETENTION_BATCH_SIZE)):
            yield DueBatch(found=0, items=[], other_counts={"deleted": deleted})

    def find_due(self, until: datetime) -> Iterator[Due]:
        skipped = job_queue.paused() | {running.name for running in job.executing()}
        epoch, first_due = self._current_epoch(), job.due_names(until)
        for name, due_at in sorted(first_due.items(), key=lambda one: one[1]):
            if name not in skipped:
                yield DueQueue(id=name, due_at=due_at, args=(name, epoch))

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
                log.warning("A queue could not be released; its lease will expire", name=item.args[0], error=error)

    def lost(self, item: DueItem) -> None:
        job_attempt.expire(token=item.token, now=self.clock())
        super().lost(item)

    def give_up(self, item: DueItem, *, error: str) -> None:
        """Start a cool-down of one lease duration: the run itself failed, not one of its jobs."""
        self.cool_down(item, pause=self.leases.lease)

    def _take(self, some: Sequence[Due], *, is_manual: bool = False) -> DueBatch:
        """Lease the queues; also those dispatched ahead of time for a later job, if a job is due now."""
        now = self.clock()
        if due := [one.lease for one in some if one.due_at <= now]:
            self.leases.end_early(due)
        return super()._take(some, is_manual=is_manual)

    def sent_ahead(self, items: Sequence[DueItem], *, wait: timedelta) -> None:
        """Hold queues for one lease after their time: `end_early` knows them by the end of their lease."""
        self.leases.renew([item.lease for item in items], wait=wait)

    def _leads(self, now: datetime) -> bool:
        """Record the leader and complete its take-over; return False if it is refused."""
        if self.epoch is None:
            return True
        try:
            is_settling = job_queue.lead(self.epoch, now=now)
        except job_queue.NewerLeader:
            log.warning("A dispatch of an older leader was refused", epoch=self.epoch)
            _raise_epoch(now)
            return False
        if is_settling:
            log.info(
                "A new leader dispatches; failed jobs are due now", failed=job.make_failed_due(now), epoch=self.epoch
            )
            job_queue.settle(self.epoch)
        return True

    def _current_epoch(self) -> int | None:
        return job_queue.leader_epoch() if self.epoch is None else self.epoch


def _raise_epoch(now: datetime) -> None:
    """Raise the epoch in Redis above the one in MongoDB, in case Redis lost its data and counts from one again."""
    leader = job_queue.leader()
    if leader is None:
        return
    known, age = int(leader["epoch"]), now - leader["since"]
    try:
        if leader_lock.raise_epoch(_redis(), leader_lock.LEADER_LOCK, known=known, age=age):
            log.warning("Redis had lost the epoch; the leader takes a new one", known_epoch=known)
    except redis.RedisError as error:
        log.warning("The epoch could not be raised; the next dispatch tries again", error=reason(error))


def _reap(lost: ExecutingJob, now: datetime) -> bool:
    """Requeue a lost job: immediately after the first loss, with backoff after further losses."""
    backoff = doubling(MIN_LOSS_BACKOFF, lost.losses - 1, cap=MAX_LOSS_BACKOFF) if lost.losses else seconds(0)
    is_reaped = job_attempt.reap(lost, waiting=truncate(now + backoff), now=now, error=LOST_ERROR)
    if is_reaped:
        log.warning(LOST_ERROR, job=str(lost.id), name=lost.name)
    return is_reaped


def dispatch(epoch: int | None = None) -> Dispatch:
    """Return the dispatch of due queues for the leader of `epoch`."""
    days = 0 if system.name in settings().qm_dry_run else settings().jobs_retention_days
    return Dispatch(
        leases=Leases(system.name, seconds(settings().jobs_lease_seconds)),
        clock=database.server_now,
        ahead=system.period(settings()),
        epoch=epoch,
        retention=timedelta(days=days) if days else None,
    )


def stats() -> SystemStats:
    """Return the statistics of all job queues."""
    return read_stats(dispatch(), late=system.late_after(settings()))


def _collections() -> dict[str, list[IndexModel]]:
    return {**job.collections(), **job_queue.collections()}


system = System(
    name="job-queues",
    title="Jobs",
    description="Named queues of jobs, dispatched when a job is due.",
    every=lambda chosen: timedelta(milliseconds=chosen.jobs_timer_ms),
    flag="QM_JOBS",
    may_run=lambda chosen: chosen.allows_jobs,
    scan_task="tasks.job_queues.dispatch_due_jobs",
    takes_epoch=True,
    item_task="tasks.job_queues.run_queue",
    queue="jobs",
    trigger="jobs/dispatch",
    page="/jobs",
    stats=stats,
    stats_server="MongoDB or Redis",
    counted_as=JOBS_INITIATOR,
    collections=_collections,
    adoption_notes=adoption_notes,
    obsolete_indexes={**job.OBSOLETE_INDEXES, job_queue.QUEUES_COLLECTION: old_claims.INDEXES},
)
