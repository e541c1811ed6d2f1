"""`GET /api/overview/events`: the overview as Server-Sent Events, named `overview`, whenever it changes.

Guarantee: each event is the whole state, so that one who comes back has missed nothing. One that reads slowly gets only
the latest; one whose key or session ends is disconnected within 2 s.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

from fastapi import APIRouter, Request
from sse_starlette import ServerSentEvent

from queue_manager.web.auth import disconnection
from queue_manager.web.live.event_stream import RETRY_AFTER_MS, EventStream
from queue_manager.web.routes.systems.overview_broadcaster import Board

router = APIRouter()


@router.get("/overview/events")
async def events(request: Request) -> EventStream:
    """Send the overview now, whenever it changes, and every 5 s."""
    board: Board = request.app.state.board
    return EventStream(_sent(board.listen(disconnection.is_over(request))))


async def _sent(states: AsyncGenerator[str]) -> AsyncIterator[ServerSentEvent]:
    async with aclosing(states):
        async for state in states:
            yield ServerSentEvent(state, event="overview", retry=RETRY_AFTER_MS)
