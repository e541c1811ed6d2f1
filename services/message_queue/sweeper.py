"""Sweep of overdue messages: requeues or dead-letters messages whose ack deadline has passed.

What is due: a message whose deadline has passed, by the clock of the queue's server.
Guarantee: exactly one of any number of sweepers handles a message, and a crash leaves it in one state. The cost grows
with the number of overdue messages, not of pending ones.
Options: `OVERDUE_CHECK_INTERVAL_MS` (5000), `REQUEUE_BATCH_SIZE` (100 messages), `MAX_ATTEMPTS` (3).
Emits: `requeue` and `move_to_dlq` in the queue's own events.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from queue_manager.core.clock import milliseconds
from services.message_queue.messages import QueueOptions
from services.message_queue.scripts import Scripts

TRIGGERED_BY_SCHEDULER = "scheduler"


@dataclass(kw_only=True)
class SweepResult:
    """Result of a sweep: ids of the messages, and the time until the next deadline."""

    requeued: list[str] = field(default_factory=list)
    dead_lettered: list[str] = field(default_factory=list)
    next_deadline_in: timedelta | None = None
    next_sweep_in: timedelta | None = None
    """Delay after which the caller must sweep again; `None` if another sweep is scheduled early enough."""
    is_locked: bool = False
    """True if another sweeper held the lock, so that nothing was done."""

    def as_dict(self) -> dict[str, Any]:
        """Return `{requeued, dead_lettered, ids, dlq_ids}`: counts and ids."""
        return {
            "requeued": len(self.requeued),
            "dead_lettered": len(self.dead_lettered),
            "ids": self.requeued,
            "dlq_ids": self.dead_lettered,
        }


class Sweeper:
    """Requeues or dead-letters the overdue messages of one queue.

    Args:
        batch: maximum number of messages per script call.
    """

    def __init__(self, scripts: Scripts, options: QueueOptions, *, batch: int) -> None:
        self._scripts, self._options, self._batch = scripts, options, batch

    def sweep(
        self,
        *,
        triggered_by: str = TRIGGERED_BY_SCHEDULER,
        can_schedule: bool = False,
        is_scheduled: bool = False,
        budget: timedelta | None = None,
        progress: Callable[[SweepResult], object] | None = None,
    ) -> SweepResult:
        """Requeue or dead-letter all overdue messages within `budget`, by default 80% of a period.

        `can_schedule`: the caller schedules the sweep that the result asks for. `is_scheduled`: this is such a sweep.
        `progress` is called after each batch with the result so far.

        Raises: QueueUnavailable.
        """
        end = time.monotonic() + (budget or self._options.sweep_period * 0.8).total_seconds()
        sweep_period = milliseconds(self._options.sweep_period) if can_schedule else 0
        swept = SweepResult()
        while True:
            answer = self._scripts.run(
                "requeue", self._batch, self._options.max_attempts, triggered_by, sweep_period, int(is_scheduled)
            )
            if answer is None:
                swept.is_locked = True
                return swept
            requeued, dead, scanned, deadline, now, next_sweep_ms = answer
            swept.requeued += [id.decode("utf-8", "replace") for id in requeued]
            swept.dead_lettered += [id.decode("utf-8", "replace") for id in dead]
            if progress is not None:
                progress(swept)
            is_complete = scanned < self._batch and not 0 < deadline <= now
            if is_complete or time.monotonic() > end:
                swept.next_deadline_in = timedelta(milliseconds=max(deadline - now, 0)) if deadline else None
                swept.next_sweep_in = timedelta(milliseconds=next_sweep_ms) if next_sweep_ms else None
                return swept
