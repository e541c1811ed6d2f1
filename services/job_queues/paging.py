"""Cursors of lists of jobs: the id of the last job; sorted by something else, that field, its value and the id."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from bson import ObjectId

from models.database import Document
from models.job import EPOCH, SORTED_BY
from models.job_pages import Place
from queue_manager.core.clock import milliseconds
from services.job_queues.errors import InvalidJob

BY_ID = "created"
"""Ids are in the order in which jobs were made."""
ID = re.compile(r"[0-9A-Fa-f]{24}")
CURSOR = re.compile(rf"([a-z]+)\.(-?[0-9]{{1,15}})\.({ID.pattern})")
TIMES = ("due", "updated")


@dataclass(frozen=True, kw_only=True)
class JobPage:
    """Some jobs. `cursor`: the `before` of the next page; `None` on the last."""

    jobs: list[Document]
    cursor: str | None
    is_partial: bool
    """Whether a search stopped before the page was full; it goes on at the cursor."""


def field_of(sort: str) -> str:
    """Return the field that jobs are sorted by. Raises `InvalidJob`."""
    if sort != BY_ID and sort not in SORTED_BY:
        raise InvalidJob("sort", f"accepted are {', '.join((BY_ID, *SORTED_BY))}")
    return "_id" if sort == BY_ID else sort


def cursor_of(place: Place, sort: str) -> str:
    if sort == BY_ID:
        return str(place.id)
    value: Any = place.value
    number = milliseconds(value - EPOCH) if isinstance(value, datetime) else value
    return f"{sort}.{number}.{place.id}"


def place_of(cursor: str, sort: str) -> Place:
    """Read a cursor of a list that is sorted in this way. Raises `InvalidJob`."""
    if sort == BY_ID and ID.fullmatch(cursor):
        return Place(id=ObjectId(cursor))
    parts = CURSOR.fullmatch(cursor)
    if parts is None or parts[1] != sort or sort == BY_ID:
        accepted = "the id of a job" if sort == BY_ID else f"the cursor of a page that is sorted by {sort}"
        raise InvalidJob("before", f"{cursor!r:.60} is not accepted; that is {accepted}")
    try:
        return Place(id=ObjectId(parts[3]), value=_value(sort, int(parts[2])))
    except OverflowError:
        raise InvalidJob("before", f"{cursor!r:.60} names no moment that there is") from None


def _value(sort: str, number: int) -> Any:
    return EPOCH + timedelta(milliseconds=number) if sort in TIMES else number
