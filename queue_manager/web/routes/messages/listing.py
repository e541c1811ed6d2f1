"""`GET /api/queue/{queueType}/messages` and `/count`: a page of the messages in one place, and how many match."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

from fastapi import APIRouter, Depends, Query, Response

from queue_manager.web.routes.messages.message_state import named_place
from queue_manager.web.routes.messages.query_parameters import Text, Whole, moment
from services.message_queue import Counts, Filter, InvalidMessage, MessagePage, MessageState, queue_admin
from services.message_queue.admin import MAX_PAGE_SIZE, SORTABLE
from services.message_queue.messages import MAX_TYPE_BYTES, checked_integer, checked_text

USUAL_PAGE = 50
LONGEST_SEARCH = 1_024
MOST = 10**9  # of a page's number, a priority, a number of attempts
NOTHING = MessagePage(messages=[], cursor=None, matched=0, is_partial=False)
FIELDS = {re.sub(r"_(\w)", lambda match: match[1].upper(), name): name for name in SORTABLE}
FIELDS |= {name: name for name in SORTABLE}

router = APIRouter()


class FilterNames(NamedTuple):
    type: str
    priority: str
    attempts: str


OF_QUERY = FilterNames("filterType", "filterPriority", "filterAttempts")


@dataclass(frozen=True, kw_only=True)
class Asked:
    """Which page is wanted."""

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


def filter_of(
    *, type: Any, priority: Any, attempts: Any, start: Any, end: Any, search: Any, names: FilterNames
) -> Filter:
    """Read a filter, in which `None` says nothing; `names` are those that the client used. Raises `InvalidMessage`."""
    return Filter(
        type=checked_text(type, names.type, max_bytes=MAX_TYPE_BYTES) if type is not None else None,
        priority=checked_integer(priority, names.priority, minimum=0, maximum=MOST) if priority is not None else None,
        attempts=checked_integer(attempts, names.attempts, minimum=0, maximum=MOST) if attempts is not None else None,
        since=moment(start, "startDate"),
        until=moment(end, "endDate"),
        search=checked_text(search, "search", max_bytes=LONGEST_SEARCH) if search is not None else None,
    )


def _filter(
    type: Annotated[Text, Query(alias="filterType")] = None,
    priority: Annotated[Whole, Query(alias="filterPriority")] = None,
    attempts: Annotated[Whole, Query(alias="filterAttempts")] = None,
    start: Annotated[Text, Query(alias="startDate")] = None,
    end: Annotated[Text, Query(alias="endDate")] = None,
    search: Annotated[Text, Query()] = None,
) -> Filter:
    return filter_of(
        type=type, priority=priority, attempts=attempts, start=start, end=end, search=search, names=OF_QUERY
    )


def _asked(
    wanted: Annotated[Filter, Depends(_filter)],
    page: Annotated[Whole, Query()] = None,
    limit: Annotated[Whole, Query()] = None,
    cursor: Annotated[Text, Query()] = None,
    sort_by: Annotated[Text, Query(alias="sortBy")] = None,
    sort_order: Annotated[Literal["asc", "desc", ""], Query(alias="sortOrder")] = "",
) -> Asked:
    if sort_by is not None and sort_by not in FIELDS:
        raise InvalidMessage("sortBy", ", ".join(FIELDS))
    return Asked(
        page=checked_integer(page if page is not None else 1, "page", minimum=1, maximum=MOST),
        limit=checked_integer(limit if limit is not None else USUAL_PAGE, "limit", minimum=1, maximum=MAX_PAGE_SIZE),
        cursor=cursor,
        sort_by=FIELDS[sort_by] if sort_by else None,
        ascending=sort_order == "asc",
        wanted=wanted,
    )


@router.get("/queue/{queueType}/messages")
def messages(
    place: Annotated[MessageState, Depends(named_place)], asked: Annotated[Asked, Depends(_asked)]
) -> Response:
    """Give one page, the newest first unless it is asked otherwise; what is processed by deadline, the latest first.

    With a filter it looks for about 80 ms; sorted by a field by which entries have no order, it sorts the nearest
    5,000, and `cursor`, given once they are all shown, goes on behind them. `is_partial` says that there is more than
    was looked at: then `total` counts what was found so far, and `/count` counts all. In every order a page ends
    after about 16 MiB, with a cursor behind its last message.
    """
    counts = queue_admin().counts()
    found = _read(place, asked, counts)
    about = json.dumps({"pagination": _pagination(place, asked, found, counts), "server_time": counts.now})
    listed = ",".join(message.to_json() for message in found.messages)
    return Response(f'{{"messages":[{listed}],{about[1:]}', media_type="application/json")


@router.get("/queue/{queueType}/count")
def count(
    place: Annotated[MessageState, Depends(named_place)], wanted: Annotated[Filter, Depends(_filter)]
) -> dict[str, Any]:
    """Count what matches: all of it, unless that takes longer than about 2 s; then `is_complete` is false."""
    found = queue_admin().count(place, wanted)
    return {"count": found.count, "is_complete": found.is_complete, "server_time": queue_admin().counts().now}


def _read(place: MessageState, asked: Asked, counts: Counts) -> MessagePage:
    if asked.skip > counts.of(place):  # a page behind the end costs nothing
        return NOTHING
    return queue_admin().list(
        place,
        limit=asked.limit,
        skip=asked.skip,
        cursor=asked.cursor,
        where=asked.wanted,
        sort_by=asked.sort_by,
        ascending=asked.ascending,
    )


def _pagination(place: MessageState, asked: Asked, found: MessagePage, counts: Counts) -> dict[str, Any]:
    total = found.matched if asked.is_filtered else counts.of(place)
    # Sorting is within what was looked at: its cursor leads behind all of that, so the pages before come first.
    return {
        "page": asked.page,
        "limit": asked.limit,
        "total": total,
        "total_pages": math.ceil(total / asked.limit),
        "cursor": found.cursor if found.is_gapless else None,
        "is_partial": found.is_partial or (asked.is_filtered and found.cursor is not None),
    }
