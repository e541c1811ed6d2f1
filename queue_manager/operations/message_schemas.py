"""Response bodies of messages. Times are seconds since 1970, as clients of the older services expect."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from queue_manager.core.json_types import Count, Number, optional
from queue_manager.operations.schemas import IsComplete, NextCursor, UndoId
from queue_manager.pauses import PauseState
from services.message_queue import MessageState
from services.message_queue.admin import MessageOutcome
from services.message_queue.browser import KeptState
from services.message_queue.messages import HistoryEvent

Sentence = Annotated[str, Field(description="A human-readable message.")]
Payload = Annotated[Any, Field(description="Any JSON value. Consumers get it byte for byte.")]
QueueServerTime = Annotated[Number, Field(description="The time of the queue's server.")]


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
    attempt_count: int = Field(description="The number of deliveries, including this one.")
    lock_token: str | None = optional("Proves to `ack`, `nack` and `touch` that the consumer holds the message.")
    consumer_id: str | None = optional("The name that the consumer gave; null if it gave none.")
    dequeued_at: Number | None = optional("When it was delivered or last touched: its ack timeout counts from here.")
    processing_started_at: Number | None = optional("When it was delivered.")
    deadline_at: Number | None = optional("When it must be acknowledged.")
    custom_ack_timeout: Number | None = optional("Its own ack timeout, in seconds.")
    custom_max_attempts: int | None = optional("Its own maximum number of deliveries.")
    failed_at: Number | None = optional("When it was dead-lettered.")
    acknowledged_at: Number | None = optional("When it was acknowledged.")
    archived_at: Number | None = optional("When it was archived.")
    last_error: str | None = optional("Why its last delivery failed.")
    history: list[EarlierLife] | None = optional("The failures before each replay of the message.")
    undecodable: bool | None = optional("The entry is not a message; `payload` is its text.")
    stream_id: str = Field(alias="_stream_id")
    stream_name: str = Field(alias="_stream_name")


class MessageWithHistory(DeliveredMessage):
    """A message in any state, and what happened to it since its first delivery."""

    state: MessageState
    events: list[HistoryEvent] = Field(description="Oldest first; only the newest 2,000 bytes are kept.")
    server_time: QueueServerTime


class ChangedMessage(BaseModel):
    """The message that was added or changed."""

    message: Sentence
    id: str


class _Done(BaseModel):
    success: Literal[True] = Field(default=True, description="Always true, for clients of the older service.")
    message: Sentence


class EditedMessage(_Done):
    """The message that an operator changed or deleted."""

    id: str
    messageId: str = Field(description="The same, for clients of the older service.")
    queueType: MessageState | None = Field(description="The queue in the request.")


class DeletedMessage(EditedMessage):
    """The message that an operator deleted."""

    undo: UndoId


class UpdatedMessage(EditedMessage):
    """The message that an operator changed, as it is now."""

    data: DeliveredMessage | None = Field(description="The message; null if it was deleted meanwhile.")


class AddedBatch(BaseModel):
    """How many messages were accepted."""

    message: Sentence
    ids: list[str] = Field(
        description="The ids of the messages, in their order. A message whose id exists is not added again."
    )


class Nacked(ChangedMessage):
    """The result of a nack."""

    requeued: bool = Field(description="False if the message was dead-lettered.")


class Touched(BaseModel):
    """The new deadline."""

    message: Sentence
    new_timeout_at: Number
    extended_by: Number = Field(description="Seconds.")
    lock_token: str | None


class MessageResult(BaseModel):
    """The result for one message."""

    id: str
    result: MessageOutcome


class _Changed(_Done):
    failed: int = Field(description="The number of messages that were not found or could not be changed.")


class DeletedMessages(_Changed):
    """The results of a deletion."""

    deleted: int
    deletedCount: int = Field(description="The same, for clients of the older service.")
    results: list[MessageResult]
    undo: UndoId


class _Moved(_Changed):
    moved: int
    movedCount: int = Field(description="The same, for clients of the older service.")


class Moved(_Moved):
    """The results of a move."""

    results: list[MessageResult]


class Replayed(_Moved):
    """The results of a replay."""

    results: list[MessageResult] | None = optional("Omitted if there are more than 1,000.")
    is_complete: bool | None = optional("For a filter: false if the time limit was reached. Repeat the request then.")


class DeletedRange(BaseModel):
    """How many messages of a date range were deleted, or would be."""

    message: Sentence
    deletedCount: int
    by_queue: dict[KeptState, int]
    is_preview: bool = Field(description="Whether this was a preview, in which nothing was deleted.")
    is_complete: IsComplete
    undo: UndoId


class Imported(BaseModel):
    """How many messages were imported."""

    message: Sentence
    count: int
    known: int = Field(description="The number of messages that were not added, because their ids exist.")
    undecodable: int = Field(
        description="The number of messages that were not added, because they were exported as undecodable."
    )


class Cleared(_Done):
    """How many messages were deleted."""

    queueType: MessageState | None = Field(description="The queue; null for all queues.")
    cleared: int
    is_complete: IsComplete
    undo: UndoId


class Pagination(BaseModel):
    """The position of a page in its list."""

    page: int
    limit: int
    total: int = Field(description="The number of messages in the list; with a filter, of those found so far.")
    total_pages: int
    totalPages: int = Field(description="The same, for clients of the older service.")
    cursor: NextCursor
    is_partial: bool = Field(description="Whether a part of the list was not searched.")
    searched: int | None = optional("With a filter: the number of messages that were read for this page.")


class MessageList(BaseModel):
    """A page of messages."""

    messages: list[DeliveredMessage]
    pagination: Pagination
    server_time: QueueServerTime


@dataclass(frozen=True, kw_only=True)
class MessageCount(Count):
    """How many messages match."""

    server_time: QueueServerTime


class QueueLength(BaseModel):
    """The number of messages in one state, as the older service names it."""

    name: str = Field(description="The stream, or `processing_pending`.")
    length: int
    messages: list[DeliveredMessage] = Field(default=[], description="The newest 100, or 2 MiB, if `include_messages`.")


class AcknowledgedLength(QueueLength):
    """The number of acknowledged messages, as the older service names it."""

    total: int = Field(description="Ever; `length` counts those that are kept.")


class QueueTotals(BaseModel):
    """Totals, as the older service names them."""

    totalProcessed: int = Field(description="The same as `totalAcknowledged`.")
    totalFailed: int = Field(description="Messages that sweeps have dead-lettered.")
    totalAcknowledged: int


class MessageQueueStatus(BaseModel):
    """The number of messages in each state; also by the names of the older service."""

    mainQueue: QueueLength
    processingQueue: QueueLength
    deadLetterQueue: QueueLength
    acknowledgedQueue: AcknowledgedLength
    archivedQueue: QueueLength
    metadata: QueueTotals
    availableTypes: list[str] = Field(default=[], description="The types of these messages.")
    main: int
    processing: int
    dead: int
    acknowledged: int
    archived: int
    priorities: dict[str, int] = Field(description="Waiting messages by priority.")
    total_acknowledged: int = Field(description="Ever; `acknowledged` counts those that are kept.")
    overdue: int = Field(description="Messages in processing whose deadline has passed.")
    first_deadline_at: Number | None
    pauses: Mapping[str, PauseState] = Field(description="By type: since when, by whom and why it is paused.")
    server_time: QueueServerTime


class MessagePauses(BaseModel):
    """The types that are paused now."""

    pauses: Mapping[str, PauseState] = Field(description="By type: since when, by whom and why.")


class QueueMetrics(BaseModel):
    """The number of messages in each state, by the names of the older services."""

    main_queue_size: int
    processing_queue_size: int
    dead_letter_queue_size: int
    acknowledged_queue_size: int
    archived_queue_size: int
    total_acknowledged: int
    overdue: int
    priority_levels: int
    details: dict[str, int] = Field(description="Waiting messages by priority, as `priority_<n>_queued`.")
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
