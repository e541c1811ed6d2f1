"""`GET /api/queue/events`: the queue's events as Server-Sent Events, named `queue-update`.

Guarantee: a client that comes back with `Last-Event-ID` gets everything that happened meanwhile, once. When that is
not kept any more it is told so by an event `reset` first. One that reads too slowly is disconnected, and resumes; one
whose key or session ends is disconnected within 2 s.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request
from sse_starlette import EventSourceResponse, ServerSentEvent
from sse_starlette.sse import SendTimeoutError
from starlette.types import Receive, Scope, Send

from queue_manager.core.log import get_logger
from queue_manager.dashboard.access import watch
from queue_manager.dashboard.queue.beside import Beside
from queue_manager.dashboard.queue.feed import Beginning, Event, Feed, checked_position, written

PING_EVERY = 15  # seconds
RETRY_AFTER_MS = 1_000  # a browser's wait before it comes back
SEND_PATIENCE = 20.0  # seconds for one write to a client that does not read
END_PATIENCE = 1.0  # seconds in which the feed ends the stream by itself when the process ends
GAP = "Events that you have not seen are not kept any more: read the lists anew"

log = get_logger("QM/queue-events")
router = APIRouter()


class _Stream(EventSourceResponse):
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        except SendTimeoutError:
            log.info("A listener that did not read was disconnected")


@router.get("/queue/events")
async def events(
    request: Request,
    header: Annotated[str | None, Header(alias="Last-Event-ID")] = None,
    query: Annotated[str | None, Query(alias="lastEventId")] = None,
) -> EventSourceResponse:
    """A browser that comes back sends the header, while the query is still that of its first request."""
    beside: Beside = request.app.state.beside
    last = header or query
    beginning = await beside.feed.beginning(checked_position(last, "Last-Event-ID") if last else None)
    return _Stream(
        _stream(beside.feed, beginning, watch.is_over(request)),
        ping=PING_EVERY,
        send_timeout=SEND_PATIENCE,
        shutdown_grace_period=END_PATIENCE,
    )


async def _stream(feed: Feed, beginning: Beginning, is_over: Callable[[], bool]) -> AsyncIterator[ServerSentEvent]:
    # Without data it is no event to a browser, which keeps its id to come back with.
    yield _reset(beginning) if beginning.is_gap else _only_id(beginning)
    async for event in feed.since(beginning.after, is_over):
        yield _update(event)


def _only_id(beginning: Beginning) -> ServerSentEvent:
    return ServerSentEvent(id=written(beginning.after), retry=RETRY_AFTER_MS)


def _reset(beginning: Beginning) -> ServerSentEvent:
    return ServerSentEvent(json.dumps({"message": GAP}), event="reset", id=written(beginning.after))


def _update(event: Event) -> ServerSentEvent:
    text = event.text.decode("utf-8", "replace")
    return ServerSentEvent(text, event="queue-update", id=written(event.position))
