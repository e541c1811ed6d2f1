"""Handing out queues: which names have a job to be started, and which job was lost with its worker.

What is due: a queue one of whose jobs is due, or falls due before the next dispatch.
Guarantee: only the newest leader hands out; two looks at the jobs, whose cost follows the names and what executes, and
not how many jobs wait. A queue that is handed out already is left alone until its lease ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from models import job, job_attempt, job_leader, job_queue
from models.claims import Claimed
from models.job import Executing
from queue_manager.core.clock import minutes, seconds, truncate
from queue_manager.core.errors import PermanentError
from queue_manager.core.log import get_logger
from queue_manager.core.retry import doubling
from services.claimed_work import ClaimedWork
from services.due_work import Backlog, DueBatch, DueItem

LOST = "The worker was lost while it executed the job"
FIRST_REST, LONGEST_REST = seconds(5), minutes(10)

log = get_logger("QM/jobs")


@dataclass(frozen=True, kw_only=True)
class Dispatch(ClaimedWork):
    """The queues as due work.

    `epoch` is that of the leader who asks; `None`: a person does. When it is refused, `on_refused` gets the newer epoch
    that MongoDB knows, and the time since that one took over.
    """

    epoch: int | None = None
    on_refused: Callable[[int, timedelta], object] | None = None

    def claim_due(self, backlog: Backlog) -> Iterator[DueBatch]:
        """Note the leader, make lost jobs due again, and claim the queues that have something to run."""
        now = self.clock()
        has_taken_over = self._leads(now)
        if has_taken_over is None:
            yield DueBatch(found=0, items=[], noted={"refused": 1})
            return
        executing = job.executing()
        reaped = [lost.name for lost in executing if lost.claimed_until <= now and self._reap(lost, now)]
        job_queue.void(reaped)
        if reaped:
            yield DueBatch(found=0, items=[], noted={"reaped": len(reaped)})
        busy = {running.name for running in executing} - set(reaped)
        left_alone = busy | job_queue.paused()
        first_due = job.due_names(now + self.ahead_by)
        due = {name: max(first, now) for name, first in first_due.items() if name not in left_alone}
        job_queue.refresh_each(due)
        if has_taken_over and self.epoch is not None:
            # Whoever waits to run through them was sent by an older leader, and would be refused.
            job_queue.void(due)
            job_leader.settle(self.epoch)
        yield from super().claim_due(backlog)

    def arguments(self, claimed: Claimed) -> tuple[Any, ...]:
        return claimed.id, self.epoch

    def read_id(self, argument: Any) -> Any:
        if not isinstance(argument, str):
            raise PermanentError(f"name: {argument!r:.100} is no name of a queue")
        return argument

    def lost(self, item: DueItem) -> None:
        job_attempt.expire(token=item.token, now=self.clock())
        super().lost(item)

    def _leads(self, now: datetime) -> bool | None:
        """Note the leader; tell whether it has taken over, `None` when it is refused."""
        if self.epoch is None:
            return False
        has_taken_over = job_leader.lead(self.epoch, now=now)
        if has_taken_over is None:
            log.warning("A dispatch of an older leader was refused", epoch=self.epoch)
            known = job_leader.current()
            if known is not None and self.on_refused is not None:
                self.on_refused(int(known["epoch"]), now - known["since"])
        elif has_taken_over:
            log.info(
                "A new leader hands out jobs; failed ones are tried at once",
                failed=job.take_over(now),
                epoch=self.epoch,
            )
        return has_taken_over

    def _reap(self, lost: Executing, now: datetime) -> bool:
        """Make a lost job due again: at once the first time, later when its workers keep dying."""
        before = job_attempt.losses(lost.id)
        rest = doubling(FIRST_REST, before - 1, cap=LONGEST_REST) if before else seconds(0)
        is_reaped = job_attempt.reap(lost, waiting=truncate(now + rest), now=now, error=LOST)
        if is_reaped:
            log.warning(LOST, job=str(lost.id), name=lost.name)
        return is_reaped
