"""Bodies about messages: strict UTF-8, read as JSON without changing a payload.

The content type says nothing: clients of other systems send what they like.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import Depends, Request

from queue_manager.core.settings import settings
from queue_manager.web.http.request_body import malformed, read
from services.message_queue.errors import InvalidMessage
from services.message_queue.messages import MAX_PAYLOAD_DEPTH, Json, elements, members

ROOM = 64 * 1024
"""Bytes of a body beside its payload."""
LARGEST_BATCH = 16 * 1024 * 1024
MOST_MESSAGES = 1_000


async def _of_one(request: Request) -> bytes:
    return await read(request, settings().queue_max_payload_bytes + ROOM, field="payload")


async def _of_many(request: Request) -> bytes:
    return await read(request, LARGEST_BATCH, field="body")


OfOne = Annotated[bytes, Depends(_of_one)]
"""The body of a request about one message."""
OfMany = Annotated[bytes, Depends(_of_many)]
"""The body of a request about many messages."""


def object_of(body: bytes) -> dict[str, Json]:
    """Return the members of the object that a body is, as they are written. Raises `Refused`, `InvalidMessage`."""
    try:
        return members(body.decode())
    except RecursionError:
        raise too_deep() from None
    except ValueError as error:
        raise malformed(str(error)) from None


def list_of(body: bytes) -> list[Json]:
    """Return the elements of the list that a body is, as they are written. Raises like `object_of`."""
    try:
        return elements(body.decode(), maximum=MOST_MESSAGES)
    except RecursionError:
        raise too_deep() from None
    except ValueError as error:
        raise malformed(str(error)) from None


def message_of(given: Mapping[str, Json]) -> dict[str, Any]:
    """Return members as values, the payload alone as it is written. Raises `InvalidMessage`."""
    return {name: text if name == "payload" else value_of(name, text) for name, text in given.items()}


def values_of(given: Mapping[str, Json], *names: str) -> dict[str, Any]:
    """Return the named members as values, `None` for those that are not given. Raises `InvalidMessage`."""
    return {name: value_of(name, given[name]) if name in given else None for name in names}


def refuse_others(given: Mapping[str, Json], *names: str) -> None:
    """Raises `InvalidMessage` for a member that is not one of `names`."""
    for name in given:
        if name not in names:
            raise InvalidMessage(name[:64], f"no such field; the fields are {', '.join(names)}")


def value_of(name: str, text: Json) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):  # of an integer with thousands of digits
        raise InvalidMessage(name[:64], "a shorter value") from None


def reason_of(value: Any, field: str) -> str | None:
    """Return a reason's text, or `None`. Raises `InvalidMessage`."""
    if value is not None and not isinstance(value, str):
        raise InvalidMessage(field, "a text")
    return value


def too_deep() -> InvalidMessage:
    return InvalidMessage("payload", f"JSON of at most {MAX_PAYLOAD_DEPTH} levels")
