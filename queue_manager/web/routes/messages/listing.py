"""`GET /api/queue/{queueType}/messages` and `/count`: a page of the messages in one place, and how many match."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Response
from pydantic import AfterValidator, Field

from queue_manager.web.http import cursors
from queue_manager.web.http.cursors import Cursor
from queue_manager.web.http.errors import errors
from queue_manager.web.http.query_parameters import EmptyIsNone
from queue_manager.web.routes.messages.message_state import NamedQueue
from queue_manager.web.routes.messages.query_parameters import (
    MAX_WHOLE,
    FilterText,
    FilterType,
    MomentOf,
    WholeFilter,
)
from queue_manager.web.routes.messages.schemas import MessageCount, MessagePage
from services.message_queue import Filter, MessageListing, MessageState, QueueCounts, queue_admin
from services.message_queue.browser import MAX_MESSAGES_PER_PAGE, SORT_FIELDS_BY_STATE

DEFAULT_LIMIT = 50
NO_MESSAGES = MessageListing(messages=[], cursor=None, matched=0, is_partial=False)
SORT_NAMES = {name: name for fields in SORT_FIELDS_BY_STATE.values() for name in fields}
SORT_NAMES |= {re.sub(r"_(\w)", lambda match: match[1].upper(), name): name for name in SORT_NAMES}
"""The names of the fields by which messages are sorted, also in camelCase."""

router = APIRouter(responses=errors(404, 503))


@dataclass(frozen=True, kw_only=True)
class ListOptions:
    """Which page is meant."""

    page: int
    limit: int
    cursor: str | None
    sort_by: str | None
    ascending: bool
    wanted: Filter

    @property
    def skip(self) -> int:
        return (self.page - 1) * self.limit

    @property
    def is_filtered(self) -> bool:
        return self.wanted != Filter()


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


def _options(
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
) -> ListOptions:
    return ListOptions(
        page=page or 1,
        limit=limit or DEFAULT_LIMIT,
        cursor=cursor,
        sort_by=sort_by,
        ascending=sort_order == "asc",
        wanted=wanted,
    )


@router.get("/queue/{queueType}/messages", response_model=MessagePage)
def messages(place: NamedQueue, options: Annotated[ListOptions, Depends(_options)]) -> Response:
    """List messages, newest first; those in processing by deadline, latest first.

    `sortBy` is `createdAt` or `priority` in `main`, `deadlineAt` in `processing`, `failedAt` in `dead`, and
    `acknowledgedAt` in `acknowledged`. A requeued message counts as created at its requeue. A filter is applied for
    about 80 ms. A page ends after about 16 MiB. With `is_partial`, `total` is the number of matches found so far, and
    `/count` counts all.
    """
    counts = queue_admin().counts()
    of = f"messages {place} {options.sort_by or ''} {'asc' if options.ascending else 'desc'}"
    found = _read(place, options, counts, of)
    pagination = _pagination(place, options, found, counts, of)
    about = json.dumps({"pagination": pagination, "server_time": counts.now})
    listed = ",".join(message.to_json() for message in found.messages)
    return Response(f'{{"messages":[{listed}],{about[1:]}', media_type="application/json")


@router.get("/queue/{queueType}/count")
def count(place: NamedQueue, wanted: MatchingFilter) -> MessageCount:
    """Count the messages that match, for about 2 s at most."""
    found = queue_admin().count(place, wanted)
    return MessageCount(count=found.count, is_complete=found.is_complete, server_time=queue_admin().counts().now)


def _read(place: MessageState, options: ListOptions, counts: QueueCounts, of: str) -> MessageListing:
    after = cursors.decode(options.cursor, of=of)
    if options.skip > counts.of(place):  # a page behind the end must cost nothing
        return NO_MESSAGES
    return queue_admin().list(
        place,
        limit=options.limit,
        skip=options.skip,
        cursor=None if after is None else str(after[0]),
        where=options.wanted,
        sort_by=options.sort_by,
        ascending=options.ascending,
    )


def _pagination(
    place: MessageState, options: ListOptions, found: MessageListing, counts: QueueCounts, of: str
) -> dict[str, Any]:
    total = found.matched if options.is_filtered else counts.of(place)
    return {
        "page": options.page,
        "limit": options.limit,
        "total": total,
        "total_pages": math.ceil(total / options.limit),
        "cursor": cursors.encode([found.cursor], of=of) if found.cursor else None,
        "is_partial": found.is_partial or (options.is_filtered and found.cursor is not None),
    }
