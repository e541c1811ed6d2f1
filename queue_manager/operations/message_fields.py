"""Parsing of the filters that clients and operators send."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from queue_manager.core.clock import MIN_MILLISECONDS
from services.message_queue import InvalidMessage
from services.message_queue.fields import MAX_NAME_BYTES, checked_text

MAX_FILTER_BYTES = 1_024
MAX_WHOLE = 10**9  # a page number, a priority, a number of attempts
MAX_TIMESTAMP = 1e15
MIN_SECONDS = 1e8  # of a text; a smaller one is a date, such as 20260131, or a mistake, such as 2026
FIRST_SECOND = 1  # clients of Relay send 0 or 1 for a time before all messages
DATE_AND_TIME_DIGITS = {12, 14}  # 202601310930 without a T: as milliseconds, it would be in 1976


def parse_time(value: Any, field: str) -> float | None:
    """Return a time in seconds: ISO 8601, in UTC without a zone, or seconds or milliseconds since 1970.

    A text of 8 digits is a date of ISO 8601. Other texts of small numbers, or of 12 or 14 digits, are refused, but not
    the numbers themselves.

    Raises: InvalidMessage.
    """
    if value is None or value == "":
        return None
    number = _number(value)
    if isinstance(value, str) and (number is None or _looks_like_a_date(value, number)):
        number = _iso_timestamp(value)
    if number is None or not abs(number) <= MAX_TIMESTAMP:
        since_1970 = f"seconds (0, 1 or at least {MIN_SECONDS:,.0f}) or milliseconds since 1970"
        raise InvalidMessage(field, f"ISO 8601, such as 2026-01-31T09:30Z, or {since_1970}")
    return number / 1000 if abs(number) >= MIN_MILLISECONDS else number


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _looks_like_a_date(text: str, number: float) -> bool:
    return FIRST_SECOND < abs(number) < MIN_SECONDS or (text.isdecimal() and len(text) in DATE_AND_TIME_DIGITS)


def _iso_timestamp(text: str) -> float | None:
    try:
        # In a query, an unescaped + is read as a space.
        parsed = datetime.fromisoformat(text.replace(" ", "+") if "T" in text else text)
        return (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None


def _checked_by(check: Callable[[Any, str], Any]) -> Callable[[Any], Any]:
    """Turn a check of the queue into a pydantic validator."""

    def validate(value: Any) -> Any:
        try:
            return check(value, "")
        except InvalidMessage as error:
            raise ValueError(error.problem) from None

    return validate


WholeFilter = Annotated[int, Field(ge=0, le=MAX_WHOLE)]
FilterType = Annotated[
    str,
    Field(max_length=MAX_NAME_BYTES),
    AfterValidator(_checked_by(checked_text)),
]
FilterText = Annotated[
    str,
    Field(max_length=MAX_FILTER_BYTES, description="A text in the payload, the id, the type or the last error."),
    AfterValidator(_checked_by(partial(checked_text, max_bytes=MAX_FILTER_BYTES))),
]
_TIMESTAMP = {"type": "number", "minimum": -MAX_TIMESTAMP, "maximum": MAX_TIMESTAMP}
MomentOf = Annotated[
    float | None,
    BeforeValidator(_checked_by(parse_time)),
    WithJsonSchema({"anyOf": [{"type": "string", "format": "date-time"}, _TIMESTAMP, {"type": "null"}]}),
]
"""A time, in a form that `parse_time` reads."""
RequiredMoment = Annotated[
    float,
    BeforeValidator(_checked_by(parse_time)),
    WithJsonSchema({"anyOf": [{"type": "string", "format": "date-time"}, {"type": "number"}]}),
]


def whole(number: float) -> float:
    """Return a whole number as an `int`: not every language reads 30.0 as one."""
    return int(number) if number == int(number) else number
