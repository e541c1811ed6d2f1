"""`GET /api/queue/events`: the queue's events, named `queue-update`. Guarantee: that of `streams`."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header, Query, Request

from queue_manager.web.live.event_stream import EventStream, listening
from queue_manager.web.routes.messages.background import Beside
from queue_manager.web.routes.messages.feed import checked_position

router = APIRouter()


@router.get("/queue/events")
async def events(
    request: Request,
    header: Annotated[str | None, Header(alias="Last-Event-ID")] = None,
    query: Annotated[str | None, Query(alias="lastEventId")] = None,
) -> EventStream:
    """A browser that comes back sends the header, while the query is still that of its first request."""
    beside: Beside = request.app.state.beside
    last = header or query
    beginning = await beside.feed.beginning(checked_position(last, "Last-Event-ID") if last else None)
    return listening(request, beside.feed, beginning)
