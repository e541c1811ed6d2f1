"""Opaque pagination cursors: the position at which a list continues, and the list that it belongs to."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import bson
from bson import DBRef, Decimal128, MaxKey, MinKey, ObjectId, Timestamp, json_util
from bson.json_util import CANONICAL_JSON_OPTIONS

from models.listing import NoPosition
from queue_manager.core.errors import InvalidField

MAX_CURSOR_LENGTH = 16_384  # characters; a position has an id as long as the search accepts
PLAIN_TYPES = (datetime, ObjectId, str, int, float, bytes, Decimal128, Timestamp, DBRef, MinKey, MaxKey)
CURSOR_JSON_OPTIONS = CANONICAL_JSON_OPTIONS.with_options(tz_aware=True)


def encode(position: Sequence[Any] | None, *, of: str) -> str | None:
    """Return the cursor of a position in the list named `of`; `None` without a position, at the end of the list."""
    if position is None:
        return None
    return base64.urlsafe_b64encode(
        json_util.dumps([of, *position], json_options=CURSOR_JSON_OPTIONS).encode()
    ).decode()


def decode(text: str | None, *, of: str) -> tuple[Any, ...] | None:
    """Return the position of a cursor of the list named `of`; `None` without a cursor. Raises `InvalidField`."""
    if not text:
        return None
    try:
        read = json_util.loads(base64.urlsafe_b64decode(text.encode()), json_options=CURSOR_JSON_OPTIONS)
        bson.encode({"position": read})
    except Exception:  # forged extended JSON makes the decoder raise many types of errors
        raise _invalid_cursor() from None
    if not isinstance(read, list) or len(read) < 2 or read[0] != of or not all(map(_is_plain, read)):
        raise _invalid_cursor()
    return tuple(read[1:])


@contextmanager
def checked() -> Iterator[None]:
    """Raise `InvalidField` if the position does not belong to the list."""
    try:
        yield
    except NoPosition:
        raise _invalid_cursor() from None


def _invalid_cursor() -> InvalidField:
    return InvalidField("cursor", "must be the cursor of an earlier page of the same list")


def _is_plain(value: Any) -> bool:
    """Return True for the BSON types of dates, numbers and ids."""
    if isinstance(value, dict):
        return not any(name.startswith("$") for name in value)
    return value is None or isinstance(value, PLAIN_TYPES)
