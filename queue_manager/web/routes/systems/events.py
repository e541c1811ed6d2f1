"""`GET /api/overview/events`: the overview as Server-Sent Events, named `overview`, whenever it changes.

Guarantee: each event is the whole overview, so that a client that reconnects has missed nothing. A slow client gets
only the latest; one whose key or session ends is disconnected within 2 s.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from http import HTTPStatus

from fastapi import APIRouter, Request
from sse_starlette import ServerSentEvent

from queue_manager.web.auth import disconnection
from queue_manager.web.live.event_stream import RETRY_AFTER_MS, EventStream
from queue_manager.web.routes.systems.overview_broadcaster import OverviewBroadcaster

router = APIRouter()


@router.get("/overview/events", status_code=HTTPStatus.OK, response_class=EventStream)
async def overview_events(request: Request) -> EventStream:
    """Send the answer of `GET /api/overview` as events named `overview`: now, on every change, and every 5 s."""
    broadcaster: OverviewBroadcaster = request.app.state.overview
    return EventStream(_events(broadcaster.listen(disconnection.is_over(request))))


async def _events(states: AsyncGenerator[str]) -> AsyncIterator[ServerSentEvent]:
    async with aclosing(states):
        async for state in states:
            yield ServerSentEvent(state, event="overview", retry=RETRY_AFTER_MS)
