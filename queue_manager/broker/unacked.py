"""Messages that a worker holds: delivered, and neither acknowledged nor rejected.

Acks are collected and flushed together. While a message is held, its registration is renewed. A tag is valid on any
connection: a task that outlives its connection is still acknowledged when the server is back, unless its message was
redelivered before.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

from kombu.transport import redis as stock
from kombu.transport import virtual
from kombu.utils.encoding import bytes_to_str
from redis.exceptions import ResponseError

from queue_manager.broker import dead_letters, scripts
from queue_manager.broker.errors import refusals_as_connection_errors
from queue_manager.core.errors import reason
from queue_manager.core.log import get_logger
from queue_manager.core.redis_client import REDIS_OUTAGES

TAGS_PER_COMMAND = 500
REJECTED = "It was rejected"

log = get_logger("QM/transport")


class UnackedMessages(stock.QoS):
    """The unacknowledged messages of a channel: kombu's `QoS`."""

    batched_queues: Collection[str] = ()
    """Those whose messages a worker executes in batches."""

    max_single: Callable[[], int] | None = None
    """Returns how many messages of each other queue are held at most, besides those with an ETA; `None`: no such limit.

    Of each, because those of a task with a rate limit, which are held for long, must not delay other queues.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._pending_acks: deque[str] = deque()  # threads may append
        self._single_tags: defaultdict[str, list[str]] = defaultdict(list)
        """By queue, those that count towards `max_single` until they are settled."""
        self.arriving: Sequence[str] = ()
        """The tags of the batch that is being delivered. A solo pool executes each message before the next delivery."""

    @property
    def free_slots(self) -> int | None:
        """The number of messages that may still be delivered; `None` means unlimited."""
        if "can_consume" in vars(self):  # replaced by Celery's `worker_disable_prefetch`, which returns a bool
            return 1
        free_slots: int | None = self.can_consume_max_estimate()
        return free_slots

    def append(self, message: Any, delivery_tag: str) -> None:
        """Add a delivered message, and register it unless a batch did.

        Raises:
            BrokerRefuses: the server's memory is full, and the broker has lost the message; the next scan finds its
                item. The worker reconnects instead of exiting.
        """
        if self.channel.has_taken(delivery_tag):
            if len(self._dirty) >= TAGS_PER_COMMAND:
                self._flush()  # settled messages; kombu does so at every message
            self._delivered[delivery_tag] = message
        else:
            with refusals_as_connection_errors():
                super().append(message, delivery_tag)

    def room(self, queue: str, most: int) -> int:
        """Return how many messages of a queue may be taken: `most` if it has no limit of its own."""
        if (limit := self._limit(queue)) is None:
            return most
        held = self._single_tags[queue] = [tag for tag in self._single_tags[queue] if self.holds(tag)]
        return max(0, limit - len(held))

    def count_single(self, queue: str, tag: str, headers: Mapping[str, Any]) -> None:
        """Count a delivered message towards the limit of its queue, if it has one."""
        # Celery's protocol 1, without the header `task`, has an ETA in the body.
        if self._limit(queue) is not None and "task" in headers and headers.get("eta") is None:
            self._single_tags[queue].append(tag)

    def _limit(self, queue: str) -> int | None:
        return None if self.max_single is None or queue in self.batched_queues else self.max_single()

    # Acks

    def ack(self, delivery_tag: str) -> None:
        virtual.QoS.ack(self, delivery_tag)
        self.ack_later(delivery_tag)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Requeue a message, to be delivered last; or dead-letter it with its `reject_reason`."""
        if requeue:
            # The message is no longer renewed, so if the next step fails, the visibility timeout requeues it.
            self.forget(delivery_tag)
            self._restore(delivery_tag, push="LPUSH")
        else:
            reject_reason = getattr(self._delivered.get(delivery_tag), "reject_reason", REJECTED)
            self.dead_letter(delivery_tag, reject_reason)
            virtual.QoS.ack(self, delivery_tag)

    def is_settled(self, tag: str) -> bool:
        """Return True if the message was acknowledged or rejected."""
        return tag in self._dirty

    def holds(self, tag: str) -> bool:
        """Return True if the message was delivered, and neither settled nor moved since."""
        return tag in self._delivered and tag not in self._dirty

    def ack_later(self, tag: str) -> None:
        """Acknowledge a message with the next flush, even if it is not held here."""
        self._pending_acks.append(tag)
        has_event_loop = getattr(self.channel.connection, "has_event_loop", False)  # `None` without a connection
        if len(self._pending_acks) >= TAGS_PER_COMMAND or not has_event_loop:
            self.flush_acks()

    def flush_acks(self) -> None:
        """Flush pending acks. A failed ack is retried; if it is lost, the message is redelivered.

        The entry is deleted first, without a transaction: a tag without an entry requeues nothing.
        """
        while tags := self._next_acks():
            try:
                with refusals_as_connection_errors(), self.channel.conn_or_acquire() as client:
                    with client.pipeline(transaction=False) as pipe:
                        pipe.hdel(self.unacked_key, *tags).zrem(self.unacked_index_key, *tags).execute()
            except BaseException:
                self._pending_acks.extend(tags)
                raise

    def _next_acks(self) -> list[str]:
        tags: list[str] = []
        with suppress(IndexError):
            while len(tags) < TAGS_PER_COMMAND:
                tags.append(self._pending_acks.popleft())
        return tags

    # Renewal

    def renew(self) -> None:
        """Renew the registration of all messages that are executed, or wait for their turn or countdown."""
        tags = [*self.arriving, *self._held_tags()]
        with refusals_as_connection_errors(), self.channel.conn_or_acquire() as client:
            for start in range(0, len(tags), TAGS_PER_COMMAND):
                scripts.RENEW_UNACKED(client, [self.unacked_index_key], tags[start : start + TAGS_PER_COMMAND])

    def _held_tags(self) -> list[str]:
        return [tag for tag in list(self._delivered) if self.holds(tag)]

    def forget(self, tag: str) -> None:
        """Stop holding a message that was moved."""
        self._delivered.pop(tag, None)
        self._dirty.discard(tag)

    # Requeue

    def restore_unacked_once(self, stderr: Any = None) -> None:
        """Flush acks, then requeue all other messages. Without a connection, the visibility timeout requeues them."""
        with suppress(*REDIS_OUTAGES):
            self.flush_acks()
        super().restore_unacked_once(stderr)

    def restore_unacked(self, client: Any = None) -> None:
        """Requeue all messages, to be delivered first. Without a connection, the visibility timeout requeues them."""
        with suppress(*REDIS_OUTAGES):
            self.requeue_first(self._held_tags())
        self._delivered.clear()

    def requeue_first(self, tags: Sequence[str]) -> None:
        """Put messages back where they were taken, to be delivered next, in the order of `tags`."""
        for end in range(len(tags), 0, -TAGS_PER_COMMAND):
            self._restore(*tags[max(0, end - TAGS_PER_COMMAND) : end])
        for tag in tags:
            self.forget(tag)

    def requeue_last(self, tag: str, name: str, message: str) -> None:
        """Put a changed message on the list `name`, to be delivered last."""
        with refusals_as_connection_errors(), self.channel.conn_or_acquire() as client:
            scripts.MOVE_UNACKED(client, [self.unacked_key, self.unacked_index_key, name], [tag, message, 0])
        self.forget(tag)

    def restore_visible(self, *_: Any, **__: Any) -> None:
        """Requeue messages of all workers that were not renewed for `visibility_timeout`."""
        while self._restore() == TAGS_PER_COMMAND:
            pass

    def _restore(self, *tags: str, push: str = "RPUSH") -> int:
        """Requeue the messages of `tags`, or the overdue ones if there are none. Returns how many the script moved."""
        arguments = [self.channel.sep, self.visibility_timeout, TAGS_PER_COMMAND, push, *tags]
        with refusals_as_connection_errors(), self.channel.conn_or_acquire() as client:
            if not tags and not client.exists(self.unacked_index_key):
                return 0
            keys = [self.unacked_key, self.unacked_index_key]
            count, *foreign = scripts.RESTORE_UNACKED(client, keys, arguments)
            for tag in foreign:
                self._restore_foreign(bytes_to_str(tag), client)
        return int(count)

    def _restore_foreign(self, tag: str, client: Any) -> None:
        """Requeue a message that the stock transport registered."""
        try:
            self.restore_by_tag(tag, client)
        except REDIS_OUTAGES:
            raise
        except ResponseError as error:  # a full server refuses it; retried later
            log.warning("A message of another transport cannot be requeued yet", tag=tag, error=str(error))
        except Exception as error:  # otherwise it would keep every worker from starting
            self.dead_letter(tag, f"It cannot be requeued: {type(error).__name__}: {reason(error)}")

    # Dead letters

    def dead_letter(self, tag: str, cause: str) -> None:
        """Move a message to the dead letters, with the cause as the reason."""
        with refusals_as_connection_errors(), self.channel.conn_or_acquire() as client:
            keys = (self.unacked_key, self.unacked_index_key)
            letter = dead_letters.move_unacked(client, tag, reason=cause, unacked_keys=keys)
        if letter:
            log.error("A message was dead-lettered", reason=letter.reason, queue=letter.queue)
