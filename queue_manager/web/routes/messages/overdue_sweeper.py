"""The sweeper of a web process: requeues overdue messages at their deadline, also while no beat or worker runs.

It also adds up the counts of messages, so that none is lost while no worker runs, or if its scans are rare.

Guarantee: it follows the events that set deadlines, so that a sweep starts within about 20 ms after each deadline;
without events, within one period. An outage of the server is logged once for each step, and the sweeper recovers.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from queue_manager.core.background import CallThread, cancel
from queue_manager.core.clock import seconds
from queue_manager.core.errors import Unavailable, reason
from queue_manager.core.log import get_logger
from queue_manager.core.settings import settings
from queue_manager.web.routes.messages.events import QueueEvent, QueueFeed
from services.message_queue import fold_counts, other_programs, sweeper
from services.message_queue.other_programs import HEAL_INTERVAL

MIN_SWEEP_INTERVAL = 0.02  # seconds, so that a stream of deadlines needs few sweeps
SWEEPER_BUDGET = seconds(0.5)  # short, so that the process shuts down soon
FOLD_INTERVAL = 5.0  # seconds: 50,000 events are kept until they are added up
OUTAGE_RETRY_DELAY = 1.0  # seconds
LOCK_RETRY_DELAY = 0.5  # seconds, while a sweeper of an older service holds the lock
# An event that sets a deadline. Captures its time and the deadline, in ms; decoding each event would take longer.
_DEADLINE = re.compile(rb'\{"type":"(?:dequeue|touch)","timestamp":(\d{1,15}),.*?"deadline":(\d{1,15})')

StepResult = TypeVar("StepResult")
log = get_logger("QM/queue-sweeper")


class OverdueSweeper:
    """Sweeps within the block."""

    def __init__(self, feed: QueueFeed) -> None:
        self._feed, self._sweeper, self._other_programs = feed, sweeper(), other_programs()
        self._period_ms = settings().overdue_check_interval_ms
        self._period = self._period_ms / 1000
        self._due_at = 0.0
        self._is_earlier = asyncio.Event()
        self._failing: set[str] = set()
        """The lines of steps whose last try failed."""

    async def __aenter__(self) -> OverdueSweeper:
        self._tasks = [asyncio.create_task(run()) for run in (self._sweep, self._follow_events, self._heal, self._fold)]
        log.info(f"Overdue requeue worker started (interval={self._period_ms}ms)")
        return self

    async def __aexit__(self, *_: object) -> None:
        await cancel(self._tasks)

    async def _sweep(self) -> None:
        while True:
            self._due_at = _now() + self._period
            wait = await self._try(
                self._sweep_once,
                failed="Overdue requeue worker failed",
                recovered="Overdue messages are requeued again",
            )
            self._plan(_now() + (OUTAGE_RETRY_DELAY if wait is None else wait))
            await asyncio.sleep(MIN_SWEEP_INTERVAL)
            while (left := self._due_at - _now()) > 0:
                self._is_earlier.clear()
                with suppress(TimeoutError):
                    # Not `wait_for`, which in Python 3.11 loses a cancellation that comes together with the event.
                    async with asyncio.timeout(left):
                        await self._is_earlier.wait()

    def _sweep_once(self) -> float:
        swept = self._sweeper.sweep(budget=SWEEPER_BUDGET)
        if swept.is_locked:
            return LOCK_RETRY_DELAY
        return self._period if swept.next_deadline_in is None else swept.next_deadline_in.total_seconds()

    async def _heal(self) -> None:
        while True:
            healed = await self._try(
                self._other_programs.heal,
                failed="Messages of other programs could not be checked",
                recovered="Messages of other programs are checked again",
            )
            if healed:
                self._plan(_now())  # no event announces their deadlines
            await asyncio.sleep(self._period if healed is None else HEAL_INTERVAL.total_seconds())

    async def _fold(self) -> None:
        while True:
            await self._try(
                fold_counts,
                failed="Counts of messages could not be added up",
                recovered="Counts of messages are added up again",
            )
            await asyncio.sleep(FOLD_INTERVAL)

    async def _follow_events(self) -> None:
        while True:
            with self._feed.subscribe() as listener, suppress(Unavailable):
                await self._feed.reader_position()
                self._plan(_now())  # for the deadlines of earlier events
                while events := await listener.next():
                    for event in events:
                        self._plan_for(event)
            await asyncio.sleep(MIN_SWEEP_INTERVAL)

    def _plan_for(self, event: QueueEvent) -> None:
        if found := _DEADLINE.match(event.text):
            self._plan(_now() + (int(found[2]) - int(found[1])) / 1000)

    def _plan(self, at: float) -> None:
        if at < self._due_at:
            self._due_at = at
            self._is_earlier.set()

    async def _try(self, step: Callable[[], StepResult], *, failed: str, recovered: str) -> StepResult | None:
        """Run `step` in a thread and return its result, `None` if it fails; log when it begins and ceases to fail.

        Any error is passed over: a dead sweeper would be noticed only by messages that stay overdue.
        """
        try:
            done = await CallThread("overdue-sweeper").run(step)
        except Exception as error:
            if failed not in self._failing:
                log.error(failed, error=reason(error))
            self._failing.add(failed)
            return None
        if failed in self._failing:
            log.info(recovered)
        self._failing.discard(failed)
        return done


def _now() -> float:
    return asyncio.get_running_loop().time()
