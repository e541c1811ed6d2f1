"""The overview, read at once for all clients: `GET /api/overview`, and `GET /api/overview/events` whenever it changes.

Guarantee: it is read at most once a second, however many clients there are, and not at all while there is none. Each
event is the whole overview, so that a client that reconnects has missed nothing; a slow client gets only the latest.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Collection, Sequence
from functools import partial
from http import HTTPStatus
from typing import Any

from fastapi import APIRouter, Request

from beat_schedule import systems
from queue_manager.health.readings import Readings, read
from queue_manager.operations.system_schemas import History, Overview
from queue_manager.operations.systems import last_day, overview_of
from queue_manager.web.auth.authorization import EACH, CurrentPrincipal, viewer_of
from queue_manager.web.http.errors import errors
from queue_manager.web.live.event_feed import (
    Event,
    EventSource,
    EventStream,
    Feed,
    ReadBatch,
    ReaderPosition,
    StartPosition,
)

READ_INTERVAL = 1.0  # seconds
MAX_SILENCE = 5.0  # seconds after which a state that did not change is sent again
FREQUENT_CHANGES: dict[str, Any] = {
    "server_time": True,
    "leader": {"lease_left_seconds"},
    "workers": {"__all__": {"seen_at"}},
}
"""Changes of these fields are not sent at once."""

router = APIRouter(prefix="/api", dependencies=[viewer_of(EACH)], tags=["systems"])


def overview_states(request: Request) -> OverviewStates:
    """Return the overview that all clients share."""
    states: OverviewStates = request.app.state.overview_feed.source
    return states


@router.get("/overview")
async def overview(request: Request, principal: CurrentPrincipal) -> Overview:
    """Return the leader, the workers online, and the state of each system, even while a server is unavailable."""
    state = await overview_states(request).state()
    return state if principal.systems is None else state.of_systems(principal.systems)


@router.get("/overview/history", responses=errors(503))
def overview_history(principal: CurrentPrincipal) -> History:
    """Return how many items ended in the last 24 hours, by outcome, in buckets of ten minutes."""
    return last_day([system for system in systems() if principal.has_system(system.name)])


@router.get("/overview/events", status_code=HTTPStatus.OK, response_class=EventStream)
async def overview_events(request: Request, principal: CurrentPrincipal) -> EventStream:
    """Send the answer of `GET /api/overview` as events named `overview`: now, on every change, and every 5 s."""
    feed: Feed[int] = request.app.state.overview_feed
    if principal.systems is None:
        return await feed.serve(request)
    return await feed.serve(request, shown=partial(overview_states(request).event_for, principal.systems))


class OverviewStates(EventSource[int]):
    """The states of the overview. A position is the number of times it was read."""

    title = "overview events"
    server = "the overview"
    has_states = True

    def __init__(self) -> None:
        self._readings: Readings | None = None
        self._state: Overview | None = None
        self._position = 0
        self._read_at = 0.0
        self._reading: asyncio.Task[Overview] | None = None

    async def state(self) -> Overview:
        """Return the overview, at most a second old."""
        if self._state is not None and time.monotonic() - self._read_at < READ_INTERVAL:
            return self._state
        if self._reading is None:
            self._reading = asyncio.create_task(self._read())
        return await asyncio.shield(self._reading)  # others may wait for it too

    async def readings(self) -> Readings:
        """Return what the overview was made from, at most a second old."""
        await self.state()
        assert self._readings is not None
        return self._readings

    def expire(self) -> None:
        """Let the next answer be read anew, because an operator has changed a system."""
        self._read_at, self._reading = 0.0, None

    async def start(self, last: str | None, reader_position: ReaderPosition[int]) -> StartPosition[int]:
        return StartPosition(self._position, "")

    async def history(self, after: int, until: int) -> AsyncGenerator[Sequence[Event[int]], None]:
        state = await self.state()
        yield [self._event(state)]

    async def live(self, after: int | None) -> AsyncGenerator[ReadBatch[int], None]:
        yield ReadBatch(self._position)
        sent, sent_at = "", 0.0
        while True:
            state = await self.state()
            essence, now = state.model_dump_json(exclude=FREQUENT_CHANGES), time.monotonic()
            if essence != sent or now - sent_at >= MAX_SILENCE:
                sent, sent_at = essence, now
                yield ReadBatch(self._position, [self._event(state)])
            else:
                yield ReadBatch(self._position)
            await asyncio.sleep(READ_INTERVAL)

    def event_for(self, names: Collection[str], event: Event[int]) -> Event[int]:
        """Return the latest overview, of these systems only, instead of an event."""
        assert self._state is not None  # there was an event
        return self._event(self._state.of_systems(names))

    def _event(self, state: Overview) -> Event[int]:
        return Event(self._position, "", "overview", state.model_dump_json().encode())

    async def _read(self) -> Overview:
        reading = asyncio.current_task()
        try:
            found = await read()
            if self._reading is not reading:  # it began before a change of an operator
                return await self.state()
            self._readings, self._state = found, overview_of(found)
            self._position += 1
            self._read_at = time.monotonic()
            return self._state
        finally:
            if self._reading is reading:
                self._reading = None
