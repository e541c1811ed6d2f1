"""Messages over HTTP."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, Literal, TypeAlias, TypeVar
from uuid import uuid4

import msgspec

from queue_manager.client.errors import ClientError
from queue_manager.client.exchanges import (
    AsyncResource,
    EventPosition,
    Exchange,
    Page,
    Resource,
    SyncResource,
    event_stream,
    operation,
    pages,
)
from queue_manager.client.received_messages import (
    AsyncReceivedMessage,
    Received,
    ReceivedMessage,
    StoredMessage,
    message_path,
)

POLL_TIMEOUT = 30.0  # seconds that one request of `receive` waits: proxies often give up after 60
NO_MESSAGE = "Message not found"

StateName: TypeAlias = Literal["main", "processing", "dead", "acknowledged", "archived"]


def _new_id() -> str:
    return uuid4().hex


@dataclass(frozen=True, kw_only=True)
class OutgoingMessage:
    """A message of a batch. `None` stands for the queue's default; `ack_timeout` is in seconds."""

    type: str
    payload: Any = None
    priority: int = 0
    ack_timeout: float | None = None
    max_attempts: int | None = None
    id: str = field(default_factory=_new_id)

    def body(self) -> dict[str, Any]:
        return {
            "type": self.type,
            "payload": self.payload,
            "priority": self.priority,
            "ackTimeout": self.ack_timeout,
            "maxAttempts": self.max_attempts,
            "id": self.id,
        }


class MessageCounts(msgspec.Struct, frozen=True, kw_only=True):
    """The number of messages in each state."""

    main: int
    processing: int
    dead: int
    acknowledged: int
    archived: int
    overdue: int
    """Those in processing whose deadline has passed."""


class ReplayCount(msgspec.Struct, frozen=True, kw_only=True):
    """How many dead letters were replayed, and how many were not found."""

    moved: int
    failed: int


class _Pagination(msgspec.Struct):
    cursor: str | None


class _MessageList(msgspec.Struct):
    messages: list[StoredMessage]
    pagination: _Pagination


ReceivedT = TypeVar("ReceivedT", bound=Received)


class MessageOperations(Resource, Generic[ReceivedT]):
    """Adds, receives and lists messages."""

    received: type[ReceivedT]

    @operation
    def enqueue(
        self,
        type: str,
        payload: Any = None,
        *,
        priority: int = 0,
        ack_timeout: float | None = None,
        max_attempts: int | None = None,
        id: str | None = None,
    ) -> Exchange[str]:
        """Add a message and return its id.

        Each message has an id, by default a new one. The request is repeated after an error: while the message, or its
        acknowledgement among the last 100, is kept, it is not added again. Choose the id yourself to make the call of
        your program repeatable, too.
        """
        message = OutgoingMessage(
            type=type,
            payload=payload,
            priority=priority,
            ack_timeout=ack_timeout,
            max_attempts=max_attempts,
            id=_new_id() if id is None else id,
        )
        yield from self._exchange("POST", "/api/queue/message", object, body=message.body(), is_repeatable=True)
        return message.id

    @operation
    def enqueue_batch(self, messages: Iterable[OutgoingMessage]) -> Exchange[Sequence[str]]:
        """Add up to 500 messages with up to 512 KiB of payloads, all or none; return their ids."""
        body = [_checked(message).body() for message in messages]
        yield from self._exchange("POST", "/api/queue/batch", object, body=body, is_repeatable=True)
        return [message["id"] for message in body]

    @operation
    def dequeue(
        self,
        timeout: float = 0,
        *,
        type: str | None = None,
        ack_timeout: float | None = None,
        consumer_id: str | None = None,
    ) -> Exchange[ReceivedT | None]:
        """Lock and return the next message; wait up to `timeout` seconds (at most 55), then return `None`.

        Args:
            type: only messages of this type.
            ack_timeout: seconds to the deadline, for this delivery, and for later ones that name none if the message
                has none of its own.
            consumer_id: shown while the message is held.
        """
        if type == "":  # an empty parameter means any type
            raise ValueError("type: must be None or the type of messages, not an empty string")
        params = {"timeout": timeout, "type": type, "ackTimeout": ack_timeout, "consumerId": consumer_id}
        try:
            message = yield from self._exchange("GET", "/api/queue/message", StoredMessage, params=params, wait=timeout)
        except ClientError as error:
            if error.message != NO_MESSAGE:
                raise
            return None
        return self.received(self._http, self._retry_for, message, ack_timeout)

    @pages
    def receive(
        self,
        cursor: str | None,
        *,
        type: str | None = None,
        ack_timeout: float | None = None,
        consumer_id: str | None = None,
    ) -> Exchange[Page[ReceivedT]]:
        """Iterate over messages without end: wait for each and lock it. The arguments are those of `dequeue`.

        The next message is requested when the loop asks for it.
        """
        message = yield from MessageOperations.dequeue(
            self, POLL_TIMEOUT, type=type, ack_timeout=ack_timeout, consumer_id=consumer_id
        )
        return Page([] if message is None else [message], cursor="")

    @operation
    def get(self, id: str) -> Exchange[StoredMessage]:
        """Return a message in any state, with its history, without receiving it."""
        return (yield from self._exchange("GET", message_path(id), StoredMessage))

    @pages
    def list(
        self,
        cursor: str | None,
        state: StateName,
        *,
        type: str | None = None,
        priority: int | None = None,
        attempts: int | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        search: str | None = None,
        order: Literal["asc", "desc"] = "desc",
        page_size: int = 50,
    ) -> Exchange[Page[StoredMessage]]:
        """Iterate over the messages in a state, by default the newest first. `since` and `until`: when it was added.

        Raises: ValueError: `since` or `until` has no time zone.
        """
        params = {
            "filterType": type,
            "filterPriority": priority,
            "filterAttempts": attempts,
            "startDate": _moment("since", since),
            "endDate": _moment("until", until),
            "search": search,
            "sortOrder": order,
            "limit": page_size,
            "cursor": cursor,
        }
        answer = yield from self._exchange("GET", f"/api/queue/{state}/messages", _MessageList, params=params)
        return Page(answer.messages, answer.pagination.cursor)

    @operation
    def status(self) -> Exchange[MessageCounts]:
        """Return the number of messages in each state."""
        params = {"include_messages": "false"}
        return (yield from self._exchange("GET", "/api/queue/status", MessageCounts, params=params))

    @operation
    def replay(self, ids: Sequence[str]) -> Exchange[ReplayCount]:
        """Move dead letters back to the queue, and reset their attempts."""
        return (yield from self._exchange("POST", "/api/queue/replay", ReplayCount, body={"messageIds": ids}))

    @operation
    def pause(self, types: Sequence[str], reason: str | None = None) -> Exchange[None]:
        """Deliver no messages of these types; those that consumers hold are not affected."""
        body = {"types": types, "reason": reason}
        yield from self._exchange("POST", "/api/queue/pause", object, body=body, is_repeatable=True)

    @operation
    def resume(self, types: Sequence[str]) -> Exchange[None]:
        """Deliver messages of these types again, in the order in which they were added."""
        yield from self._exchange("POST", "/api/queue/resume", object, body={"types": types}, is_repeatable=True)

    @event_stream
    def events(self, last_event_id: str | None = None) -> EventPosition:
        """Iterate over `queue-update` events."""
        return EventPosition("/api/queue/events", last_event_id, self._retry_for)


def _checked(message: object) -> OutgoingMessage:
    if not isinstance(message, OutgoingMessage):
        raise TypeError(f"messages: must be instances of OutgoingMessage, not {type(message).__name__}")
    return message


def _moment(name: str, moment: datetime | None) -> str | None:
    if moment is not None and moment.tzinfo is None:  # the server would take a local time for UTC
        raise ValueError(f"{name}: must be a datetime with a time zone, such as datetime.now(UTC) - timedelta(hours=1)")
    return None if moment is None else moment.isoformat()


class MessageClient(MessageOperations[ReceivedMessage], SyncResource):
    """`Client.messages`."""

    received = ReceivedMessage


class AsyncMessageClient(MessageOperations[AsyncReceivedMessage], AsyncResource):
    """`AsyncClient.messages`."""

    received = AsyncReceivedMessage
