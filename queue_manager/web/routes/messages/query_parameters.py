"""Parameters of a query. An empty one is as good as none: forms send those that nobody filled in."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Annotated, Any, get_args

from pydantic import BeforeValidator

from services.message_queue import InvalidMessage
from services.message_queue.admin import MESSAGE_STATES, MessageState

_Given = BeforeValidator(lambda value: None if value == "" else value)

Text = Annotated[str | None, _Given]
Number = Annotated[float | None, _Given]
Whole = Annotated[int | None, _Given]
QueueType = Annotated[MessageState | None, _Given]

MILLISECONDS_FROM = 1e11  # a number of seconds would be in the year 5138
LATEST = 1e15
assert get_args(MessageState) == MESSAGE_STATES


def moment(value: Any, field: str) -> float | None:
    """Read a moment as seconds: ISO 8601, without a zone in UTC, or seconds or milliseconds since 1970.

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
