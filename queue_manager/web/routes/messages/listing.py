"""Reading messages: one with its history, a page of the messages in one state, and how many match."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from http import HTTPStatus
from itertools import chain, islice
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import AfterValidator, Field

from queue_manager.operations.message_fields import (
    MAX_WHOLE,
    FilterText,
    FilterType,
    MomentOf,
    RequiredMoment,
    WholeFilter,
)
from queue_manager.operations.message_schemas import (
    DeliveredMessage,
    MessageCount,
    MessageList,
    MessageWithHistory,
)
from queue_manager.operations.messages import MessagesInState, find_message, message_json
from queue_manager.operations.schemas import EmptyIsNone
from queue_manager.web.http.errors import errors
from queue_manager.web.http.requests import Cursor
from queue_manager.web.live.event_feed import EventStream
from queue_manager.web.live.search import MAX_SLICE_BYTES, SEARCH_EVENTS, SearchSlice, search
from queue_manager.web.routes.messages.requests import NamedQueue
from services.message_queue import Filter, Message, MessageListing, queue_admin
from services.message_queue.browser import (
    COUNT_BUDGET,
    MATCH_ALL,
    MAX_MESSAGES_PER_PAGE,
    MAX_PAGE_BYTES,
    MESSAGE_STATES,
    SORT_FIELDS_BY_STATE,
)

DEFAULT_LIMIT = 50
DEFAULT_RANGE_LIMIT = 100
NO_MESSAGES = MessageListing(messages=[], cursor=None, matched=0, searched=0, is_partial=False)
SORT_NAMES = {name: name for fields in SORT_FIELDS_BY_STATE.values() for name in fields}
SORT_NAMES |= {re.sub(r"_(\w)", lambda match: match[1].upper(), name): name for name in SORT_NAMES}
"""The names of the fields by which messages are sorted, also in camelCase."""

router = APIRouter(responses=errors(404, 503))


class JsonLines(StreamingResponse):
    """A stream of JSON values, one in each line."""

    media_type = "application/x-ndjson"


JSON_LIST: dict[int | str, dict[str, Any]] = {200: {"model": list[DeliveredMessage]}}


def _filter(
    type: Annotated[FilterType | None, EmptyIsNone, Query(alias="filterType")] = None,
    priority: Annotated[WholeFilter | None, EmptyIsNone, Query(alias="filterPriority")] = None,
    attempts: Annotated[WholeFilter | None, EmptyIsNone, Query(alias="filterAttempts")] = None,
    start: Annotated[MomentOf, Query(alias="startDate")] = None,
    end: Annotated[MomentOf, Query(alias="endDate")] = None,
    search: Annotated[FilterText | None, EmptyIsNone] = None,
) -> Filter:
    return Filter(type=type, priority=priority, attempts=attempts, since=start, until=end, search=search)


def _sort_field(name: str | None) -> str | None:
    if name is not None and name not in SORT_NAMES:
        raise ValueError(f"must be one of {', '.join(SORT_NAMES)}")
    return None if name is None else SORT_NAMES[name]


MatchingFilter = Annotated[Filter, Depends(_filter)]
SortBy = Annotated[
    str | None,
    EmptyIsNone,
    AfterValidator(_sort_field),
    Query(alias="sortBy", json_schema_extra={"enum": [*SORT_NAMES]}),
]
SortOrder = Annotated[Literal["asc", "desc"] | None, EmptyIsNone, Query(alias="sortOrder")]
Limit = Annotated[Annotated[int, Field(ge=1, le=MAX_MESSAGES_PER_PAGE)] | None, EmptyIsNone]


def _list(
    state: NamedQueue, wanted: MatchingFilter, sort_by: SortBy = None, sort_order: SortOrder = None
) -> MessagesInState:
    return MessagesInState(state=state, where=wanted, sort_by=sort_by, is_descending=sort_order != "asc")


SelectedMessages = Annotated[MessagesInState, Depends(_list)]


@router.get("/queue/message/{id:path}", response_model=MessageWithHistory)
def message(id: str) -> Response:
    """Return one message in any state, with what happened to it since its first delivery. Does not deliver it."""
    return Response(message_json(*find_message(id)), media_type="application/json")


@router.get("/queue/{queueType}/messages", response_model=MessageList)
def messages(
    selected: SelectedMessages,
    page: Annotated[Annotated[int, Field(ge=1, le=MAX_WHOLE)] | None, EmptyIsNone] = None,
    limit: Limit = None,
    cursor: Cursor = None,
) -> Response:
    """List messages, newest first; those in processing by deadline, latest first.

    `sortBy` is `createdAt` or `priority` in `main`, `deadlineAt` in `processing`, `failedAt` in `dead`,
    `acknowledgedAt` in `acknowledged`, and `archivedAt` in `archived`. A requeued message counts as created at its
    requeue. A filter is applied for about 80 ms; without one, the messages before a `page` are skipped for about 2 s. A
    page ends after about 16 MiB. With `is_partial` the list continues at the cursor; with a filter, `total` is then the
    number of matches found so far, and `/count` counts all.
    """
    page, limit = page or 1, limit or DEFAULT_LIMIT
    counts = queue_admin().counts()
    skip = (page - 1) * limit
    is_behind_end = skip > counts.of(selected.state)  # it must cost nothing
    found = NO_MESSAGES if is_behind_end else selected.page(cursor, limit, skip=skip)
    is_filtered = selected.where != MATCH_ALL
    total = found.matched if is_filtered else counts.of(selected.state)
    total_pages = math.ceil(total / limit)
    pagination = {
        "page": page,
        "limit": limit,
        "total": total,
        "total_pages": total_pages,
        "totalPages": total_pages,
        "cursor": found.cursor,
        "is_partial": found.is_partial or (is_filtered and found.cursor is not None),
    }
    if is_filtered:
        pagination["searched"] = found.searched
    about = json.dumps({"pagination": pagination, "server_time": counts.now})
    listed = ",".join(message.to_json() for message in found.messages)
    return Response(f'{{"messages":[{listed}],{about[1:]}', media_type="application/json")


@router.get(
    "/queue/{queueType}/messages/search",
    status_code=HTTPStatus.OK,
    response_class=EventStream,
    responses=SEARCH_EVENTS,
)
async def search_messages(
    request: Request, selected: SelectedMessages, limit: Limit = None, cursor: Cursor = None
) -> EventStream:
    """Search the list of messages until `limit` of them match, 50 without it, or the list ends; send events meanwhile.

    `matches` is a list of messages. `progress` is `{searched, total, found, cursor}`: how many of at most `total`
    messages were searched, how many matched, and where the search can be continued. The last event is `end`, with the
    same members and the cursor null at the end of the list, or `error`, `{error, message}`. A search also ends after
    about 16 MiB of matches. Close the connection to cancel it.
    """

    def read(at: str | None, matches: int) -> SearchSlice:
        found = selected.page(at, matches, max_bytes=MAX_SLICE_BYTES)
        listed = [message.to_json() for message in found.messages]
        return SearchSlice(matches=listed, searched=found.searched, cursor=found.cursor)

    def total() -> int:
        return queue_admin().counts().of(selected.state)

    return await search(request, read, cursor=cursor, limit=limit or DEFAULT_LIMIT, total=total)


@router.get("/queue/{queueType}/export", response_class=JsonLines, responses=JSON_LIST)
def export(
    request: Request,
    state: NamedQueue,
    wanted: MatchingFilter,
    sort_by: SortBy = None,
    sort_order: SortOrder = None,
) -> StreamingResponse:
    """Send the messages in one state for `POST /api/queue/import`, as JSON lines or, if it is accepted, as JSON.

    The order is always that in which they are to be imported, oldest first: `sortBy` and `sortOrder` are ignored.
    """
    pages = queue_admin().export(state, wanted)
    first = next(pages)  # so that an outage of the server is an error response
    pages = chain([first], pages)
    if "application/json" in request.headers.get("accept", ""):
        headers = {"content-disposition": f'attachment; filename="{state}.json"'}
        return StreamingResponse(_json_list(pages), media_type="application/json", headers=headers)
    lines = ("".join(f"{message.to_json_line()}\n" for message in page) for page in pages)
    return JsonLines(lines, headers={"content-disposition": f'attachment; filename="{state}.jsonl"'})


def _json_list(pages: Iterable[Sequence[Message]]) -> Iterator[str]:
    """Yield the parts of a JSON list of the messages."""
    before = "["
    for page in filter(None, pages):
        yield before + ",\n".join(message.to_json() for message in page)
        before = ",\n"
    yield "[]" if before == "[" else "]"


@router.get("/queue/messages", response_model=list[DeliveredMessage])
def messages_of_date_range(
    start: Annotated[RequiredMoment, Query(alias="startTimestamp")],
    end: Annotated[RequiredMoment, Query(alias="endTimestamp")],
    limit: Limit = None,
) -> Response:
    """Return the messages that were added between two times, in any state; up to `limit`, 100 without it.

    The list ends after about 16 MiB, or 2 s: an export has all.
    """
    found = _all_states(Filter(since=start, until=end))
    listed: list[str] = []
    size = 0
    for message in islice(found, limit or DEFAULT_RANGE_LIMIT):
        listed.append(message.to_json())
        size += len(listed[-1])
        if size >= MAX_PAGE_BYTES:
            break
    return Response(f"[{','.join(listed)}]", media_type="application/json")


def _all_states(wanted: Filter) -> Iterator[Message]:
    """Yield the messages that match, state by state, for about 2 s; at least one page is read."""
    ends = time.monotonic() + COUNT_BUDGET.total_seconds()
    for state in MESSAGE_STATES:
        for page in queue_admin().export(state, wanted):
            yield from page
            if time.monotonic() >= ends:
                return


@router.get("/queue/{queueType}/count")
def count(place: NamedQueue, wanted: MatchingFilter) -> MessageCount:
    """Count the messages that match, for about 2 s at most."""
    found = queue_admin().count(place, wanted)
    return MessageCount(**vars(found), server_time=queue_admin().counts().now)
