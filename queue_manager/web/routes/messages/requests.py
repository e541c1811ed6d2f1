"""Requests about messages: the queue in the path, query parameters, and bodies that contain messages.

Bodies are strict UTF-8; a payload is never decoded. The content type is ignored, since clients of the older services
send various ones.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from email.message import Message
from functools import partial
from http import HTTPStatus
from typing import Annotated, Any, ClassVar, TypeVar

from fastapi import Depends, Path, Request
from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from queue_manager.core.clock import MIN_MILLISECONDS
from queue_manager.core.settings import settings
from queue_manager.web.http.errors import ApiError
from queue_manager.web.http.requests import Body, malformed, read_body
from services.message_queue import InvalidMessage, Json, MessageState
from services.message_queue.browser import MESSAGE_STATES
from services.message_queue.messages import MAX_PAYLOAD_DEPTH, MAX_TYPE_BYTES, checked_text, elements, members
from services.message_queue.operations import MAX_ENQUEUED_MESSAGES

MAX_FILTER_BYTES = 1_024
MAX_WHOLE = 10**9  # a page number, a priority, a number of attempts
MAX_TIMESTAMP = 1e15
MAX_OTHER_BYTES = 64 * 1024
"""Bytes of a body besides its payload."""
MAX_BATCH_BYTES = 16 * 1024 * 1024
MAX_BATCH_MESSAGES = MAX_ENQUEUED_MESSAGES

Parsed = TypeVar("Parsed")

# The queue in the path


def _named_queue(
    name: Annotated[str, Path(alias="queueType", json_schema_extra={"enum": [*MESSAGE_STATES]})],
) -> MessageState:
    for state in MESSAGE_STATES:
        if state == name:
            return state
    message = f"There is no queue {name!r}; the queues are: {', '.join(MESSAGE_STATES)}"
    raise ApiError(HTTPStatus.NOT_FOUND, "not found", message, field="queueType")


NamedQueue = Annotated[MessageState, Depends(_named_queue)]
"""The queue that the path names. Raises `ApiError`."""


# Query parameters, and the members of filters in bodies


def parse_time(value: Any, field: str) -> float | None:
    """Return a time in seconds: ISO 8601, in UTC without a zone, or seconds or milliseconds since 1970.

    Raises: InvalidMessage.
    """
    if value is None or value == "":
        return None
    number = _number(value)
    if number is None and isinstance(value, str):
        number = _iso_timestamp(value)
    if number is None or not abs(number) <= MAX_TIMESTAMP:
        raise InvalidMessage(field, "ISO 8601, or seconds or milliseconds since 1970")
    return number / 1000 if abs(number) >= MIN_MILLISECONDS else number


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


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
    Field(max_length=MAX_TYPE_BYTES),
    AfterValidator(_checked_by(partial(checked_text, max_bytes=MAX_TYPE_BYTES))),
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


# Bodies


class MessageBody(Body):
    """A dependency that returns the bytes of a body with one message, whose payload must stay as it was sent."""

    async def __call__(self, request: Request) -> bytes:
        body = await read_body(request, settings().queue_max_payload_bytes + MAX_OTHER_BYTES, field="payload")
        return body if self.is_required or body.strip() else b"{}"


class BatchBody(Body):
    """A dependency that returns the bytes of a body with many messages."""

    async def __call__(self, request: Request) -> bytes:
        return await read_body(request, MAX_BATCH_BYTES, field="body")


class LinesBody(Body):
    """A dependency that returns the bytes of a body of JSON lines, which a form may contain as a file."""

    media_type = "application/x-ndjson"
    form: ClassVar = {"type": "object", "required": ["file"], "properties": {"file": {"type": "string"}}}
    other_contents: ClassVar = {"multipart/form-data": {"schema": form}}

    def __init__(self) -> None:
        super().__init__(str)

    async def __call__(self, request: Request) -> bytes:
        body = await read_body(request, MAX_BATCH_BYTES, field="body")
        content_type = Message()  # the parser of the newer class fails for some malformed headers
        content_type["content-type"] = request.headers.get("content-type", "")
        boundary = content_type.get_boundary()
        return body if boundary is None else _file_of_form(body, boundary)


def _file_of_form(body: bytes, boundary: str) -> bytes:
    """Return the content of the file named `file` in a multipart body. Raises `ApiError`."""
    for part in (b"\r\n" + body).split(b"\r\n--" + boundary.encode())[1:]:
        headers, _, content = part.partition(b"\r\n\r\n")
        if b'name="file"' in headers:
            return content
    raise ApiError(HTTPStatus.BAD_REQUEST, "bad request", "file: is missing", field="file")


def parse_object(body: bytes) -> dict[str, Json]:
    """Return the members of a JSON object without decoding them. Raises `ApiError`, `InvalidMessage`."""
    return _parsed(members, body)


def parse_list(body: bytes) -> list[Json]:
    """Return the elements of a JSON list without decoding them. Raises `ApiError`, `InvalidMessage`."""
    return _parsed(partial(elements, maximum=MAX_BATCH_MESSAGES), body)


def _parsed(parse: Callable[[str], Parsed], body: bytes) -> Parsed:
    try:
        return parse(body.decode())
    except RecursionError:
        raise InvalidMessage("payload", f"JSON of at most {MAX_PAYLOAD_DEPTH} levels") from None
    except ValueError as error:
        raise malformed(str(error)) from None


def decode_message(members: Mapping[str, Json]) -> dict[str, Any]:
    """Decode the members of a message except the payload. Raises `InvalidMessage`."""
    return {name: text if name == "payload" else decode_member(members, name) for name, text in members.items()}


def decode_member(members: Mapping[str, Json], name: str) -> Any:
    """Return the value of a member, `None` if it is missing. Raises `InvalidMessage`."""
    try:
        return json.loads(members.get(name, "null"))
    except (ValueError, RecursionError):  # Python refuses to read an integer of thousands of digits
        raise InvalidMessage(name[:64], "a shorter value") from None


def whole(number: float) -> float:
    """Return a whole number as an `int`: not every language reads 30.0 as one."""
    return int(number) if number == int(number) else number
