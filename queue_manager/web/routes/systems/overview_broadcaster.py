"""The overview for all clients of this process.

Guarantee: it is read at most once a second, however many clients there are, and not at all while there is none. Only
the latest state waits for a listener; all listeners end at once with the process.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from queue_manager.core.errors import reason
from queue_manager.core.log import get_logger
from queue_manager.web.auth.disconnection import ending
from queue_manager.web.routes.systems.schemas import Overview

READ_INTERVAL = 1.0  # seconds
MAX_SILENCE = 5.0  # seconds after which a state that did not change is sent again

log = get_logger("QM/overview")


class Listener:
    """The latest state, until it is taken."""

    def __init__(self) -> None:
        self._waiting: str | None = None
        self._offered = ""
        self._news = asyncio.Event()
        self._is_over = False

    def offer(self, state: str) -> None:
        if state != self._offered:  # its time differs whenever it was read again
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


class OverviewBroadcaster:
    """Reads the overview for all clients. It is entered while the process serves.

    Args:
        read: reads the overview.
        ending: is set when the process is told to end, while clients are still connected.
    """

    def __init__(self, read: Callable[[], Awaitable[Overview]], ending: asyncio.Event) -> None:
        self._read, self._ending = read, ending
        self._state: Overview | None = None
        self._read_at = 0.0
        self._reading: asyncio.Task[Overview] | None = None
        self._listeners: set[Listener] = set()
        self._watching: asyncio.Task[None] | None = None

    async def __aenter__(self) -> OverviewBroadcaster:
        self._end = asyncio.create_task(self._end_of_process())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ending.set()
        await self._end

    async def state(self) -> Overview:
        """Return the overview, at most a second old."""
        if self._state is not None and time.monotonic() - self._read_at < READ_INTERVAL:
            return self._state
        if self._reading is None:
            self._reading = asyncio.create_task(self._read_once())
        return await asyncio.shield(self._reading)  # others may wait for it too

    async def listen(self, is_over: Callable[[], bool]) -> AsyncGenerator[str]:
        """Yield the state as JSON, now and whenever it changes, until `is_over`, or the process ends."""
        with self._listening() as listener:
            async with ending(listener.end, when=is_over):
                listener.offer((await self.state()).model_dump_json())
                while (state := await listener.next()) is not None:
                    yield state

    async def _read_once(self) -> Overview:
        try:
            self._state = await self._read()
            self._read_at = time.monotonic()
            return self._state
        finally:
            self._reading = None

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
        """Read every second, and send what changed to all listeners."""
        sent, sent_at = "", 0.0
        while True:
            try:
                state = await self.state()
                essence, now = _essence(state), time.monotonic()
                if essence != sent or now - sent_at >= MAX_SILENCE:
                    sent, sent_at = essence, now
                    self._send(state.model_dump_json())
            except Exception as error:  # all listeners depend on this loop; the next read may succeed
                log.error("The overview could not be read", error=reason(error))
            await asyncio.sleep(READ_INTERVAL)

    def _send(self, state: str) -> None:
        for listener in self._listeners:
            listener.offer(state)

    async def _end_of_process(self) -> None:
        await self._ending.wait()
        for listener in self._listeners:
            listener.end()


def _essence(state: Overview) -> str:
    """Return what is sent as soon as it changes: not the time, nor what every heartbeat changes."""
    frequent: dict[str, Any] = {
        "server_time": True,
        "leader": {"lease_left_seconds"},
        "workers": {"__all__": {"seen_at"}},
    }
    return state.model_dump_json(exclude=frequent)
