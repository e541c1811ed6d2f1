"""The sweep: messages whose consumer went silent go back to their queue, or to the dead letters.

What is due: a message whose deadline has passed, by the clock of the queue's server.
Guarantee: of any number of sweepers one takes a message, and it is in one place whatever dies. What a sweep costs
follows what is overdue, not what is pending. Entries that other consumers took get a deadline within a minute.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from queue_manager.core.clock import milliseconds, minutes, seconds
from services.message_queue.scripts import Scripts

HEAL_EVERY, HEAL_BUDGET = minutes(1), seconds(1)
PENDING_PAGE = 100  # entries of a pending list that one call looks at
SCHEDULER = "scheduler"


@dataclass(kw_only=True)
class Swept:
    """What a sweep did, by the ids of the messages; and when the next deadline is, from now."""

    requeued: list[str] = field(default_factory=list)
    dead_lettered: list[str] = field(default_factory=list)
    next_deadline_in: timedelta | None = None
    plan_in: timedelta | None = None
    """In how long the caller is to sweep again, when no other sweep is planned early enough."""
    is_locked: bool = False
    """Whether another sweeper held the lock, so that nothing was done."""

    def as_dict(self) -> dict[str, Any]:
        """Return `{requeued, dead_lettered, ids, dlq_ids}`: how many, and which."""
        return {
            "requeued": len(self.requeued),
            "dead_lettered": len(self.dead_lettered),
            "ids": self.requeued,
            "dlq_ids": self.dead_lettered,
        }


class Sweeper:
    """Takes back what is overdue in one queue.

    Args:
        batch: messages that one call of the script takes back.
        max_attempts: for messages that do not say otherwise.
        ack_timeout: of entries that were taken by others, for messages that do not say otherwise.
        within: the time between two periodic sweeps.
    """

    def __init__(
        self, scripts: Scripts, *, batch: int, max_attempts: int, ack_timeout: timedelta, within: timedelta, levels: int
    ) -> None:
        self._scripts = scripts
        self._batch, self._max_attempts = batch, max_attempts
        self._ack_timeout, self._within, self._levels = ack_timeout, within, levels

    def sweep(
        self,
        *,
        triggered_by: str = SCHEDULER,
        can_plan: bool = False,
        budget: timedelta | None = None,
        progress: Callable[[Swept], object] | None = None,
    ) -> Swept:
        """Take back everything that is overdue, for as long as `budget`, by default most of a period.

        `progress` is called after each slice, with what was done so far.

        Raises: QueueUnavailable.
        """
        end = time.monotonic() + (budget or self._within * 0.8).total_seconds()
        within = milliseconds(self._within) if can_plan else 0
        swept = Swept()
        while True:
            answer = self._scripts.run("requeue", self._batch, self._max_attempts, triggered_by, within)
            if answer is None:
                swept.is_locked = True
                return swept
            requeued, dead, looked_at, deadline, now, planned = answer
            swept.requeued += [id.decode("utf-8", "replace") for id in requeued]
            swept.dead_lettered += [id.decode("utf-8", "replace") for id in dead]
            if progress is not None:
                progress(swept)
            is_over = looked_at < self._batch and not 0 < deadline <= now
            if is_over or time.monotonic() > end:
                swept.next_deadline_in = timedelta(milliseconds=max(deadline - now, 0)) if deadline else None
                swept.plan_in = timedelta(milliseconds=planned) if planned else None
                return swept

    def heal(self, *, budget: timedelta = HEAL_BUDGET) -> int:
        """Give a deadline to what other consumers took, and forget what they deleted; once a minute, in pages.

        Returns the number of entries that got a deadline. Does nothing while the last time is less than a minute ago.
        Raises: QueueUnavailable.
        """
        if not self._scripts.take_turn("healed", every=HEAL_EVERY):
            return 0
        end = time.monotonic() + budget.total_seconds()
        healed = 0
        for stream in self._streams():
            after = "-"
            while after and time.monotonic() < end:
                of_page, after = self._scripts.run("heal", stream, after, PENDING_PAGE, milliseconds(self._ack_timeout))
                healed += of_page
        self._forget_lost(end)
        return healed

    def _forget_lost(self, end: float) -> None:
        is_done = False
        while not is_done and time.monotonic() < end:
            is_done = self._scripts.run("forget_lost") == 1

    def _streams(self) -> list[str]:
        return [*streams(self._scripts.queue, self._levels), f"{self._scripts.queue}_typed"]


def streams(queue: str, levels: int) -> list[str]:
    """Return the streams of all priorities, from 0 up."""
    return [queue, *(f"{queue}_p{priority}" for priority in range(1, levels))]
