"""`GET /api/queue/events`: the queue's events, named `queue-update`. Guarantee: see `event_stream`."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request

from queue_manager.web.http.errors import errors
from queue_manager.web.live.event_stream import EventStream, listening
from queue_manager.web.routes.messages.background import Background
from queue_manager.web.routes.messages.feed import checked_position

router = APIRouter()


@router.get("/queue/events", status_code=HTTPStatus.OK, response_class=EventStream, responses=errors(503))
async def events(
    request: Request,
    header: Annotated[str | None, Header(alias="Last-Event-ID")] = None,
    query: Annotated[str | None, Query(alias="lastEventId")] = None,
) -> EventStream:
    """Send events named `queue-update` for every change of the queue.

    A browser that reconnects sends the header, which counts more than the query. If the events after that id are not
    kept any more, the first event is named `reset`: read the lists again.
    """
    background: Background = request.app.state.background
    last = header or query
    beginning = await background.feed.beginning(checked_position(last, "Last-Event-ID") if last else None)
    return listening(request, background.feed, beginning)
