"""Bodies with messages: strict UTF-8, read as JSON without changing a payload.

The content type is ignored: clients of other systems send various ones.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fastapi import Request

from queue_manager.core.settings import settings
from queue_manager.web.http.request_body import Body, malformed, read
from services.message_queue.errors import InvalidMessage
from services.message_queue.messages import MAX_PAYLOAD_DEPTH, Json, elements, members

MAX_OTHER_BYTES = 64 * 1024
"""Bytes of a body besides its payload."""
MAX_BATCH_BYTES = 16 * 1024 * 1024
MAX_BATCH = 1_000


class MessageBody(Body):
    """A dependency: the bytes of a body with one message. Its payload must stay as it was sent."""

    async def __call__(self, request: Request) -> bytes:
        return await read(request, settings().queue_max_payload_bytes + MAX_OTHER_BYTES, field="payload")


class BatchBody(Body):
    """A dependency: the bytes of a body with many messages."""

    async def __call__(self, request: Request) -> bytes:
        return await read(request, MAX_BATCH_BYTES, field="body")


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
        return elements(body.decode(), maximum=MAX_BATCH)
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


def value_of(name: str, text: Json) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):  # of an integer with thousands of digits
        raise InvalidMessage(name[:64], "a shorter value") from None


def too_deep() -> InvalidMessage:
    return InvalidMessage("payload", f"JSON of at most {MAX_PAYLOAD_DEPTH} levels")
