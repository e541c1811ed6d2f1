"""Request and response bodies of messages. Times are seconds since 1970, as clients of the older services expect.

The queue validates new messages and tokens, whose payloads are never parsed; the models only describe those bodies.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from queue_manager.core.settings import settings
from queue_manager.web.http.requests import Members
from queue_manager.web.http.responses import NextCursor, Number, optional
from queue_manager.web.routes.messages.requests import FilterText, FilterType, MomentOf, WholeFilter
from services.message_queue import Filter, InvalidMessage, MessageState
from services.message_queue.admin import MessageOutcome
from services.message_queue.browser import MAX_BULK_IDS
from services.message_queue.messages import MAX_ACK_TIMEOUT, MAX_ATTEMPTS, MAX_ID_BYTES, MAX_TYPE_BYTES, checked_id

MIN_TIMEOUT = 0.001  # seconds
MESSAGE_ID_PATTERN = "^[A-Za-z0-9_.:@-]{1,128}$"
UNCHANGED: Any = None
JsonSchema = dict[str, Any]


def _largest_priority(schema: JsonSchema) -> None:
    schema["maximum"] = settings().max_priority_levels - 1


def _require_token(schema: JsonSchema) -> None:
    if settings().queue_require_lock_token:
        schema["required"] = [*schema.get("required", ()), "lock_token"]


MessageType = Annotated[
    str, Field(min_length=1, max_length=MAX_TYPE_BYTES, description="It has no control characters.")
]
Payload = Annotated[Any, Field(description="Any JSON value. Consumers get it byte for byte.")]
MessagePriority = Annotated[
    int, Field(ge=0, json_schema_extra=_largest_priority, description="A higher one is delivered first.")
]
AckTimeout = Annotated[
    float | None,
    Field(ge=MIN_TIMEOUT, le=MAX_ACK_TIMEOUT, description="Seconds to the deadline of an acknowledgement."),
]
MaxAttempts = Annotated[int | None, Field(ge=1, le=MAX_ATTEMPTS, description="Deliveries before it is dead-lettered.")]
LockToken = Annotated[str, Field(description="The `lock_token` with which the message was delivered.")]
QueueServerTime = Annotated[Number, Field(description="The time of the queue's server.")]


class NewMessageBody(BaseModel):
    """A message to be added."""

    model_config = ConfigDict(extra="forbid")

    type: MessageType
    payload: Payload = None
    priority: MessagePriority = 0
    ackTimeout: AckTimeout = None
    maxAttempts: MaxAttempts = None
    id: Annotated[str, Field(pattern=MESSAGE_ID_PATTERN)] | None = Field(
        default=None, description="Makes repeated requests harmless."
    )


class MessageChange(BaseModel):
    """The members of a message to change."""

    model_config = ConfigDict(extra="forbid")

    type: MessageType = UNCHANGED
    payload: Payload = UNCHANGED
    priority: MessagePriority = UNCHANGED
    ackTimeout: AckTimeout = None
    maxAttempts: MaxAttempts = None


class _LockedMessage(BaseModel):
    """Other members are ignored: consumers send the whole message."""

    model_config = ConfigDict(json_schema_extra=_require_token)

    lock_token: LockToken | None = None


class AckBody(_LockedMessage):
    """A message to acknowledge. Other members are ignored: consumers send the whole message."""

    id: Annotated[str, Field(min_length=1, max_length=MAX_ID_BYTES)]


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
    return checked_id(given.get("id"), f"{field}.id") if isinstance(given, dict) else checked_id(given, field)


def _reason(given: Any) -> str:
    if not isinstance(given, str):
        raise InvalidMessage("errorReason", "a text")
    return given


ID_SCHEMA: JsonSchema = {"type": "string", "minLength": 1, "maxLength": MAX_ID_BYTES}
WHOLE_SCHEMA: JsonSchema = {"type": "object", "required": ["id"], "properties": {"id": ID_SCHEMA}}
Reason = Annotated[Any, AfterValidator(_reason), WithJsonSchema({"type": "string"})]
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


# Responses


class EarlierLife(BaseModel):
    """How an earlier life of a replayed message ended."""

    model_config = ConfigDict(extra="allow")

    failed_at: Number | None = None
    attempt_count: int | None = None
    last_error: str | None = None


class DeliveredMessage(BaseModel):
    """A message. Members that do not apply are left out."""

    model_config = ConfigDict(extra="allow")

    id: str
    type: str
    payload: Payload
    priority: int
    created_at: Number
    attempt_count: int = Field(description="How many times it was delivered, this time included.")
    lock_token: str | None = optional("Proves to `ack`, `nack` and `touch` that the consumer holds the message.")
    consumer_id: str | None = optional("Who holds it, as the consumer named itself; null if it did not.")
    dequeued_at: Number | None = optional("When it was delivered.")
    processing_started_at: Number | None = optional("The same.")
    deadline_at: Number | None = optional("When it must be acknowledged.")
    custom_ack_timeout: Number | None = optional("Seconds: its own timeout.")
    custom_max_attempts: int | None = optional("Its own limit of deliveries.")
    failed_at: Number | None = optional("When it was dead-lettered.")
    acknowledged_at: Number | None = optional("When it was acknowledged.")
    archived_at: Number | None = optional("When it was archived.")
    last_error: str | None = optional("Why its last delivery failed.")
    history: list[EarlierLife] | None = optional("Earlier lives of a message that was replayed.")
    undecodable: bool | None = optional("The entry is not a message; `payload` is its text.")
    stream_id: str = Field(alias="_stream_id")
    stream_name: str = Field(alias="_stream_name")


class ChangedMessage(BaseModel):
    """The message that was added or changed."""

    message: str = Field(description="A sentence for people.")
    id: str


class AddedBatch(BaseModel):
    """How many messages were added."""

    message: str = Field(description="A sentence for people.")


class Nacked(ChangedMessage):
    """The result of a nack."""

    requeued: bool = Field(description="False if it is a dead letter.")


class Touched(BaseModel):
    """The new deadline."""

    message: str = Field(description="A sentence for people.")
    new_timeout_at: Number
    extended_by: Number = Field(description="Seconds.")
    lock_token: str | None


class MessageResult(BaseModel):
    """The result for one message."""

    id: str
    result: MessageOutcome


class _Changed(BaseModel):
    success: Literal[True] = Field(default=True, description="Always true, for clients of the older service.")
    message: str = Field(description="A sentence for people.")
    failed: int = Field(description="How many messages were not found or could not be changed.")


class DeletedMessages(_Changed):
    """The results of a deletion."""

    deleted: int
    deletedCount: int = Field(description="The same, for clients of the older service.")
    results: list[MessageResult]


class _Moved(_Changed):
    moved: int
    movedCount: int = Field(description="The same, for clients of the older service.")


class Moved(_Moved):
    """The results of a move."""

    results: list[MessageResult]


class Replayed(_Moved):
    """The results of a replay."""

    results: list[MessageResult] | None = optional("Left out if they are more than 1,000.")
    is_complete: bool | None = optional("For a filter: false if the time was not enough for all. Repeat it then.")


class Cleared(BaseModel):
    """How many messages were deleted."""

    message: str = Field(description="A sentence for people.")
    cleared: int
    is_complete: bool = Field(description="False if the time was not enough for all. Repeat it then.")


class Pagination(BaseModel):
    """The position of a page in its list."""

    page: int
    limit: int
    total: int = Field(description="Messages in the list; with a filter, those that were found so far.")
    total_pages: int
    totalPages: int = Field(description="The same, for clients of the older service.")
    cursor: NextCursor
    is_partial: bool = Field(description="Whether there is more than was searched.")


class MessageList(BaseModel):
    """A page of messages."""

    messages: list[DeliveredMessage]
    pagination: Pagination
    server_time: QueueServerTime


class MessageCount(BaseModel):
    """How many messages match."""

    count: int
    is_complete: bool = Field(description="False if counting took too long: there are that many or more.")
    server_time: QueueServerTime


class QueueLength(BaseModel):
    """The number of messages in one state, as the older service names it."""

    name: str = Field(description="The stream, or `processing_pending`.")
    length: int
    messages: list[DeliveredMessage] = Field(default=[], description="Always empty: read the list.")


class AcknowledgedLength(QueueLength):
    """The number of acknowledged messages, as the older service names it."""

    total: int = Field(description="Ever; `length` counts those that are kept.")


class QueueTotals(BaseModel):
    """Totals, as the older service names them."""

    totalProcessed: int = Field(description="The same as `totalAcknowledged`.")
    totalFailed: int = Field(description="Dead letters of passed deadlines.")
    totalAcknowledged: int


class LengthsByOlderNames(BaseModel):
    """The numbers of messages, as the older service names them."""

    mainQueue: QueueLength
    processingQueue: QueueLength
    deadLetterQueue: QueueLength
    acknowledgedQueue: AcknowledgedLength
    archivedQueue: QueueLength
    metadata: QueueTotals
    availableTypes: list[str] = Field(default=[], description="Always empty.")


class MessageQueueStatus(LengthsByOlderNames):
    """The number of messages in each state; also by the names of the older service."""

    main: int
    processing: int
    dead: int
    acknowledged: int
    archived: int
    priorities: dict[str, int] = Field(description="Waiting messages by priority.")
    total_acknowledged: int = Field(description="Ever; `acknowledged` counts those that are kept.")
    overdue: int = Field(description="Messages in processing whose deadline has passed.")
    first_deadline_at: Number | None
    server_time: QueueServerTime


class QueueMetrics(BaseModel):
    """The number of messages in each state, by the names of the older services."""

    main_queue_size: int
    processing_queue_size: int
    dead_letter_queue_size: int
    acknowledged_queue_size: int
    archived_queue_size: int
    total_acknowledged: int
    overdue: int
    server_time: QueueServerTime


class QueueConfig(BaseModel):
    """The settings of the queue."""

    ack_timeout_seconds: Number
    max_attempts: int
    max_priority_levels: int
    max_payload_bytes: int
    require_lock_token: bool
    overdue_check_interval_ms: int
    requeue_batch_size: int


class QueueHealth(BaseModel):
    """The queue's server answers."""

    status: Literal["OK"] = "OK"
