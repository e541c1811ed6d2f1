"""Lists of jobs: pages, their cursors, and text search.

A cursor is the id of the last job, preceded by the sort field and its value if jobs are not sorted by id. A search
finds substrings; ASCII letters match case-insensitively, and no character is special.
"""

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
from services.job_queues.fields import InvalidJob, compact_json

SORT_BY_ID = "created"
"""Ids are in the order of creation."""
DATE_FIELDS = ("due", "updated")
ID = re.compile(r"[0-9A-Fa-f]{24}")
CURSOR = re.compile(rf"([a-z]+)\.(-?[0-9]{{1,15}})\.({ID.pattern})")
MAX_JOB_SEARCH_LENGTH = 256  # characters


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
    number = int(parts[2])
    try:
        value = EPOCH + timedelta(milliseconds=number) if sort in DATE_FIELDS else number
    except OverflowError:
        raise InvalidJob("before", f"{cursor!r:.60} is not valid: its time is out of range") from None
    return JobPosition(id=ObjectId(parts[3]), value=value)


def search_pattern(search: str) -> str:
    """Return a regular expression that matches a text, plain or escaped as JSON. Raises `InvalidJob`."""
    if len(search) > MAX_JOB_SEARCH_LENGTH:
        raise InvalidJob("search", f"must have at most {MAX_JOB_SEARCH_LENGTH} characters")
    try:
        search.encode()
    except UnicodeEncodeError:
        raise InvalidJob("search", "must not contain unpaired surrogates") from None
    spellings = dict.fromkeys((search, compact_json(search)[1:-1]))
    return "|".join("".join(map(_character_pattern, spelling)) for spelling in spellings)


def _character_pattern(character: str) -> str:
    if not character.isascii():
        return character
    if character.isalpha():
        return f"[{character.lower()}{character.upper()}]"
    return f"\\x{ord(character):02x}"
