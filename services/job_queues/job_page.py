"""Pages of jobs and their cursors: the id of the last job, preceded by the sort field and its value if not by id."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from bson import ObjectId

from models.database import Document
from models.job import JOB_SORT_FIELDS
from models.job_pages import JobPosition
from queue_manager.core.clock import EPOCH, milliseconds
from services.job_queues.errors import InvalidJob

SORT_BY_ID = "created"
"""Ids are in the order of creation."""
ID = re.compile(r"[0-9A-Fa-f]{24}")
CURSOR = re.compile(rf"([a-z]+)\.(-?[0-9]{{1,15}})\.({ID.pattern})")
DATE_FIELDS = ("due", "updated")


@dataclass(frozen=True, kw_only=True)
class JobPage:
    """A page of jobs. `cursor` is the `before` of the next page, `None` on the last page."""

    jobs: list[Document]
    cursor: str | None
    is_partial: bool
    """True if a search stopped before the page was full; it continues at the cursor."""


def sort_field(sort: str) -> str:
    """Return the field of a sort order. Raises `InvalidJob`."""
    if sort != SORT_BY_ID and sort not in JOB_SORT_FIELDS:
        raise InvalidJob("sort", f"must be one of {', '.join((SORT_BY_ID, *JOB_SORT_FIELDS))}")
    return "_id" if sort == SORT_BY_ID else sort


def format_cursor(position: JobPosition, sort: str) -> str:
    if sort == SORT_BY_ID:
        return str(position.id)
    value: Any = position.value
    number = milliseconds(value - EPOCH) if isinstance(value, datetime) else value
    return f"{sort}.{number}.{position.id}"


def parse_cursor(cursor: str, sort: str) -> JobPosition:
    """Parse a cursor of a list in this sort order. Raises `InvalidJob`."""
    if sort == SORT_BY_ID and ID.fullmatch(cursor):
        return JobPosition(id=ObjectId(cursor))
    parts = CURSOR.fullmatch(cursor)
    if parts is None or parts[1] != sort or sort == SORT_BY_ID:
        accepted = "the id of a job" if sort == SORT_BY_ID else f"the cursor of a page that is sorted by {sort}"
        raise InvalidJob("before", f"{cursor!r:.60} is not valid; must be {accepted}")
    try:
        return JobPosition(id=ObjectId(parts[3]), value=_value(sort, int(parts[2])))
    except OverflowError:
        raise InvalidJob("before", f"{cursor!r:.60} is not valid: its time is out of range") from None


def _value(sort: str, number: int) -> Any:
    return EPOCH + timedelta(milliseconds=number) if sort in DATE_FIELDS else number
