"""Requests about messages: the queue in the path, query parameters, and bodies that contain messages.

Bodies are strict UTF-8; a payload is never decoded. The content type is ignored, since clients of the older services
send various ones.
"""

from __future__ import annotations

from email.message import Message
from http import HTTPStatus
from typing import Annotated, ClassVar

from fastapi import Depends, Path, Request

from queue_manager.core.errors import NotFound
from queue_manager.core.settings import settings
from queue_manager.web.http.errors import ApiError
from queue_manager.web.http.requests import Body, read_body
from services.message_queue import MessageState
from services.message_queue.browser import MESSAGE_STATES

MAX_OTHER_BYTES = 64 * 1024
"""Bytes of a body besides its payload."""
MAX_BATCH_BYTES = 16 * 1024 * 1024


# The queue in the path


def _named_queue(
    name: Annotated[str, Path(alias="queueType", json_schema_extra={"enum": [*MESSAGE_STATES]})],
) -> MessageState:
    for state in MESSAGE_STATES:
        if state == name:
            return state
    message = f"There is no queue {name!r}; the queues are: {', '.join(MESSAGE_STATES)}"
    raise NotFound(message, field="queueType")


NamedQueue = Annotated[MessageState, Depends(_named_queue)]
"""The queue that the path names. Raises `NotFound`."""


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
    raise missing("file")


def missing(field: str) -> ApiError:
    return ApiError(HTTPStatus.BAD_REQUEST, "bad request", f"{field}: is missing", field=field)
