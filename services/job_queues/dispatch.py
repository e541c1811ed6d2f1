"""Dispatch of job queues: finds names with due jobs, and requeues jobs whose worker was lost.

What is due: a queue that is not paused, executes no job, and has a job that is due before the next dispatch.
Guarantee: only the newest leader dispatches. A queue in flight is not dispatched again; its lease ends with its run.
The cost grows with the number of names and of executing jobs, not of waiting jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from models import job, job_attempt, job_leader, job_queue
from models.job import ExecutingJob
from queue_manager.core.clock import minutes, seconds, truncate
from queue_manager.core.errors import Unavailable
from queue_manager.core.log import get_logger
from queue_manager.core.retry import doubling
from queue_manager.leases import Attempts
from services.due_work import Backlog, Due, DueBatch, DueItem, DueWork

LOST_ERROR = "The worker was lost while it executed the job"
MIN_LOSS_BACKOFF, MAX_LOSS_BACKOFF = seconds(5), minutes(10)

log = get_logger("QM/jobs")


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

    `epoch` is that of the dispatching leader, `None` for a dispatch triggered by an operator. If the epoch is refused,
    `on_refused` is called with the newer epoch stored in MongoDB and the time since its take-over.
    """

    epoch: int | None = None
    on_refused: Callable[[int, timedelta], object] | None = None

    def take_due(self, backlog: Backlog) -> Iterator[DueBatch]:
        """Record the leader, requeue lost jobs, and lease the due queues."""
        now = self.clock()
        if not self._leads(now):
            yield DueBatch(found=0, items=[], other_counts={"refused": 1})
            return
        reaped = [lost.name for lost in job.executing() if lost.claimed_until <= now and self._reap(lost, now)]
        if reaped:
            yield DueBatch(found=0, items=[], other_counts={"reaped": len(reaped)})
            epoch = self._epoch()
            self.leases.release([lease_name(name, epoch) for name in reaped])
        yield from super().take_due(backlog)

    def find_due(self, until: datetime) -> Iterator[Due]:
        skipped = job_queue.paused() | {running.name for running in job.executing()}
        epoch, first_due = self._epoch(), job.due_names(until)
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
        has_taken_over = job_leader.lead(self.epoch, now=now)
        if has_taken_over is None:
            log.warning("A dispatch of an older leader was refused", epoch=self.epoch)
            known = job_leader.current()
            if known is not None and self.on_refused is not None:
                self.on_refused(int(known["epoch"]), now - known["since"])
            return False
        if has_taken_over:
            log.info(
                "A new leader dispatches; failed jobs are due now", failed=job.make_failed_due(now), epoch=self.epoch
            )
            job_leader.settle(self.epoch)
        return True

    def _epoch(self) -> int | None:
        return job_leader.current_epoch() if self.epoch is None else self.epoch

    def _reap(self, lost: ExecutingJob, now: datetime) -> bool:
        """Requeue a lost job: immediately after the first loss, with backoff after further losses."""
        losses = job_attempt.losses(lost.id)
        backoff = doubling(MIN_LOSS_BACKOFF, losses - 1, cap=MAX_LOSS_BACKOFF) if losses else seconds(0)
        is_reaped = job_attempt.reap(lost, waiting=truncate(now + backoff), now=now, error=LOST_ERROR)
        if is_reaped:
            log.warning(LOST_ERROR, job=str(lost.id), name=lost.name)
        return is_reaped
