"""Reading messages: one with its history, a page of the messages in one state, and how many match."""

from __future__ import annotations

import json
import math
import re
from dataclasses import asdict
from itertools import chain, islice
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query, Response
from fastapi.responses import StreamingResponse
from pydantic import AfterValidator, Field

from queue_manager.web.http import cursors
from queue_manager.web.http.cursors import Cursor
from queue_manager.web.http.errors import errors
from queue_manager.web.http.requests import EmptyIsNone
from queue_manager.web.routes.messages.requests import (
    MAX_WHOLE,
    FilterText,
    FilterType,
    MomentOf,
    NamedQueue,
    RequiredMoment,
    WholeFilter,
)
from queue_manager.web.routes.messages.response_schemas import (
    DeliveredMessage,
    MessageCount,
    MessageList,
    MessageWithHistory,
)
from services.message_queue import Filter, MessageListing, UnknownMessage, queue_admin
from services.message_queue.browser import MAX_MESSAGES_PER_PAGE, MESSAGE_STATES, SORT_FIELDS_BY_STATE
from services.message_queue.history import parse_events

DEFAULT_LIMIT = 50
DEFAULT_RANGE_LIMIT = 100
NO_MESSAGES = MessageListing(messages=[], cursor=None, matched=0, is_partial=False)
SORT_NAMES = {name: name for fields in SORT_FIELDS_BY_STATE.values() for name in fields}
SORT_NAMES |= {re.sub(r"_(\w)", lambda match: match[1].upper(), name): name for name in SORT_NAMES}
"""The names of the fields by which messages are sorted, also in camelCase."""

router = APIRouter(responses=errors(404, 503))


class JsonLines(StreamingResponse):
    """A stream of JSON values, one in each line."""

    media_type = "application/x-ndjson"


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


@router.get("/queue/message/{id:path}", response_model=MessageWithHistory)
def message(id: str) -> Response:
    """Return one message in any state, with what happened to it since its first delivery. Nobody receives it."""
    found = queue_admin().find_with_state(id)
    if found is None:
        raise UnknownMessage(f"There is no message {id}")
    state, message = found
    events = [
        {name: value for name, value in asdict(event).items() if value is not None}
        for event in parse_events(message.packed_events)
    ]
    about = json.dumps({"state": state, "events": events, "server_time": queue_admin().counts().now})
    return Response(f"{message.to_json()[:-1]},{about[1:]}", media_type="application/json")


@router.get("/queue/{queueType}/messages", response_model=MessageList)
def messages(
    place: NamedQueue,
    wanted: MatchingFilter,
    page: Annotated[Annotated[int, Field(ge=1, le=MAX_WHOLE)] | None, EmptyIsNone] = None,
    limit: Annotated[Annotated[int, Field(ge=1, le=MAX_MESSAGES_PER_PAGE)] | None, EmptyIsNone] = None,
    cursor: Cursor = None,
    sort_by: Annotated[
        str | None,
        EmptyIsNone,
        AfterValidator(_sort_field),
        Query(alias="sortBy", json_schema_extra={"enum": [*SORT_NAMES]}),
    ] = None,
    sort_order: Annotated[Literal["asc", "desc"] | None, EmptyIsNone, Query(alias="sortOrder")] = None,
) -> Response:
    """List messages, newest first; those in processing by deadline, latest first.

    `sortBy` is `createdAt` or `priority` in `main`, `deadlineAt` in `processing`, `failedAt` in `dead`,
    `acknowledgedAt` in `acknowledged`, and `archivedAt` in `archived`. A requeued message counts as created at its
    requeue. A filter is applied for about 80 ms. A page ends after about 16 MiB. With `is_partial`, `total` is the
    number of matches found so far, and `/count` counts all.
    """
    page, limit, order = page or 1, limit or DEFAULT_LIMIT, sort_order or "desc"
    of = f"messages {place} {sort_by or ''} {order}"
    after = cursors.decode(cursor, of=of)
    counts = queue_admin().counts()
    skip = (page - 1) * limit
    found = NO_MESSAGES
    if skip <= counts.of(place):  # a page behind the end must cost nothing
        found = queue_admin().list(
            place,
            limit=limit,
            skip=skip,
            cursor=None if after is None else str(after[0]),
            where=wanted,
            sort_by=sort_by,
            ascending=order == "asc",
        )
    is_filtered = wanted != Filter()
    total = found.matched if is_filtered else counts.of(place)
    total_pages = math.ceil(total / limit)
    pagination = {
        "page": page,
        "limit": limit,
        "total": total,
        "total_pages": total_pages,
        "totalPages": total_pages,
        "cursor": cursors.encode([found.cursor], of=of) if found.cursor else None,
        "is_partial": found.is_partial or (is_filtered and found.cursor is not None),
    }
    about = json.dumps({"pagination": pagination, "server_time": counts.now})
    listed = ",".join(message.to_json() for message in found.messages)
    return Response(f'{{"messages":[{listed}],{about[1:]}', media_type="application/json")


@router.get("/queue/{queueType}/export", response_class=JsonLines)
def export(state: NamedQueue, wanted: MatchingFilter) -> JsonLines:
    """Send the messages in one state as JSON lines, oldest first, for `POST /api/queue/import`."""
    pages = queue_admin().export(state, wanted)
    first = next(pages)  # so that an outage of the server is an error response
    lines = ("".join(f"{message.to_json()}\n" for message in page) for page in chain([first], pages))
    return JsonLines(lines, headers={"content-disposition": f'attachment; filename="{state}.jsonl"'})


@router.get("/queue/messages", response_model=list[DeliveredMessage])
def messages_of_date_range(
    start: Annotated[RequiredMoment, Query(alias="startTimestamp")],
    end: Annotated[RequiredMoment, Query(alias="endTimestamp")],
    limit: Annotated[Annotated[int, Field(ge=1, le=MAX_MESSAGES_PER_PAGE)] | None, EmptyIsNone] = None,
) -> Response:
    """Return the messages that were added between two times, in any state; up to `limit`, 100 without it."""
    wanted = Filter(since=start, until=end)
    found = (one for state in MESSAGE_STATES for page in queue_admin().export(state, wanted) for one in page)
    listed = ",".join(message.to_json() for message in islice(found, limit or DEFAULT_RANGE_LIMIT))
    return Response(f"[{listed}]", media_type="application/json")


@router.get("/queue/{queueType}/count")
def count(place: NamedQueue, wanted: MatchingFilter) -> MessageCount:
    """Count the messages that match, for about 2 s at most."""
    found = queue_admin().count(place, wanted)
    return MessageCount(count=found.count, is_complete=found.is_complete, server_time=queue_admin().counts().now)
