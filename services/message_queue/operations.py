"""The operations of producers and consumers, apart from how their scripts are run.

An operation is a generator: it checks its arguments, yields each script to run, is sent the reply, and returns the
result. `MessageQueue` runs the scripts one by one; `AsyncMessageQueue` sends those of concurrent calls together.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from secrets import token_hex
from typing import Any, TypeAlias, TypedDict, TypeVar

from queue_manager.core.clock import milliseconds
from queue_manager.core.errors import reason
from queue_manager.core.log import get_logger
from services.message_queue.errors import InvalidMessage, LockLost, MessageTooLarge, UnknownMessage
from services.message_queue.fields import (
    MAX_ENQUEUED_MESSAGES,
    checked_text,
    checked_timeout,
    truncate_reason,
)
from services.message_queue.messages import Message, NewMessage, QueueOptions
from services.message_queue.scripts import ScriptCall

MAX_ENQUEUED_BYTES = 512 * 1024
MAX_RECEIVED_MESSAGES = 100
UNDECODABLE_REASON = "Undecodable message"
DEFAULT_NACK_REASON = "Negative acknowledgement"

log = get_logger("QM/message-queue")

Result = TypeVar("Result")
Operation: TypeAlias = Generator[ScriptCall, Any, Result]


@dataclass(frozen=True, kw_only=True)
class EnqueueResult:
    """The message's id, and whether it is new; a message whose id exists is not added again."""

    id: str
    is_new: bool


class ReceiveOptions(TypedDict):
    """What a consumer asks for. `ack_timeout` is in seconds."""

    ack_timeout: float | None
    type: str | None
    consumer_id: str | None


@dataclass(frozen=True, kw_only=True)
class TouchResult:
    """The new deadline in Unix seconds by the server's clock, and its distance from now."""

    deadline_at: float
    extended_by: timedelta


class Operations:
    """The operations of one queue. Args: see `MessageQueue`."""

    def __init__(self, options: QueueOptions, *, schedule_sweep: Callable[[timedelta], object] | None = None) -> None:
        self._options = options
        self._is_token_required = "1" if options.is_token_required else "0"
        self._ack_timeout = milliseconds(options.ack_timeout)
        self._sweep_period = milliseconds(options.sweep_period) if schedule_sweep else 0
        self._schedule_sweep = schedule_sweep

    def enqueue(self, messages: Sequence[NewMessage | Mapping[str, Any]]) -> Operation[list[EnqueueResult]]:
        new = [message if isinstance(message, NewMessage) else NewMessage.from_members(message) for message in messages]
        checked = [message.arguments(self._options) for message in new]
        if not checked:
            return []
        if len(checked) > MAX_ENQUEUED_MESSAGES:
            raise InvalidMessage("body", f"a list of at most {MAX_ENQUEUED_MESSAGES} messages")
        if len(checked) > 1 and sum(len(arguments[-1].encode()) for arguments in checked) > MAX_ENQUEUED_BYTES:
            raise MessageTooLarge("body", f"a list of messages with at most {MAX_ENQUEUED_BYTES} bytes of payloads")
        answers = yield "enqueue", [argument for arguments in checked for argument in arguments]
        return [EnqueueResult(id=id, is_new=bool(added)) for (id, *_), added in zip(checked, answers, strict=True)]

    def search(
        self,
        *,
        ack_timeout: float | None = None,
        type: str | None = None,
        consumer_id: str | None = None,
        limit: int = 1,
    ) -> Operation[list[Message]]:
        arguments = (
            self._options.levels,
            _text(consumer_id, "consumerId"),
            _milliseconds(ack_timeout, "ackTimeout"),
            self._ack_timeout,
            self._sweep_period,
            _text(type, "type"),
            int(self._options.is_shared),
        )
        script = "dequeue" if type is None else "dequeue_typed"
        while True:
            tokens = (token_hex(16) for _ in range(limit))
            next_sweep_ms, is_incomplete, *parts = yield script, (*arguments, *tokens)
            self._request_sweep(next_sweep_ms)
            received = [Message.read(*parts[first : first + 3]) for first in range(0, len(parts), 3)]
            for message in received:
                if not message.is_decodable:  # to the dead letters as it is, unless another consumer has locked it
                    yield "nack", (message.id, message.lock_token or "", "1", UNDECODABLE_REASON, 0)
            if messages := [message for message in received if message.is_decodable]:
                return messages
            if not received and not is_incomplete:
                return []

    def ack(self, id: str, lock_token: str | None) -> Operation[None]:
        (is_acknowledged,) = yield from self.ack_many([(id, lock_token)])
        if not is_acknowledged:
            raise _lock_lost(id)

    def ack_many(self, locks: Sequence[tuple[str, str | None]]) -> Operation[list[bool]]:
        arguments = [(checked_text(id, "id"), _text(token, "lock_token")) for id, token in locks]
        answers: list[bool] = []
        while len(answers) < len(arguments):
            some = arguments[len(answers) : len(answers) + MAX_RECEIVED_MESSAGES]
            acknowledged = yield "ack", (self._is_token_required, *(text for pair in some for text in pair))
            answers += [answer == "1" for answer in acknowledged.decode()]
        return answers

    def nack(self, id: str, lock_token: str | None, reason: str | None) -> Operation[bool]:
        failure = truncate_reason(reason) if reason else DEFAULT_NACK_REASON
        lock = (checked_text(id, "id"), _text(lock_token, "lock_token"), self._is_token_required)
        answer = yield "nack", (*lock, failure, self._options.max_attempts)
        _raise_refusal(answer, id)
        return bool(answer == b"REQUEUED")

    def touch(self, id: str, lock_token: str | None, extend_seconds: float | None) -> Operation[TouchResult]:
        lock = (checked_text(id, "id"), _text(lock_token, "lock_token"), self._is_token_required)
        extension = _milliseconds(extend_seconds, "extend_seconds")
        answer = yield "touch", (*lock, extension, self._ack_timeout, self._sweep_period)
        _raise_refusal(answer[0], id)
        _, deadline, extended_by, next_sweep_ms = answer
        self._request_sweep(next_sweep_ms)
        return TouchResult(deadline_at=deadline / 1000, extended_by=timedelta(milliseconds=extended_by))

    def _request_sweep(self, delay_ms: int) -> None:
        if not delay_ms or self._schedule_sweep is None:
            return
        try:
            self._schedule_sweep(timedelta(milliseconds=delay_ms))
        except Exception as error:  # such as a full broker; the caller still gets the message
            log.warning("A sweep could not be scheduled; the next periodic sweep will do its work", error=reason(error))


def _raise_refusal(answer: bytes, id: str) -> None:
    if answer == b"UNKNOWN":
        raise UnknownMessage(f"There is no message {id}")
    if answer == b"LOCK_LOST":
        raise _lock_lost(id)


def _lock_lost(id: str) -> LockLost:
    return LockLost(f"The lock token of the message {id} is not valid: the message was acknowledged or requeued")


def _text(value: str | None, field: str) -> str:
    return "" if value is None else checked_text(value, field)


def _milliseconds(value: float | None, field: str) -> int | str:
    return "" if value is None else max(round(checked_timeout(value, field) * 1000), 1)
