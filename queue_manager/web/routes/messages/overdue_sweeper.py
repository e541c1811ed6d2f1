"""The sweeper of this process: it requeues overdue messages at their deadline, also while no beat or worker runs.

Guarantee: it listens to the events of deadlines, so that a sweep follows each within about 20 ms; without events,
within one period. An outage of the server is logged once, and ends by itself.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import TypeVar

from queue_manager.core.clock import seconds
from queue_manager.core.errors import reason
from queue_manager.core.log import get_logger
from queue_manager.core.settings import settings
from queue_manager.web.routes.messages.events import QueueEvent, QueueFeed
from services.message_queue import sweeper

COALESCED = 0.02  # seconds between two sweeps at least, so that a stream of deadlines costs few
BUDGET = seconds(0.5)  # of one sweep, so that the process ends soon when it is told to
AFTER_OUTAGE = 1.0  # seconds to the next try
AFTER_LOCK = 0.5  # seconds to the next look, while a sweeper of an older service holds the lock
WITH_DEADLINE = (b'{"type":"dequeue"', b'{"type":"touch"')

T = TypeVar("T")
log = get_logger("QM/queue-sweeper")


class OverdueSweeper:
    """Sweeps while it is entered."""

    def __init__(self, feed: QueueFeed) -> None:
        self._feed, self._sweeper = feed, sweeper()
        self._period = settings().overdue_check_interval_ms / 1000
        self._due_at = 0.0
        self._is_earlier = asyncio.Event()
        self._is_away = False

    async def __aenter__(self) -> OverdueSweeper:
        self._tasks = [asyncio.create_task(run()) for run in (self._sweep, self._hear, self._heal)]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _sweep(self) -> None:
        while True:
            self._due_at = _now() + self._period
            wait = await self._tried(self._sweep_once)
            self._plan(_now() + (AFTER_OUTAGE if wait is None else wait))
            await asyncio.sleep(COALESCED)
            while (left := self._due_at - _now()) > 0:
                self._is_earlier.clear()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._is_earlier.wait(), left)

    def _sweep_once(self) -> float:
        swept = self._sweeper.sweep(budget=BUDGET)
        if swept.is_locked:
            return AFTER_LOCK
        return self._period if swept.next_deadline_in is None else swept.next_deadline_in.total_seconds()

    async def _heal(self) -> None:
        while True:
            if await self._tried(self._sweeper.heal):
                self._plan(_now())  # their deadlines are told by no event
            await asyncio.sleep(self._period)

    async def _hear(self) -> None:
        while True:
            with self._feed.subscribe() as listener:
                while events := await listener.next():
                    for event in events:
                        self._plan_for(event)
            self._plan(_now())  # something may have been missed
            await asyncio.sleep(COALESCED)

    def _plan_for(self, event: QueueEvent) -> None:
        if event.text.startswith(WITH_DEADLINE):
            told = json.loads(event.text)  # written by our own scripts, as the beginning says
            self._plan(_now() + (told["payload"]["deadline"] - told["timestamp"]) / 1000)

    def _plan(self, at: float) -> None:
        if at < self._due_at:
            self._due_at = at
            self._is_earlier.set()

    async def _tried(self, step: Callable[[], T]) -> T | None:
        """Return what `step` returns, run in a thread; `None` when it failed.

        It goes on after any error: that a sweeper has ended would be noticed only when messages hang.
        """
        try:
            done = await asyncio.to_thread(step)
        except Exception as error:
            if not self._is_away:
                log.warning("No sweep: tried again until the queue's server is back", error=reason(error))
            self._is_away = True
            return None
        if self._is_away:
            log.info("Overdue messages are taken back again")
        self._is_away = False
        return done


def _now() -> float:
    return asyncio.get_running_loop().time()
