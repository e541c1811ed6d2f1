"""`GET /api/jobs/events`: what happens to jobs, events named `job-update`. Guarantee: that of `streams`."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header, Query, Request

from queue_manager.web.live.event_stream import EventStream, listening
from queue_manager.web.routes.jobs.feed import Feed

router = APIRouter()


@router.get("/jobs/events")
async def events(
    request: Request,
    header: Annotated[str | None, Header(alias="Last-Event-ID")] = None,
    query: Annotated[str | None, Query(alias="lastEventId")] = None,
) -> EventStream:
    """Tell of every job that is stored, changed or deleted: `{id, kind, job, server_time}`.

    A browser that comes back sends the header, while the query is still that of its first request. With the id of an
    event that is not kept any more, or too far back to be found in a few seconds, the first event is `reset`.
    """
    feed: Feed = request.app.state.job_feed
    beginning = await feed.beginning(header or query or None)
    return listening(request, feed, beginning)
