"""A message in a `with`: acknowledged at its end, given back when the block fails, kept by heartbeat meanwhile."""

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

BEATS = 3  # touches in the time of one deadline, so that one may fail

log = get_logger("QM/message-queue")


class Delivery(AbstractContextManager["Message | None"]):
    """What `MessageQueue.receive` returns.

    A lock that is lost while the block works (the process slept, or an operator moved the message) is logged: the
    message goes to another consumer, so what the block does must be harmless when repeated.
    """

    def __init__(self, queue: MessageQueue, message: Message | None, *, extension: float | None) -> None:
        self._queue, self._message, self._extension = queue, message, extension
        self._is_over = Event()
        self._heart: Thread | None = None

    def __enter__(self) -> Message | None:
        if self._message is not None:
            self._heart = Thread(target=self._beat, args=[self._message], name="heartbeat", daemon=True)
            self._heart.start()
        return self._message

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._message is None:
            return
        self._is_over.set()
        if self._heart is not None:
            self._heart.join()
        if error is None:
            self._queue.ack(self._message.id, self._message.lock_token)
            return
        try:
            self._queue.nack(self._message.id, self._message.lock_token, f"{type(error).__name__}: {error}")
        except (LockLost, UnknownMessage, QueueUnavailable) as refusal:
            # The block's own error is what its caller must see.
            log.warning(f"A message could not be given back: {refusal}", message_id=self._message.id)

    def _beat(self, message: Message) -> None:
        """Touch the message until the block is over or the lock is lost."""
        span = message.deadline_at - message.fields["dequeued_at"] if message.deadline_at else 1.0
        while not self._is_over.wait(span / BEATS):
            try:
                self._queue.touch(message.id, message.lock_token, self._extension)
            except (LockLost, UnknownMessage) as refusal:
                log.warning(f"The lock was lost while the message was worked on: {refusal}", message_id=message.id)
                return
            except QueueUnavailable as error:
                log.warning("A touch failed and is tried again", message_id=message.id, error=reason(error))
