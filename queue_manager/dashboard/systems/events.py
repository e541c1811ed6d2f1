"""`GET /api/overview/events`: the overview as Server-Sent Events, named `overview`, whenever it changes.

Guarantee: each event is the whole state, so that one who comes back has missed nothing. One that reads slowly gets only
the latest; one whose key or session ends is disconnected within 2 s.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

from fastapi import APIRouter, Request
from sse_starlette import EventSourceResponse, ServerSentEvent
from sse_starlette.sse import SendTimeoutError
from starlette.types import Receive, Scope, Send

from queue_manager.core.log import get_logger
from queue_manager.dashboard.access import watch
from queue_manager.dashboard.systems.board import Board

PING_EVERY = 15  # seconds
RETRY_AFTER_MS = 1_000  # a browser's wait before it comes back
SEND_PATIENCE = 20.0  # seconds for one write to a client that does not read
END_PATIENCE = 1.0  # seconds in which the board ends the stream by itself when the process ends

log = get_logger("QM/overview")
router = APIRouter()


class _Stream(EventSourceResponse):
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        except SendTimeoutError:
            log.info("A listener that did not read was disconnected")


@router.get("/overview/events")
async def events(request: Request) -> EventSourceResponse:
    """Send the overview now, whenever it changes, and every 5 s."""
    board: Board = request.app.state.board
    states = board.listen(watch.is_over(request))
    return _Stream(_stream(states), ping=PING_EVERY, send_timeout=SEND_PATIENCE, shutdown_grace_period=END_PATIENCE)


async def _stream(states: AsyncGenerator[str]) -> AsyncIterator[ServerSentEvent]:
    async with aclosing(states):
        async for state in states:
            yield ServerSentEvent(state, event="overview", retry=RETRY_AFTER_MS)
