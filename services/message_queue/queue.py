"""The queue for producers and consumers: enqueue, dequeue, ack, nack, touch, and the sweep of what is overdue.

Guarantee: every operation is one script, one round trip, all or nothing. A message is waiting, held by one consumer
until its deadline, dead-lettered, or done: never in two places. Times are those of the queue's server.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import TimeoutError as NotInTime
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import uuid4

from queue_manager.core.clock import milliseconds
from queue_manager.core.errors import reason
from queue_manager.core.log import get_logger
from services.message_queue.arrivals import Arrivals
from services.message_queue.consumer import Delivery
from services.message_queue.errors import LockLost, SearchUnfinished, UnknownMessage
from services.message_queue.messages import (
    LONGEST_CONSUMER,
    LONGEST_TYPE,
    Bounds,
    Message,
    NewMessage,
    checked_id,
    checked_number,
    checked_text,
    checked_timeout,
    cut,
)
from services.message_queue.scripts import Scripts

LONGEST_POLL = 60
"""Seconds that a consumer may wait for a message."""
SEARCH_FOR = 0.25
"""Seconds that one dequeue searches for messages of other producers; the next one goes on."""
UNDECODABLE = "Undecodable message"
UNANSWERED = "Negative acknowledgement"

log = get_logger("QM/message-queue")


@dataclass(frozen=True, kw_only=True)
class Defaults:
    """What holds for messages that do not say otherwise."""

    ack_timeout: timedelta
    max_attempts: int


@dataclass(frozen=True, kw_only=True)
class Enqueued:
    """The message's id, and whether it is new: a repeated one changes nothing."""

    id: str
    is_new: bool


@dataclass(frozen=True, kw_only=True)
class Touched:
    """The new deadline, in seconds by the server's clock, and how long that is from now."""

    deadline_at: float
    extended_by: timedelta


class MessageQueue:
    """One queue on one server. Any number of threads may use it.

    Args:
        sweep_within: the time between two periodic sweeps; a deadline before the next one needs a sweep of its own.
        plan_sweep: is told in how long such a sweep is needed. Without it the periodic sweep has to do.
    """

    def __init__(
        self,
        scripts: Scripts,
        arrivals: Arrivals,
        *,
        bounds: Bounds,
        defaults: Defaults,
        needs_token: bool = True,
        sweep_within: timedelta,
        plan_sweep: Callable[[timedelta], object] | None = None,
    ) -> None:
        self.scripts, self.arrivals = scripts, arrivals
        self.bounds, self.defaults = bounds, defaults
        self._needs_token = "1" if needs_token else "0"
        self._sweep_within = milliseconds(sweep_within) if plan_sweep else 0
        self._plan_sweep = plan_sweep

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
        """Add a message and return its id. With an `id` of the producer's own, repeating it adds nothing.

        Raises:
            InvalidMessage, MessageTooLarge: names the field; nothing was added.
            QueueFull, QueueUnavailable: the latter leaves open whether it was added.
        """
        message = NewMessage(
            type=type, payload=payload, priority=priority, ack_timeout=ack_timeout, max_attempts=max_attempts, id=id
        )
        return self.enqueue_batch([message])[0].id

    def enqueue_batch(self, messages: Sequence[NewMessage | Mapping[str, Any]]) -> list[Enqueued]:
        """Add all messages or, if one is not acceptable, none. Raises like `enqueue`.

        A message is a `NewMessage` or a mapping such as `{"type": "send_mail", "payload": …, "ack_timeout": 60}`.
        """
        new = [message if isinstance(message, NewMessage) else NewMessage.from_members(message) for message in messages]
        checked = [message.arguments(self.bounds) for message in new]
        if not checked:
            return []
        answers = self.scripts.run("enqueue", *(argument for _, arguments in checked for argument in arguments))
        return [Enqueued(id=id, is_new=bool(added)) for (id, _), added in zip(checked, answers, strict=True)]

    # For consumers

    def dequeue(
        self,
        timeout: float = 0,
        ack_timeout: float | None = None,
        type: str | None = None,
        consumer_id: str | None = None,
    ) -> Message | None:
        """Take the next message, or wait for one for `timeout` seconds, 60 at the most; `None` when there is none.

        The highest priority comes first, then the oldest. `ack_timeout` (seconds) is for this delivery alone.

        Raises: InvalidMessage, QueueUnavailable.
        """
        end = time.monotonic() + checked_number(timeout, "timeout", least=0, most=LONGEST_POLL)
        wanted: dict[str, Any] = {"ack_timeout": ack_timeout, "type": type, "consumer_id": consumer_id}
        if not timeout:
            return self.take(**wanted)
        while True:
            arrival = self.arrivals.expect(type)
            is_used = False
            try:
                if (message := self.search(**wanted)) is not None:
                    return message
                arrival.result(timeout=max(end - time.monotonic(), 0))
                is_used = True
            except SearchUnfinished:
                if time.monotonic() >= end:
                    return None
            except NotInTime:
                return None
            finally:
                if not is_used:
                    self.arrivals.release(arrival)

    def take(
        self, *, ack_timeout: float | None = None, type: str | None = None, consumer_id: str | None = None
    ) -> Message | None:
        """Take the next message if one is found now. Raises like `dequeue`."""
        with suppress(SearchUnfinished):
            return self.search(ack_timeout=ack_timeout, type=type, consumer_id=consumer_id)
        return None

    def search(
        self, *, ack_timeout: float | None = None, type: str | None = None, consumer_id: str | None = None
    ) -> Message | None:
        """Take the next message as `take` does. Raises `SearchUnfinished` if there may be one: search again."""
        arguments = (
            checked_text(consumer_id, "consumerId", longest=LONGEST_CONSUMER) if consumer_id is not None else "",
            _milliseconds(checked_timeout(ack_timeout, "ackTimeout")) if ack_timeout is not None else "",
            milliseconds(self.defaults.ack_timeout),
            checked_text(type, "type", longest=LONGEST_TYPE) if type is not None else "",
            self.bounds.levels,
            self._sweep_within,
        )
        ends = time.monotonic() + SEARCH_FOR
        while answer := self.scripts.run("dequeue", uuid4().hex, *arguments):
            if answer == 1:  # the script stopped at a slice
                if time.monotonic() >= ends:
                    raise SearchUnfinished
                continue
            id, data, record, planned = answer
            self._planned(planned)
            message = Message.read(id, data, record)
            if message.is_decodable:
                return message
            self._bury(message)
        return None

    def ack(self, id: str, lock_token: str | None = None) -> None:
        """Say that the message is done. Raises `LockLost` unless the caller holds it; then nothing is written."""
        _refuse(self.scripts.run("ack", checked_id(id), _token(lock_token), self._needs_token), id)

    def nack(self, id: str, lock_token: str | None = None, reason: str | None = None) -> bool:
        """Give the message back; tell whether it will be delivered again, or is a dead letter.

        Raises:
            UnknownMessage: there is no such message.
            LockLost: the caller does not hold it. In both cases nothing is written.
        """
        said = cut(reason) if reason else UNANSWERED
        arguments = (checked_id(id), _token(lock_token), self._needs_token, said, self.defaults.max_attempts)
        answer = self.scripts.run("nack", *arguments)
        _refuse(answer, id)
        return bool(answer == b"REQUEUED")

    def touch(self, id: str, lock_token: str | None = None, extend_seconds: float | None = None) -> Touched:
        """Move the deadline to `extend_seconds` from now, by default the message's own timeout. Raises like `nack`."""
        extension = (
            _milliseconds(checked_timeout(extend_seconds, "extend_seconds")) if extend_seconds is not None else ""
        )
        default = milliseconds(self.defaults.ack_timeout)
        answer = self.scripts.run(
            "touch", checked_id(id), _token(lock_token), self._needs_token, extension, default, self._sweep_within
        )
        _refuse(answer[0], id)
        _, deadline, extended_by, planned = answer
        self._planned(planned)
        return Touched(deadline_at=deadline / 1000, extended_by=timedelta(milliseconds=extended_by))

    def receive(
        self,
        *,
        timeout: float = 0,
        ack_timeout: float | None = None,
        type: str | None = None,
        consumer_id: str | None = None,
    ) -> AbstractContextManager[Message | None]:
        """Take a message for the length of a `with`: it is acknowledged at its end, given back if that fails.

        While the block runs the deadline is extended by heartbeat, however long that is. `None` when there is none.
        """
        message = self.dequeue(timeout=timeout, ack_timeout=ack_timeout, type=type, consumer_id=consumer_id)
        return Delivery(self, message, extension=ack_timeout)

    def _bury(self, message: Message) -> None:
        """Put what a consumer could not read to the dead letters, as it is; unless somebody else has it meanwhile."""
        self.scripts.run("nack", message.id, message.lock_token or "", "1", UNDECODABLE, 0)

    def _planned(self, in_ms: int) -> None:
        if not in_ms or self._plan_sweep is None:
            return
        try:
            self._plan_sweep(timedelta(milliseconds=in_ms))
        except Exception as error:  # a full broker, say: the caller has the message all the same
            log.warning("A sweep could not be planned; the periodic one has to do", error=reason(error))


def _refuse(answer: bytes, id: str) -> None:
    if answer == b"UNKNOWN":
        raise UnknownMessage(f"There is no message {id}")
    if answer == b"LOCK_LOST":
        raise LockLost(f"The message {id} is not held with this lock token: it was acknowledged or taken back")


def _token(lock_token: str | None) -> str:
    return checked_text(lock_token, "lock_token", longest=LONGEST_CONSUMER) if lock_token is not None else ""


def _milliseconds(amount: float) -> int:
    return max(round(amount * 1000), 1)
