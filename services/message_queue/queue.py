"""The message queue for producers and consumers: enqueue, dequeue, ack, nack and touch.

Guarantee: every operation is one atomic script and one round trip. A message is waiting, locked by one consumer until
its deadline, dead-lettered or acknowledged, and never in two states. Times are those of the queue's server.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from threading import Event
from typing import Any, Unpack, cast

from queue_manager.core.background import in_thread
from queue_manager.core.errors import reason
from queue_manager.core.log import get_logger
from services.message_queue.arrivals import ArrivalNotifier
from services.message_queue.errors import LockLost, QueueUnavailable, UnknownMessage
from services.message_queue.fields import checked_integer, checked_number, checked_text
from services.message_queue.messages import Message, NewMessage, QueueOptions
from services.message_queue.operations import (
    MAX_RECEIVED_MESSAGES,
    EnqueueResult,
    Operation,
    Operations,
    ReceiveOptions,
    Result,
    TouchResult,
)
from services.message_queue.scripts import Scripts

MAX_POLL_TIMEOUT = 60
"""Maximum seconds that a consumer may wait for a message."""
HEARTBEATS_PER_DEADLINE = 3  # touches per ack timeout, so that one may fail

log = get_logger("QM/message-queue")


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
        self._operations = Operations(options, schedule_sweep=schedule_sweep)

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

        At most 500 messages with 512 KiB of payloads, so that the script takes less than 10 ms; a single message may be
        larger.

        A message is a `NewMessage` or a mapping such as `{"type": "send_mail", "payload": …, "ack_timeout": 60}`.
        """
        return self._run(self._operations.enqueue(messages))

    # For consumers

    def dequeue(
        self,
        timeout: float = 0,
        ack_timeout: float | None = None,
        type: str | None = None,
        consumer_id: str | None = None,
    ) -> Message | None:
        """Return the next message and lock it; wait up to `timeout` seconds (at most 60), then return `None`.

        The highest priority comes first, then the oldest. `ack_timeout` (seconds) applies to this delivery, and to
        later ones that name none if the message has none of its own.

        Raises: InvalidMessage, QueueUnavailable.
        """
        messages = self.receive_many(1, timeout=timeout, ack_timeout=ack_timeout, type=type, consumer_id=consumer_id)
        return messages[0] if messages else None

    def receive_many(
        self,
        limit: int,
        *,
        timeout: float = 0,
        ack_timeout: float | None = None,
        type: str | None = None,
        consumer_id: str | None = None,
    ) -> list[Message]:
        """Return up to `limit` next messages (at most 100) and lock each; wait for the first like `dequeue`.

        Fewer are returned if their payloads are large. Raises like `dequeue`.
        """
        checked_integer(limit, "limit", minimum=1, maximum=MAX_RECEIVED_MESSAGES)
        end = time.monotonic() + checked_number(timeout, "timeout", minimum=0, maximum=MAX_POLL_TIMEOUT)
        options: ReceiveOptions = {"ack_timeout": ack_timeout, "type": type, "consumer_id": consumer_id}
        if not timeout:
            return self.search(limit=limit, **options)
        if type is not None:
            checked_text(type, "type")
        while True:
            arrival, is_used = self.arrivals.subscribe(type), False
            try:
                self.arrivals.wait_for_reader(arrival)
                messages = self.search(limit=limit, **options)
                if not messages:
                    arrival.result(timeout=max(end - time.monotonic(), 0))
                    messages = self.search(limit=limit, **options)
                    is_used = True
                if messages:
                    return messages
            except FutureTimeout:
                return []
            finally:
                if not is_used:
                    self.arrivals.unsubscribe(arrival)

    def search(self, limit: int = 1, **options: Unpack[ReceiveOptions]) -> list[Message]:
        """Return the next messages without waiting."""
        return self._run(self._operations.search(limit=limit, **options))

    def ack(self, id: str, lock_token: str | None = None) -> None:
        """Acknowledge the message. Raises `LockLost` if the caller does not hold the lock; nothing is written then."""
        self._run(self._operations.ack(id, lock_token))

    def ack_many(self, locks: Sequence[tuple[str, str | None]]) -> list[bool]:
        """Acknowledge messages by their ids and lock tokens; return for each whether the caller held the lock.

        Nothing is written for the others. More than 100 messages, or 1 MiB of them, need several scripts.
        """
        return self._run(self._operations.ack_many(locks))

    def nack(self, id: str, lock_token: str | None = None, reason: str | None = None) -> bool:
        """Reject the message; return True if it is requeued, False if it is dead-lettered.

        Raises:
            UnknownMessage: there is no such message.
            LockLost: the caller does not hold the lock. In both cases nothing is written.
        """
        return self._run(self._operations.nack(id, lock_token, reason))

    def touch(self, id: str, lock_token: str | None = None, extend_seconds: float | None = None) -> TouchResult:
        """Set the deadline to `extend_seconds` from now; default: its ack timeout. Raises like `nack`."""
        return self._run(self._operations.touch(id, lock_token, extend_seconds))

    @contextmanager
    def receive(
        self,
        *,
        timeout: float = 0,
        ack_timeout: float | None = None,
        type: str | None = None,
        consumer_id: str | None = None,
    ) -> Iterator[Message | None]:
        """Dequeue a message for a `with` block: it is acked when the block ends and nacked if the block raises.

        A heartbeat extends the deadline while the block runs. The block gets `None` if there is no message. A lock
        lost while the block runs (the process was suspended, or an operator moved the message) is logged. The message
        is then delivered to another consumer, so the block must be idempotent.
        """
        message = self.dequeue(timeout=timeout, ack_timeout=ack_timeout, type=type, consumer_id=consumer_id)
        if message is None:
            yield None
            return
        try:
            with in_thread(partial(self._touch_until, message, ack_timeout), name="heartbeat"):
                yield message
        except BaseException as error:
            try:
                self.nack(message.id, message.lock_token, f"{error.__class__.__name__}: {reason(error)}")
            except (LockLost, UnknownMessage, QueueUnavailable) as error_of_nack:
                # The caller must see the error of the block, not this one.
                log.warning(f"A message could not be nacked: {error_of_nack}", message_id=message.id)
            raise
        self.ack(message.id, message.lock_token)

    def _touch_until(self, message: Message, extension: float | None, is_over: Event) -> None:
        """Extend the deadline until the block is over or the lock is lost."""
        span = message.deadline_at - message.fields["dequeued_at"] if message.deadline_at else 1.0
        while not is_over.wait(span / HEARTBEATS_PER_DEADLINE):
            try:
                self.touch(message.id, message.lock_token, extension)
            except (LockLost, UnknownMessage) as error:
                log.warning(f"The lock was lost while the message was processed: {error}", message_id=message.id)
                return
            except QueueUnavailable as error:
                log.warning("A touch failed and will be retried", message_id=message.id, error=reason(error))

    def _run(self, operation: Operation[Result]) -> Result:
        """Run the scripts of an operation one by one, and return its result."""
        reply = None
        while True:
            try:
                name, arguments = operation.send(reply)
            except StopIteration as end:
                return cast(Result, end.value)
            reply = self.scripts.run(name, *arguments)
