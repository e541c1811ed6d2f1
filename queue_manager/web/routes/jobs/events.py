"""`GET /api/jobs/events`: changes of jobs as Server-Sent Events named `job-update`. Guarantee: see `event_stream`."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request

from queue_manager.web.http.errors import errors
from queue_manager.web.live.event_stream import EventStream, listening
from queue_manager.web.routes.jobs.feed import Feed

router = APIRouter()


@router.get("/jobs/events", status_code=HTTPStatus.OK, response_class=EventStream, responses=errors(503))
async def events(
    request: Request,
    header: Annotated[str | None, Header(alias="Last-Event-ID")] = None,
    query: Annotated[str | None, Query(alias="lastEventId")] = None,
) -> EventStream:
    """Send events named `job-update`, `{id, kind, job, server_time}`, for every job that is stored, changed or deleted.

    `kind` is `changed` or `deleted`. A browser that reconnects sends the header, which counts more than the query. If
    the events after that id are not kept any more, or too many to be read in a few seconds, the first event is named
    `reset`: read the lists again.
    """
    feed: Feed = request.app.state.job_feed
    beginning = await feed.beginning(header or query or None)
    return listening(request, feed, beginning)
