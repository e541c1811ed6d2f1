"""A delivered message as a context manager: acks on success, nacks on error, extends the deadline by heartbeat."""

from __future__ import annotations

from contextlib import AbstractContextManager
from threading import Event, Thread
from types import TracebackType
from typing import TYPE_CHECKING

from queue_manager.core.errors import reason
from queue_manager.core.log import get_logger
from services.message_queue.errors import LockLost, QueueUnavailable, UnknownMessage
from services.message_queue.messages import Message

if TYPE_CHECKING:
    from services.message_queue.queue import MessageQueue

HEARTBEATS_PER_DEADLINE = 3  # touches per ack timeout, so that one may fail

log = get_logger("QM/message-queue")


class Delivery(AbstractContextManager["Message | None"]):
    """Context manager returned by `MessageQueue.receive`.

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
