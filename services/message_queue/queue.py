"""The message queue for producers and consumers: enqueue, dequeue, ack, nack and touch.

Guarantee: every operation is one atomic script and one round trip. A message is waiting, locked by one consumer until
its deadline, dead-lettered or acknowledged, and never in two states. Times are those of the queue's server.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from datetime import timedelta
from threading import Event, Thread
from types import TracebackType
from typing import Any
from uuid import uuid4

from queue_manager.core.clock import milliseconds
from queue_manager.core.errors import reason
from queue_manager.core.log import get_logger
from services.message_queue.arrivals import ArrivalNotifier
from services.message_queue.errors import (
    InvalidMessage,
    LockLost,
    MessageTooLarge,
    QueueUnavailable,
    SearchIncomplete,
    UnknownMessage,
)
from services.message_queue.messages import (
    MAX_CONSUMER_ID_BYTES,
    MAX_TYPE_BYTES,
    Message,
    NewMessage,
    QueueOptions,
    checked_id,
    checked_number,
    checked_text,
    checked_timeout,
    truncate_reason,
)
from services.message_queue.scripts import Scripts

MAX_POLL_TIMEOUT = 60
"""Maximum seconds that a consumer may wait for a message."""
SEARCH_BUDGET = 0.25
"""Seconds that one dequeue searches messages of other producers; the next one continues."""
MAX_ENQUEUED_MESSAGES = 1_000
MAX_ENQUEUED_BYTES = 1024 * 1024
UNDECODABLE_REASON = "Undecodable message"
DEFAULT_NACK_REASON = "Negative acknowledgement"

HEARTBEATS_PER_DEADLINE = 3  # touches per ack timeout, so that one may fail

log = get_logger("QM/message-queue")


@dataclass(frozen=True, kw_only=True)
class EnqueueResult:
    """The message's id, and whether it is new; a message whose id exists is not added again."""

    id: str
    is_new: bool


@dataclass(frozen=True, kw_only=True)
class TouchResult:
    """The new deadline in Unix seconds by the server's clock, and its distance from now."""

    deadline_at: float
    extended_by: timedelta


class MessageQueue:
    """One queue on one server. Thread-safe.

    Args:
        schedule_sweep: called with the delay of a sweep that is needed before the next periodic one.
    """

    def __init__(
        self,
        scripts: Scripts,
        arrivals: ArrivalNotifier,
        options: QueueOptions,
        *,
        schedule_sweep: Callable[[timedelta], object] | None = None,
    ) -> None:
        self.scripts, self.arrivals, self.options = scripts, arrivals, options
        self._is_token_required = "1" if options.is_token_required else "0"
        self._sweep_period = milliseconds(options.sweep_period) if schedule_sweep else 0
        self._schedule_sweep = schedule_sweep

    # For producers

    def enqueue(
        self,
        type: str,
        payload: Any = None,
        priority: int = 0,
        ack_timeout: float | None = None,
        max_attempts: int | None = None,
        *,
        id: str | None = None,
    ) -> str:
        """Enqueue a message and return its id. A message whose `id` exists is not enqueued again.

        Raises:
            InvalidMessage, MessageTooLarge: names the field; nothing was added.
            QueueFull, QueueUnavailable: the latter leaves open whether it was added.
        """
        message = NewMessage(
            type=type, payload=payload, priority=priority, ack_timeout=ack_timeout, max_attempts=max_attempts, id=id
        )
        return self.enqueue_batch([message])[0].id

    def enqueue_batch(self, messages: Sequence[NewMessage | Mapping[str, Any]]) -> list[EnqueueResult]:
        """Add all messages or, if one is not acceptable, none. Raises like `enqueue`.

        At most 1,000 messages with 1 MiB of payloads, so that the script takes less than 10 ms; a single message may be
        larger.

        A message is a `NewMessage` or a mapping such as `{"type": "send_mail", "payload": …, "ack_timeout": 60}`.
        """
        new = [message if isinstance(message, NewMessage) else NewMessage.from_members(message) for message in messages]
        checked = [message.arguments(self.options) for message in new]
        if not checked:
            return []
        if len(checked) > MAX_ENQUEUED_MESSAGES:
            raise InvalidMessage("body", f"a list of at most {MAX_ENQUEUED_MESSAGES} messages")
        if len(checked) > 1 and sum(len(arguments[-1].encode()) for _, arguments in checked) > MAX_ENQUEUED_BYTES:
            raise MessageTooLarge("body", f"a list of messages with at most {MAX_ENQUEUED_BYTES} bytes of payloads")
        answers = self.scripts.run("enqueue", *(argument for _, arguments in checked for argument in arguments))
        return [EnqueueResult(id=id, is_new=bool(added)) for (id, _), added in zip(checked, answers, strict=True)]

    # For consumers

    def dequeue(
        self,
        timeout: float = 0,
        ack_timeout: float | None = None,
        type: str | None = None,
        consumer_id: str | None = None,
    ) -> Message | None:
        """Return the next message and lock it; wait up to `timeout` seconds (at most 60), then return `None`.

        The highest priority comes first, then the oldest. `ack_timeout` (seconds) applies to this delivery only.

        Raises: InvalidMessage, QueueUnavailable.
        """
        end = time.monotonic() + checked_number(timeout, "timeout", minimum=0, maximum=MAX_POLL_TIMEOUT)
        options: dict[str, Any] = {"ack_timeout": ack_timeout, "type": type, "consumer_id": consumer_id}
        if not timeout:
            return self.take(**options)
        while True:
            arrival = self.arrivals.subscribe(type)
            is_used = False
            try:
                if (message := self.search(**options)) is not None:
                    return message
                arrival.result(timeout=max(end - time.monotonic(), 0))
                is_used = True
            except SearchIncomplete:
                if time.monotonic() >= end:
                    return None
            except FutureTimeout:
                return None
            finally:
                if not is_used:
                    self.arrivals.unsubscribe(arrival)

    def take(
        self, *, ack_timeout: float | None = None, type: str | None = None, consumer_id: str | None = None
    ) -> Message | None:
        """Return the next message and lock it, without waiting. Raises like `dequeue`."""
        with suppress(SearchIncomplete):
            return self.search(ack_timeout=ack_timeout, type=type, consumer_id=consumer_id)
        return None

    def search(
        self, *, ack_timeout: float | None = None, type: str | None = None, consumer_id: str | None = None
    ) -> Message | None:
        """Return the next message like `take`. Raises `SearchIncomplete` if the search must be continued."""
        arguments = (
            checked_text(consumer_id, "consumerId", max_bytes=MAX_CONSUMER_ID_BYTES) if consumer_id is not None else "",
            _milliseconds(checked_timeout(ack_timeout, "ackTimeout")) if ack_timeout is not None else "",
            milliseconds(self.options.ack_timeout),
            checked_text(type, "type", max_bytes=MAX_TYPE_BYTES) if type is not None else "",
            self.options.levels,
            self._sweep_period,
            int(self.options.is_shared),
        )
        ends = time.monotonic() + SEARCH_BUDGET
        while answer := self.scripts.run("dequeue", uuid4().hex, *arguments):
            if answer == 1:  # the script reached the limit of one call
                if time.monotonic() >= ends:
                    raise SearchIncomplete
                continue
            id, data, record, planned = answer
            self._request_sweep(planned)
            message = Message.read(id, data, record)
            if message.is_decodable:
                return message
            self._dead_letter(message)
        return None

    def ack(self, id: str, lock_token: str | None = None) -> None:
        """Acknowledge the message. Raises `LockLost` if the caller does not hold the lock; nothing is written then."""
        _raise_refusal(self.scripts.run("ack", checked_id(id), _token(lock_token), self._is_token_required), id)

    def nack(self, id: str, lock_token: str | None = None, reason: str | None = None) -> bool:
        """Reject the message; return True if it is requeued, False if it is dead-lettered.

        Raises:
            UnknownMessage: there is no such message.
            LockLost: the caller does not hold the lock. In both cases nothing is written.
        """
        failure = truncate_reason(reason) if reason else DEFAULT_NACK_REASON
        arguments = (checked_id(id), _token(lock_token), self._is_token_required, failure, self.options.max_attempts)
        answer = self.scripts.run("nack", *arguments)
        _raise_refusal(answer, id)
        return bool(answer == b"REQUEUED")

    def touch(self, id: str, lock_token: str | None = None, extend_seconds: float | None = None) -> TouchResult:
        """Set the deadline to `extend_seconds` from now; default: its ack timeout. Raises like `nack`."""
        extension = (
            _milliseconds(checked_timeout(extend_seconds, "extend_seconds")) if extend_seconds is not None else ""
        )
        default = milliseconds(self.options.ack_timeout)
        answer = self.scripts.run(
            "touch", checked_id(id), _token(lock_token), self._is_token_required, extension, default, self._sweep_period
        )
        _raise_refusal(answer[0], id)
        _, deadline, extended_by, planned = answer
        self._request_sweep(planned)
        return TouchResult(deadline_at=deadline / 1000, extended_by=timedelta(milliseconds=extended_by))

    def receive(
        self,
        *,
        timeout: float = 0,
        ack_timeout: float | None = None,
        type: str | None = None,
        consumer_id: str | None = None,
    ) -> AbstractContextManager[Message | None]:
        """Dequeue a message for a `with` block: it is acked when the block ends and nacked if the block raises.

        A heartbeat extends the deadline while the block runs. The block gets `None` if there is no message.
        """
        message = self.dequeue(timeout=timeout, ack_timeout=ack_timeout, type=type, consumer_id=consumer_id)
        return Delivery(self, message, extension=ack_timeout)

    def _dead_letter(self, message: Message) -> None:
        """Dead-letter an undecodable message unchanged, unless another consumer has locked it meanwhile."""
        self.scripts.run("nack", message.id, message.lock_token or "", "1", UNDECODABLE_REASON, 0)

    def _request_sweep(self, delay_ms: int) -> None:
        if not delay_ms or self._schedule_sweep is None:
            return
        try:
            self._schedule_sweep(timedelta(milliseconds=delay_ms))
        except Exception as error:  # such as a full broker; the caller still gets the message
            log.warning("A sweep could not be scheduled; the next periodic sweep will do its work", error=reason(error))


class Delivery(AbstractContextManager[Message | None]):
    """A message in a `with` block: acked if the block succeeds, nacked if it raises; a heartbeat extends the deadline.

    A lock lost while the block runs (the process was suspended, or an operator moved the message) is logged. The
    message is then delivered to another consumer, so the block must be idempotent.
    """

    def __init__(self, queue: MessageQueue, message: Message | None, *, extension: float | None) -> None:
        self._queue, self._message, self._extension = queue, message, extension
        self._is_over = Event()
        self._heartbeat: Thread | None = None

    def __enter__(self) -> Message | None:
        if self._message is not None:
            self._heartbeat = Thread(target=self._beat, args=[self._message], name="heartbeat", daemon=True)
            self._heartbeat.start()
        return self._message

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._message is None:
            return
        self._is_over.set()
        if self._heartbeat is not None:
            self._heartbeat.join()
        if error is None:
            self._queue.ack(self._message.id, self._message.lock_token)
            return
        try:
            self._queue.nack(self._message.id, self._message.lock_token, f"{type(error).__name__}: {error}")
        except (LockLost, UnknownMessage, QueueUnavailable) as error_of_nack:
            # The caller must see the error of the block, not this one.
            log.warning(f"A message could not be nacked: {error_of_nack}", message_id=self._message.id)

    def _beat(self, message: Message) -> None:
        """Extend the deadline until the block ends or the lock is lost."""
        span = message.deadline_at - message.fields["dequeued_at"] if message.deadline_at else 1.0
        while not self._is_over.wait(span / HEARTBEATS_PER_DEADLINE):
            try:
                self._queue.touch(message.id, message.lock_token, self._extension)
            except (LockLost, UnknownMessage) as error:
                log.warning(f"The lock was lost while the message was processed: {error}", message_id=message.id)
                return
            except QueueUnavailable as error:
                log.warning("A touch failed and will be retried", message_id=message.id, error=reason(error))


def _raise_refusal(answer: bytes, id: str) -> None:
    if answer == b"UNKNOWN":
        raise UnknownMessage(f"There is no message {id}")
    if answer == b"LOCK_LOST":
        raise LockLost(f"The lock token of the message {id} is not valid: the message was acknowledged or requeued")


def _token(lock_token: str | None) -> str:
    return checked_text(lock_token, "lock_token", max_bytes=MAX_CONSUMER_ID_BYTES) if lock_token is not None else ""


def _milliseconds(amount: float) -> int:
    return max(round(amount * 1000), 1)
