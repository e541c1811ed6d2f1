"""The state of the whole, for all who ask this process.

Guarantee: one look a second at the most, however many ask; none while nobody does. Who listens has only the latest
state waiting, and is ended at once when the process ends.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from queue_manager.core.errors import reason
from queue_manager.core.log import get_logger
from queue_manager.web.auth.disconnection import ending

EVERY = 1.0  # seconds between two looks
AT_LEAST_EVERY = 5.0  # seconds after which a state that did not change is told again

Json = dict[str, Any]

log = get_logger("QM/overview")


class Listener:
    """The latest state, until it is taken."""

    def __init__(self) -> None:
        self._waiting: str | None = None
        self._offered = ""
        self._news = asyncio.Event()
        self._is_over = False

    def offer(self, state: str) -> None:
        if state != self._offered:  # another look, be it at the same
            self._waiting = self._offered = state
            self._news.set()

    def end(self) -> None:
        self._is_over = True
        self._news.set()

    async def next(self) -> str | None:
        """Return the latest state that was not taken yet, or wait for one; `None` when the listener was ended."""
        while self._waiting is None and not self._is_over:
            self._news.clear()
            await self._news.wait()
        state, self._waiting = self._waiting, None
        return None if self._is_over else state


class Board:
    """Looks for all. It is entered while the process serves.

    Args:
        look: looks at everything, and never fails.
        ending: is set when the process is told to end, while clients are still connected.
    """

    def __init__(self, look: Callable[[], Awaitable[Json]], ending: asyncio.Event) -> None:
        self._look, self._ending = look, ending
        self._state: Json | None = None
        self._looked_at = 0.0
        self._looking: asyncio.Task[Json] | None = None
        self._listeners: set[Listener] = set()
        self._watching: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Board:
        self._end = asyncio.create_task(self._end_of_process())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ending.set()
        await self._end

    async def state(self) -> Json:
        """Return the state as it was a second ago at the earliest."""
        if self._state is not None and time.monotonic() - self._looked_at < EVERY:
            return self._state
        if self._looking is None:
            self._looking = asyncio.create_task(self._look_once())
        return await asyncio.shield(self._looking)  # others may wait for it too

    async def listen(self, is_over: Callable[[], bool]) -> AsyncGenerator[str]:
        """Yield the state as JSON, now and whenever it changes, until `is_over`, or the process ends."""
        with self._listening() as listener:
            async with ending(listener.end, when=is_over):
                listener.offer(json.dumps(await self.state()))
                while (state := await listener.next()) is not None:
                    yield state

    async def _look_once(self) -> Json:
        try:
            self._state = await self._look()
            self._looked_at = time.monotonic()
            return self._state
        finally:
            self._looking = None

    @contextmanager
    def _listening(self) -> Iterator[Listener]:
        listener = Listener()
        self._listeners.add(listener)
        if self._ending.is_set():
            listener.end()
        if self._watching is None:
            self._watching = asyncio.create_task(self._watch())
        try:
            yield listener
        finally:
            self._listeners.discard(listener)
            if not self._listeners and self._watching is not None:
                self._watching.cancel()
                self._watching = None

    async def _watch(self) -> None:
        """Look every second for those who listen, and tell them what changed."""
        told, told_at = "", 0.0
        while True:
            try:
                state = await self.state()
                essence, now = _essence(state), time.monotonic()
                if essence != told or now - told_at >= AT_LEAST_EVERY:
                    told, told_at = essence, now
                    self._tell(json.dumps(state))
            except Exception as error:  # whatever it is, all who listen depend on this one; the next look may do better
                log.error("The overview could not be made", error=reason(error))
            await asyncio.sleep(EVERY)

    def _tell(self, state: str) -> None:
        for listener in self._listeners:
            listener.offer(state)

    async def _end_of_process(self) -> None:
        await self._ending.wait()
        for listener in self._listeners:
            listener.end()


def _essence(state: Json) -> str:
    """Return what must be told at once: not the time, nor what every sign of life changes."""
    leader, workers = state.get("leader"), state.get("workers")
    steady = {
        **state,
        "server_time": None,
        "leader": leader and {**leader, "lease_left_seconds": None},
        "workers": workers and [{**worker, "seen_at": None} for worker in workers],
    }
    return json.dumps(steady)
