"""Requests about messages: the queue in the path, query parameters, and bodies.

Bodies are strict UTF-8; a payload is never decoded. The content type is ignored, since clients of the older services
send various ones. The queue validates new messages and tokens; their models only describe those bodies. Times are
seconds since 1970, as these clients expect.
"""

from __future__ import annotations

from collections.abc import Callable
from email.message import Message
from http import HTTPStatus
from typing import Annotated, Any, ClassVar, Literal

from fastapi import Depends, Path, Request
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from queue_manager.core.errors import NotFound
from queue_manager.core.settings import settings
from queue_manager.operations.message_fields import FilterText, FilterType, MomentOf, WholeFilter
from queue_manager.operations.message_schemas import Payload
from queue_manager.operations.schemas import PAUSE_REASON, Members
from queue_manager.web.http.errors import ApiError
from queue_manager.web.http.requests import Body, read_body
from services.message_queue import Filter, InvalidMessage, MessageState
from services.message_queue.admin import MAX_PAUSED_TYPES
from services.message_queue.browser import MAX_BULK_IDS, MESSAGE_STATES
from services.message_queue.fields import (
    MAX_ACK_TIMEOUT,
    MAX_ATTEMPTS,
    MAX_NAME_BYTES,
    checked_text,
)

MAX_OTHER_BYTES = 64 * 1024
"""Bytes of a body besides its payload."""
MAX_RESUMED_TYPES = 100  # as many as could be paused in release 0.2
MAX_TYPES_BYTES = 256 * 1024  # of a list of types, escaped
MAX_BATCH_BYTES = 2 * 1024 * 1024  # of new messages, with at most 512 KiB of payloads
MAX_SELECTION_BYTES = 4 * 1024 * 1024  # of ids or whole messages
MAX_IMPORT_BYTES = 16 * 1024 * 1024
MIN_TIMEOUT = 0.001  # seconds
MESSAGE_ID_PATTERN = "^[A-Za-z0-9_.:@-]{1,128}$"
UNCHANGED: Any = None
JsonSchema = dict[str, Any]


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
        one_message = settings().queue_max_payload_bytes + MAX_OTHER_BYTES
        return await read_body(request, max(MAX_BATCH_BYTES, one_message), field="body")


class LinesBody(Body):
    """A dependency that returns the bytes of a body of JSON lines, which a form may contain as a file."""

    media_type = "application/x-ndjson"
    form: ClassVar = {"type": "object", "required": ["file"], "properties": {"file": {"type": "string"}}}
    other_contents: ClassVar = {"multipart/form-data": {"schema": form}}

    def __init__(self) -> None:
        super().__init__(str)

    async def __call__(self, request: Request) -> bytes:
        body = await read_body(request, MAX_IMPORT_BYTES, field="body")
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


# Members of bodies


def _largest_priority(schema: JsonSchema) -> None:
    schema["maximum"] = settings().max_priority_levels - 1


def _require_token(schema: JsonSchema) -> None:
    if settings().queue_require_lock_token:
        schema["required"] = [*schema.get("required", ()), "lock_token"]


MessageType = Annotated[
    str, Field(min_length=1, max_length=MAX_NAME_BYTES, description="It has no control characters.")
]
MessagePriority = Annotated[
    int, Field(ge=0, json_schema_extra=_largest_priority, description="A higher one is delivered first.")
]
AckTimeout = Annotated[
    float | None,
    Field(ge=MIN_TIMEOUT, le=MAX_ACK_TIMEOUT, description="Seconds to the deadline of an acknowledgement."),
]
MaxAttempts = Annotated[int | None, Field(ge=1, le=MAX_ATTEMPTS, description="Deliveries before it is dead-lettered.")]
LockToken = Annotated[
    str,
    Field(
        min_length=1,
        max_length=MAX_NAME_BYTES,
        description="The `lock_token` with which the message was delivered.",
    ),
]


class MessageChange(BaseModel):
    """The members of a message to change."""

    model_config = ConfigDict(extra="forbid")

    type: MessageType = UNCHANGED
    payload: Payload = UNCHANGED
    priority: MessagePriority = UNCHANGED
    ackTimeout: AckTimeout = None
    maxAttempts: MaxAttempts = None


class NewMessageBody(MessageChange):
    """A message to be added."""

    type: MessageType
    priority: MessagePriority = 0
    id: Annotated[str, Field(pattern=MESSAGE_ID_PATTERN)] | None = Field(
        default=None, description="Makes repeated requests harmless. Not `.` or `..`, which URLs cannot contain."
    )


class _LockedMessage(BaseModel):
    """Other members are ignored: consumers send the whole message."""

    model_config = ConfigDict(json_schema_extra=_require_token)

    lock_token: LockToken | None = None


class AckBody(_LockedMessage):
    """A message to acknowledge. Other members are ignored: consumers send the whole message."""

    id: Annotated[str, Field(min_length=1, max_length=MAX_NAME_BYTES)]


class NackBody(_LockedMessage):
    """A delivery that failed."""

    errorReason: str | None = Field(default=None, description="Why it failed; its first 4,096 bytes are kept.")


class TouchBody(_LockedMessage):
    """A new deadline."""

    extend_seconds: float | None = Field(
        default=None,
        ge=MIN_TIMEOUT,
        le=MAX_ACK_TIMEOUT,
        description="Seconds from now; the message's timeout without it.",
    )


def _ids_of(field: str) -> Callable[[Any], list[str]]:
    """Return a validator of a list of message ids or whole messages; its errors name the element."""

    def checked(given: Any) -> list[str]:
        if not isinstance(given, list) or len(given) > MAX_BULK_IDS:
            raise InvalidMessage(field, f"a list of at most {MAX_BULK_IDS} ids")
        return [_id(one, f"{field}[{at}]") for at, one in enumerate(given)]

    return checked


def _id(given: Any, field: str) -> str:
    return checked_text(given.get("id"), f"{field}.id") if isinstance(given, dict) else checked_text(given, field)


def checked_reason(given: Any) -> str:
    """Return the reason of a failure. Raises `InvalidMessage`."""
    if not isinstance(given, str):
        raise InvalidMessage("errorReason", "a string")
    return given


ID_SCHEMA: JsonSchema = {"type": "string", "minLength": 1, "maxLength": MAX_NAME_BYTES}
WHOLE_SCHEMA: JsonSchema = {"type": "object", "required": ["id"], "properties": {"id": ID_SCHEMA}}
Reason = Annotated[Any, AfterValidator(checked_reason), WithJsonSchema({"type": "string"})]
"""A text that may contain unpaired surrogates."""
MessageIds = Annotated[
    list[str],
    BeforeValidator(_ids_of("messageIds")),
    WithJsonSchema({"type": "array", "maxItems": MAX_BULK_IDS, "items": ID_SCHEMA}),
]
Messages = Annotated[
    list[str],
    BeforeValidator(_ids_of("messages")),
    WithJsonSchema({"type": "array", "maxItems": MAX_BULK_IDS, "items": {"anyOf": [ID_SCHEMA, WHOLE_SCHEMA]}}),
]


class MessagesToDelete(Members):
    """Which messages to delete."""

    messageIds: MessageIds


class Move(Members):
    """Which messages to move, by id or as whole messages, and to which queue."""

    messages: Messages
    toQueue: Literal["main", "dead", "acknowledged", "archived"]
    fromQueue: MessageState | None = Field(
        default=None, description="Only messages that are there; anywhere without it."
    )
    errorReason: Reason | None = Field(default=None, description="Kept with dead letters.")


class TypesToResume(Members):
    """Types of messages."""

    types: list[MessageType] = Field(min_length=1, max_length=MAX_RESUMED_TYPES)


class TypesToPause(Members):
    """Types of messages, and why they are paused."""

    types: list[MessageType] = Field(min_length=1, max_length=MAX_PAUSED_TYPES)
    reason: str | None = PAUSE_REASON


class MessageFilter(Members):
    """The conditions that messages must match."""

    type: FilterType | None = None
    priority: WholeFilter | None = None
    attempts: WholeFilter | None = None
    startDate: MomentOf = Field(default=None, description="Added at this time or later.")
    endDate: MomentOf = Field(default=None, description="Added at this time or earlier.")
    search: FilterText | None = None

    def to_filter(self) -> Filter:
        return Filter(
            type=self.type,
            priority=self.priority,
            attempts=self.attempts,
            since=self.startDate,
            until=self.endDate,
            search=self.search,
        )


class Replay(Members):
    """Which dead letters to replay: either `messageIds` or `filter`."""

    messageIds: MessageIds | None = None
    filter: MessageFilter | None = None
