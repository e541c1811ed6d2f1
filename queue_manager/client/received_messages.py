"""A message that was received: acknowledged, rejected or extended by its consumer, or by a `with` block."""

from __future__ import annotations

import asyncio
import logging
import time
from datetime import datetime
from http import HTTPStatus
from threading import Event, Thread
from typing import Any

import msgspec

from queue_manager.client.errors import ClientError
from queue_manager.client.exchanges import (
    AsyncResource,
    Exchange,
    HttpClient,
    Resource,
    SyncResource,
    operation,
    path_segment,
)

TOUCHES_PER_DEADLINE = 3  # so that one may fail
HEARTBEAT_INTERVAL = 10.0  # seconds, for a message without a deadline
INTERRUPTED_TIMEOUT = 2.0  # seconds to reject a message when its block is interrupted: the program must end
LOST_STATUSES = {HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT}  # of a heartbeat; after other errors the lock may be held
MAX_SENT_REASON_LENGTH = 4096  # characters; the server keeps no more, and refuses more than a megabyte

log = logging.getLogger("queue_manager.client")


class MessageEntry(msgspec.Struct, frozen=True, kw_only=True):
    """What happened to a message, such as `delivered` or `requeued`."""

    event: str
    at: datetime
    attempt: int | None = None
    consumer_id: str | None = None
    touches: int | None = None
    """How many touches in a row the entry stands for."""
    reason: str | None = None


class StoredMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message. Fields that do not apply to its state are `None`. Whole numbers above 4,300 digits are `Decimal`s."""

    id: str
    type: str
    payload: Any
    priority: int
    created_at: datetime
    attempt_count: int
    """How many times it was delivered, this time included."""
    lock_token: str | None = None
    consumer_id: str | None = None
    dequeued_at: datetime | None = None
    """When it was delivered or last touched: its ack timeout counts from here."""
    deadline_at: datetime | None = None
    failed_at: datetime | None = None
    acknowledged_at: datetime | None = None
    last_error: str | None = None
    state: str | None = None
    """Only in the result of `get`."""
    events: list[MessageEntry] = []
    """Only in the result of `get`: what happened to it since its first delivery."""


class _NackResult(msgspec.Struct):
    requeued: bool


class _Deadline(msgspec.Struct):
    new_timeout_at: datetime


class Received(Resource):
    """What consumers do with a message. `fields` has everything that the API returns about it."""

    def __init__(self, http: HttpClient, retry_for: float, message: StoredMessage, ack_timeout: float | None) -> None:
        super().__init__(http, retry_for)
        self.fields = message
        self._ack_timeout, self._is_settled = ack_timeout, False

    @property
    def id(self) -> str:
        return self.fields.id

    @property
    def type(self) -> str:
        return self.fields.type

    @property
    def payload(self) -> Any:
        return self.fields.payload

    @property
    def attempt(self) -> int:
        """Number of deliveries, including this one."""
        return self.fields.attempt_count

    @operation
    def ack(self) -> Exchange[None]:
        """Acknowledge the message: it is done.

        Raises `ClientError` with the error `LOCK_LOST` if its deadline has passed and it was requeued.
        """
        body = {"id": self.id, "lock_token": self.fields.lock_token}
        self._is_settled = True
        yield from self._exchange("POST", "/api/queue/ack", object, body=body, is_repeatable=True)

    @operation
    def nack(self, reason: str | None = None) -> Exchange[bool]:
        """Reject the message; return True if it is requeued, False if it is dead-lettered. Raises like `ack`."""
        return (yield from self._nack(reason))

    @operation
    def touch(self, extend_seconds: float | None = None) -> Exchange[datetime]:
        """Set the deadline to `extend_seconds` from now; default: its ack timeout. Return it. Raises like `ack`."""
        return (yield from self._touch(self._ack_timeout if extend_seconds is None else extend_seconds))

    def _nack(self, reason: str | None, only_within: float | None = None) -> Exchange[bool]:
        sent_reason = None if reason is None else reason[:MAX_SENT_REASON_LENGTH]
        body = {"lock_token": self.fields.lock_token, "errorReason": sent_reason}
        self._is_settled = True
        path = f"{message_path(self.id)}/nack"
        answer = yield from self._exchange(
            "POST", path, _NackResult, body=body, is_repeatable=True, only_within=only_within
        )
        return answer.requeued

    def _touch(self, extend_seconds: float | None, only_within: float | None = None) -> Exchange[datetime]:
        body = {"lock_token": self.fields.lock_token, "extend_seconds": extend_seconds}
        path = f"{message_path(self.id)}/touch"
        answer = yield from self._exchange(
            "PUT", path, _Deadline, body=body, is_repeatable=True, only_within=only_within
        )
        return answer.new_timeout_at

    # The `with` block

    @property
    def _heartbeat_interval(self) -> float:
        """Seconds."""
        if self.fields.deadline_at is None or self.fields.dequeued_at is None:
            return HEARTBEAT_INTERVAL
        return (self.fields.deadline_at - self.fields.dequeued_at).total_seconds() / TOUCHES_PER_DEADLINE

    def _beat(self) -> Exchange[float | None]:
        """Extend the deadline; return the seconds until the next time, or `None` if the message is no longer held."""
        began = time.monotonic()
        try:
            yield from self._touch(self._ack_timeout, only_within=self._heartbeat_interval)
        except ClientError as error:
            if error.status in LOST_STATUSES:
                if not self._is_settled:
                    log.warning("The lock of the message %s was lost: %s", self.id, error)
                return None
            log.warning("The message %s could not be touched: %s", self.id, error)
        return max(0.0, self._heartbeat_interval - (time.monotonic() - began))

    def _settle(self, error: BaseException | None) -> Exchange[None]:
        """Acknowledge the message, or reject it because of an error, unless the block did so itself."""
        if self._is_settled:
            return
        if error is None:
            yield from Received.ack(self)
            return
        only_within = INTERRUPTED_TIMEOUT if _is_interruption(error) else None
        try:
            yield from self._nack(_reason_of(error), only_within=only_within)
        except ClientError as error_of_nack:  # the caller must see the error of the block
            log.warning("The message %s could not be rejected: %s", self.id, error_of_nack)


def _is_interruption(error: BaseException | None) -> bool:
    """Return True for an error such as KeyboardInterrupt, after which the program must end."""
    return error is not None and not isinstance(error, Exception)


def _reason_of(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception as failure:  # also then the message must be rejected, and the caller must see its own error
        text = f"its text raises {type(failure).__name__}"
    return f"{type(error).__name__}: {text}"


class ReceivedMessage(Received, SyncResource):
    """A message that this consumer has locked until its deadline.

    In a `with` block it is acknowledged when the block ends, and rejected if the block raises; a thread extends the
    deadline meanwhile. It has `id`, `type`, `payload` and `attempt`, the number of deliveries including this one, and
    as `fields` the `StoredMessage`.
    """

    def __enter__(self) -> ReceivedMessage:
        self._is_over = Event()
        self._heartbeat = Thread(target=self._beat_until_over, name="heartbeat", daemon=True)
        self._heartbeat.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._is_over.set()
        if not _is_interruption(error):
            self._heartbeat.join()
        self._run(self._settle(error))

    def _beat_until_over(self) -> None:
        pause: float | None = self._heartbeat_interval
        while pause is not None and not self._is_over.wait(pause):
            pause = self._run(self._beat())


class AsyncReceivedMessage(Received, AsyncResource):
    """Like `ReceivedMessage`, for `async with`; a task extends the deadline."""

    async def __aenter__(self) -> AsyncReceivedMessage:
        self._heartbeat = asyncio.create_task(self._beat_for_ever())
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._heartbeat.cancel()
        await asyncio.gather(self._heartbeat, return_exceptions=True)
        await self._run(self._settle(error))

    async def _beat_for_ever(self) -> None:
        pause: float | None = self._heartbeat_interval
        while pause is not None:
            await asyncio.sleep(pause)
            pause = await self._run(self._beat())


def message_path(id: str) -> str:
    """Return the path of a message."""
    return f"/api/queue/message/{path_segment(id)}"
