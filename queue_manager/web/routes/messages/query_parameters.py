"""Parameters of queries about messages, and the parts of filters that bodies have too."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from queue_manager.web.http.query_parameters import EmptyIsNone
from services.message_queue import InvalidMessage, MessageState
from services.message_queue.messages import MAX_TYPE_BYTES, checked_text

MAX_SEARCH_BYTES = 1_024
MAX_WHOLE = 10**9  # a page's number, a priority, a number of attempts
MILLISECONDS_FROM = 1e11  # a number of seconds would be in the year 5138
LATEST = 1e15


def checks(check: Callable[[Any, str], Any]) -> Callable[[Any], Any]:
    """Return a validator made of a check of the queue."""

    def validate(value: Any) -> Any:
        try:
            return check(value, "")
        except InvalidMessage as error:
            raise ValueError(str(error).partition(": ")[2]) from None

    return validate


def moment(value: Any, field: str) -> float | None:
    """Read a time as seconds: ISO 8601, without a zone in UTC, or seconds or milliseconds since 1970.

    Raises: InvalidMessage.
    """
    if value is None or value == "":
        return None
    number = _number(value)
    if number is None and isinstance(value, str):
        number = _of_iso(value)
    if number is None or not abs(number) <= LATEST:
        raise InvalidMessage(field, "ISO 8601, or seconds or milliseconds since 1970")
    return number / 1000 if abs(number) >= MILLISECONDS_FROM else number


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _of_iso(text: str) -> float | None:
    try:
        # In a query, a + that nobody escaped is a space.
        read = datetime.fromisoformat(text.replace(" ", "+") if "T" in text else text)
        return (read if read.tzinfo else read.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None


def whole(number: float) -> float:
    """Return a whole number without a fraction: not every language reads 30.0 as one."""
    return int(number) if number == int(number) else number


WholeFilter = Annotated[int, Field(ge=0, le=MAX_WHOLE)]
FilterType = Annotated[
    str, Field(max_length=MAX_TYPE_BYTES), AfterValidator(checks(partial(checked_text, max_bytes=MAX_TYPE_BYTES)))
]
FilterText = Annotated[
    str,
    Field(max_length=MAX_SEARCH_BYTES, description="A text in the payload, the id, the type or the last error."),
    AfterValidator(checks(partial(checked_text, max_bytes=MAX_SEARCH_BYTES))),
]
MomentOf = Annotated[
    float | None,
    BeforeValidator(checks(moment)),
    WithJsonSchema({"anyOf": [{"type": "string", "format": "date-time"}, {"type": "number"}, {"type": "null"}]}),
]
"""A time: ISO 8601, without a zone in UTC, or seconds or milliseconds since 1970."""
Source = Annotated[MessageState | None, EmptyIsNone]
"""The queue in which a message is; anywhere without it."""
