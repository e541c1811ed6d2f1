"""The queue that a path names."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated

from fastapi import Depends, Path

from queue_manager.web.http.errors import Refused
from services.message_queue import Place
from services.message_queue.admin import PLACES

FIELD = "queueType"


def _named(queue_type: Annotated[str, Path(alias=FIELD, json_schema_extra={"enum": [*PLACES]})]) -> Place:
    for place in PLACES:
        if place == queue_type:
            return place
    message = f"There is no queue {queue_type!r}; the queues are: {', '.join(PLACES)}"
    raise Refused(HTTPStatus.NOT_FOUND, "not found", message, field=FIELD)


NamedQueue = Annotated[Place, Depends(_named)]
"""The queue that the path names. Raises `Refused`."""
