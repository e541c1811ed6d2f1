"""The queue that a path names."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated

from fastapi import Depends, Path

from queue_manager.web.http.errors import Refused
from services.message_queue import MessageState
from services.message_queue.browser import MESSAGE_STATES

FIELD = "queueType"


def _named(
    queue_type: Annotated[str, Path(alias=FIELD, json_schema_extra={"enum": [*MESSAGE_STATES]})],
) -> MessageState:
    for place in MESSAGE_STATES:
        if place == queue_type:
            return place
    message = f"There is no queue {queue_type!r}; the queues are: {', '.join(MESSAGE_STATES)}"
    raise Refused(HTTPStatus.NOT_FOUND, "not found", message, field=FIELD)


NamedQueue = Annotated[MessageState, Depends(_named)]
"""The queue that the path names. Raises `Refused`."""
