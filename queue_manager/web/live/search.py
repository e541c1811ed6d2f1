"""Searches of long lists, sent as Server-Sent Events while they run.

A list is read slice by slice, each bounded in time and bytes, until there are `limit` matches, the matches have about
`MAX_SEARCH_BYTES`, or the list ends. Events:

    matches    [...]                                the next matches
    progress   {searched, total, found, cursor}     after a slice; the search can be continued at `cursor`
    end        the same, once; `cursor` is null at the end of the list
    error      {error, message}                     a server failed; the last `cursor` continues the search

Guarantee: a search ends within one slice after its client, the client's key or the process. Its next slice is read when
the client has received the previous one, and in turn with those of other searches.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from fastapi import Request
from fastapi.concurrency import run_in_threadpool
from pydantic import BaseModel, Field
from sse_starlette import ServerSentEvent

from queue_manager.web.auth.authentication import access_check
from queue_manager.web.http.exception_handlers import error_handler
from queue_manager.web.live.event_feed import EventStream

MAX_SEARCH_BYTES = 16 * 1024 * 1024
MAX_SLICE_BYTES = 1024 * 1024  # bytes of matches after which a slice ends
MAX_SLICES_AT_ONCE = 2  # in this process

_turns = asyncio.Semaphore(MAX_SLICES_AT_ONCE)


class SearchEvent(BaseModel):
    """An event of a search."""

    event: Literal["matches", "progress", "end", "error"]
    data: str = Field(description="JSON.", json_schema_extra={"contentMediaType": "application/json"})


SEARCH_EVENTS: dict[int | str, dict[str, Any]] = {
    200: {"content": {EventStream.media_type: {"schema": SearchEvent.model_json_schema()}}}
}
"""Describes the response of a search."""


@dataclass(frozen=True, kw_only=True)
class SearchSlice:
    """A part of a list that was searched: the matches as JSON, and the cursor of the next part, `None` at the end."""

    matches: Sequence[str]
    searched: int
    cursor: str | None


ReadSlice = Callable[[str | None, int], SearchSlice]
"""Searches the slice at a cursor for a number of matches."""


async def search(
    request: Request, read: ReadSlice, *, cursor: str | None, limit: int, total: Callable[[], int]
) -> EventStream:
    """Return the response of a search. The errors of its first slice and of `total` are those of the request."""
    first = await _read(read, cursor, limit)
    count = first.searched if first.cursor is None else await run_in_threadpool(total)
    return EventStream(_events(request, read, first, limit, count))


async def _events(
    request: Request, read: ReadSlice, first: SearchSlice, limit: int, total: int
) -> AsyncIterator[bytes]:
    is_over = access_check(request)
    now, searched, found, size = first, 0, 0, 0
    while not is_over():
        searched += now.searched
        found += len(now.matches)
        size += sum(map(len, now.matches))
        if now.matches:
            yield _event("matches", f"[{','.join(now.matches)}]")
        is_end = now.cursor is None or found >= limit or size >= MAX_SEARCH_BYTES
        progress = {"searched": searched, "total": max(total, searched), "found": found, "cursor": now.cursor}
        yield _event("end" if is_end else "progress", json.dumps(progress))
        if is_end:
            return
        try:
            now = await _read(read, now.cursor, limit - found)
        except Exception as error:
            handle = error_handler(request.app, error)
            if handle is None:
                raise
            yield _event("error", bytes((await handle(request, error)).body).decode())
            return


async def _read(read: ReadSlice, cursor: str | None, limit: int) -> SearchSlice:
    async with _turns:
        return await run_in_threadpool(read, cursor, limit)


def _event(name: str, data: str) -> bytes:
    return bytes(ServerSentEvent(data, event=name).encode())
