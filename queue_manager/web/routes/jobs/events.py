"""`GET /api/jobs/events`: changes of jobs as Server-Sent Events named `job-update`, from a MongoDB change stream.

Guarantee: that of `event_feed`, also over restarts and step-downs of MongoDB, as far back as its oplog reaches.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from functools import cached_property
from http import HTTPStatus

from fastapi import APIRouter, Request

from models import database
from models.database import estimated_now, server_now
from models.job_changes import Changes, JobChange, Lost
from queue_manager.core.background import CallThread
from queue_manager.core.clock import to_iso
from queue_manager.core.settings import redact_url, settings
from queue_manager.operations.job_schemas import job_as_json
from queue_manager.web.http.errors import errors
from queue_manager.web.live.event_feed import (
    PING,
    Event,
    EventsLost,
    EventSource,
    EventStream,
    Feed,
    LastEventId,
    ReadBatch,
    ReaderPosition,
    StartPosition,
    reset,
)

JOB_EVENT = "job-update"
TOKEN_INTERVAL = 5.0
"""Seconds. A client without events must still reconnect with a recent token, because MongoDB searches its oplog from
there. A page in the background is connected for 10 s of each minute."""
RESUME_TOKEN = re.compile(r"(?:[0-9A-F]{2}){1,1000}")

router = APIRouter()


@router.get("/jobs/events", status_code=HTTPStatus.OK, response_class=EventStream, responses=errors(503))
async def events(request: Request, last: LastEventId) -> EventStream:
    """Send events named `job-update`, `{id, kind, job, server_time}`, for every job that is stored, changed or deleted.

    `kind` is `changed` or `deleted`. A browser that reconnects sends the header, which takes precedence over the query.
    If the events after that id are no longer kept, or too many to be read in a few seconds, the first event is named
    `reset`: read the lists again.
    """
    feed: Feed[str] = request.app.state.job_feed
    return await feed.serve(request, last)


class JobEvents(EventSource[str]):
    """The changes of jobs. Positions are resume tokens of the change stream."""

    title = "job events"
    outages = (database.Error,)

    def __init__(self) -> None:
        self.server = f"MongoDB at {redact_url(settings().mongo_db_url)}"

    @cached_property
    def _changes(self) -> Changes:
        return Changes()

    async def start(self, last: str | None, reader_position: ReaderPosition[str]) -> StartPosition[str]:
        is_token = last is not None and RESUME_TOKEN.fullmatch(last) is not None
        now = await reader_position(last if is_token else None)
        if last is None:
            return StartPosition(now, now)
        if not is_token or last > now:  # a later token is that of a server that has lost its data since
            return StartPosition(now, now, is_gap=True)
        return StartPosition(last, last)

    async def history(self, after: str, until: str) -> AsyncGenerator[Sequence[Event[str]], None]:
        if after >= until:
            return
        try:
            async with aclosing(self._changes.since(after)) as steps:
                async for step in steps:
                    yield [] if step.change is None else [_event(step.token, step.change)]
                    if step.token >= until:
                        return
        except Lost:
            yield [reset(until, until)]

    async def live(self, after: str | None) -> AsyncGenerator[ReadBatch[str], None]:
        sent_at = 0.0
        await CallThread("job-events").run(server_now)  # a sample of the server's clock, for `estimated_now`
        try:
            async with aclosing(self._changes.since(after)) as steps:
                async for step in steps:
                    events = []
                    if step.change is not None:
                        events = [_event(step.token, step.change)]
                    elif time.monotonic() - sent_at > TOKEN_INTERVAL:
                        events = [Event(step.token, step.token, PING, b"")]
                        sent_at = time.monotonic()
                    yield ReadBatch(step.token, events)
        except Lost as error:
            raise EventsLost from error

    async def close(self) -> None:
        await self._changes.close()


def _event(token: str, change: JobChange) -> Event[str]:
    event = {
        "id": str(change.id),
        "kind": "deleted" if change.job is None else "changed",
        "job": None if change.job is None else job_as_json(change.job),
        "server_time": to_iso(estimated_now()),
    }
    return Event(token, token, JOB_EVENT, json.dumps(event, ensure_ascii=False, separators=(",", ":")).encode())
