"""Bodies of requests: bounded while they come in, strict UTF-8, read as JSON without changing a payload.

The content type says nothing: clients of other systems send what they like.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import Depends, Request
from starlette.requests import ClientDisconnect

from queue_manager.core.settings import settings
from queue_manager.dashboard.errors import Refused
from services.message_queue.errors import InvalidMessage
from services.message_queue.messages import DEEPEST, Json, elements, members
from services.message_queue.queue import REASON_BYTES

ROOM = 64 * 1024
"""Bytes of a body beside its payload."""
LARGEST_BATCH = 16 * 1024 * 1024
MOST_MESSAGES = 1_000
HEARD_OUT = 64 * 1024 * 1024  # bytes over the limit: a client that is cut off while it sends never reads the answer


async def _of_one(request: Request) -> bytes:
    return await _read(request, settings().queue_max_payload_bytes + ROOM, field="payload")


async def _of_many(request: Request) -> bytes:
    return await _read(request, LARGEST_BATCH, field="body")


OfOne = Annotated[bytes, Depends(_of_one)]
"""The body of a request about one message."""
OfMany = Annotated[bytes, Depends(_of_many)]
"""The body of a request about many messages."""


async def _read(request: Request, most: int, *, field: str) -> bytes:
    body, size = bytearray(), 0
    try:
        async for chunk in request.stream():
            size += len(chunk)
            if size <= most:
                body += chunk
            elif size > most + HEARD_OUT:
                break
    except ClientDisconnect:
        raise malformed("it ended early") from None
    if size > most:
        status = HTTPStatus.REQUEST_ENTITY_TOO_LARGE
        raise Refused(status, "too large", f"{field}: accepted are at most {most} bytes", field=field)
    return bytes(body)


def malformed(why: str) -> Refused:
    return Refused(HTTPStatus.BAD_REQUEST, "bad request", f"body: accepted is JSON in UTF-8 ({why})", field="body")


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
        return elements(body.decode(), most=MOST_MESSAGES)
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
    """Return a reason's text as it is kept, or `None`: what UTF-8 can say of it, cut. Raises `InvalidMessage`."""
    if value is None:
        return None
    if not isinstance(value, str):
        raise InvalidMessage(field, "a text")
    return value.encode("utf-8", "replace")[:REASON_BYTES].decode("utf-8", "ignore")


def too_deep() -> InvalidMessage:
    return InvalidMessage("payload", f"JSON of at most {DEEPEST} levels")
