"""Where messages are, as clients name it."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated, Any

from fastapi import Path

from queue_manager.web.http.errors import Refused
from services.message_queue import InvalidMessage, MessageState
from services.message_queue.admin import MESSAGE_STATES

FIELD = "queueType"


def named_place(queue_type: Annotated[str, Path(alias=FIELD)]) -> MessageState:
    """Return the place that a path names. Raises `Refused`."""
    for place in MESSAGE_STATES:
        if place == queue_type:
            return place
    said = f"There is no queue {queue_type!r}; the queues are: {', '.join(MESSAGE_STATES)}"
    raise Refused(HTTPStatus.NOT_FOUND, "not found", said, field=FIELD)


def given_place(value: Any, field: str) -> MessageState | None:
    """Return the place that a member names, `None` for none. Raises `InvalidMessage`."""
    if value is None:
        return None
    for place in MESSAGE_STATES:
        if place == value:
            return place
    raise InvalidMessage(field, ", ".join(MESSAGE_STATES))
