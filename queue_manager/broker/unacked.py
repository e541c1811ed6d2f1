"""What a worker holds: delivered, and neither acknowledged nor given back.

Acknowledgements are collected and sent together. While a message is held its registration is renewed. Tags are the
server's: work that outlives its connection is still acknowledged when the server is back, unless the message came back
before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from kombu.transport.virtual import QoS as Remembering
from kombu.utils.encoding import bytes_to_str
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from queue_manager.broker import connection_guard, dead_letters, scripts
from queue_manager.broker.connection_guard import refusal_is_a_connection_error
from queue_manager.core.errors import reason
from queue_manager.core.log import get_logger

AT_ONCE = 500  # tags in one command
LOST = (RedisConnectionError, RedisTimeoutError)  # kombu counts any KeyError and OSError as a lost connection, too
REJECTED = "It was rejected"

log = get_logger("QM/transport")


class QoS(connection_guard.QoS):
    """What a channel has delivered and not yet seen acknowledged."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._done: deque[str] = deque()  # threads may add to it

    @property
    def room(self) -> int | None:
        """How many more messages may be delivered; `None`: any number."""
        if "can_consume" in vars(self):  # Celery's `worker_disable_prefetch`, which says yes or no
            return 1
        room: int | None = self.can_consume_max_estimate()
        return room

    def append(self, message: Any, delivery_tag: str) -> None:
        if self.channel.has_taken(delivery_tag):  # then it is registered
            Remembering.append(self, message, delivery_tag)
        else:
            super().append(message, delivery_tag)

    # Answers

    def ack(self, delivery_tag: str) -> None:
        Remembering.ack(self, delivery_tag)
        self.done(delivery_tag)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Put a message back, to be delivered last; or move it to the dead letters, with `why` of the message."""
        if requeue:
            # No longer renewed: should the next step fail, it comes back when its visibility timeout ends.
            self.forget(delivery_tag)
            self._restore(delivery_tag, push="LPUSH")
        else:
            why = getattr(self._delivered.get(delivery_tag), "why", REJECTED)
            self.bury(delivery_tag, why)
            Remembering.ack(self, delivery_tag)

    def is_answered(self, tag: str) -> bool:
        return tag in self._dirty

    def done(self, tag: str) -> None:
        """Acknowledge what is not, or no longer, remembered here."""
        self._done.append(tag)
        if len(self._done) >= AT_ONCE or not self.channel.has_event_loop:
            self.send_acks()

    def send_acks(self) -> None:
        """Tell the server what is done. What an error keeps from it is told again; or else it is delivered again."""
        while tags := self._some_done():
            try:
                with refusal_is_a_connection_error(), self.pipe_or_acquire() as pipe:
                    pipe.zrem(self.unacked_index_key, *tags).hdel(self.unacked_key, *tags).execute()
            except BaseException:
                self._done.extend(tags)
                raise

    def _some_done(self) -> list[str]:
        tags: list[str] = []
        with suppress(IndexError):
            while len(tags) < AT_ONCE:
                tags.append(self._done.popleft())
        return tags

    # Keeping

    def renew(self) -> None:
        """Say that what was delivered is still worked on, or waits for its time."""
        tags = self._held()
        with refusal_is_a_connection_error(), self.channel.conn_or_acquire() as client:
            for first in range(0, len(tags), AT_ONCE):
                scripts.RENEW(client, [self.unacked_index_key], tags[first : first + AT_ONCE])

    def _held(self) -> list[str]:
        return [tag for tag in list(self._delivered) if tag not in self._dirty]

    def forget(self, tag: str) -> None:
        """Hold it no longer: it is somewhere else."""
        self._delivered.pop(tag, None)
        self._dirty.discard(tag)

    # Giving back

    def restore_unacked_once(self, stderr: Any = None) -> None:
        """Send what is done, then put everything else back. Both are left to the timeout if the connection is gone."""
        with suppress(*LOST):
            self.send_acks()
        super().restore_unacked_once(stderr)

    def restore_unacked(self, client: Any = None) -> None:
        """Put everything back where it was taken, or leave it to the timeout if the connection is gone."""
        with suppress(*LOST):
            self.give_back(self._held())
        self._delivered.clear()

    def give_back(self, tags: Sequence[str]) -> None:
        """Put messages back where they were taken, to be delivered next, in the order of `tags`."""
        for end in range(len(tags), 0, -AT_ONCE):
            self._restore(*tags[max(0, end - AT_ONCE) : end])
        for tag in tags:
            self.forget(tag)

    def restore_visible(self, *_: Any, **__: Any) -> None:
        """Put back what nobody has renewed for `visibility_timeout`."""
        while self._restore() == AT_ONCE:
            pass

    def _restore(self, *tags: str, push: str = "RPUSH") -> int:
        """Put back what these tags hold; without any, what is overdue. Returns how many, of our own transport's."""
        arguments = [self.channel.sep, self.visibility_timeout, AT_ONCE, push, *tags]
        with refusal_is_a_connection_error(), self.channel.conn_or_acquire() as client:
            count, *foreign = scripts.RESTORE(client, [self.unacked_key, self.unacked_index_key], arguments)
            for tag in foreign:
                self._restore_foreign(bytes_to_str(tag), client)
        return int(count)

    def _restore_foreign(self, tag: str, client: Any) -> None:
        try:
            self.restore_by_tag(tag, client)
        except LOST:
            raise
        except ResponseError as error:  # a full server adds nothing: later, then
            log.warning("A message of another transport cannot be put back yet", tag=tag, error=str(error))
        except Exception as error:  # else no worker could start for it
            self.bury(tag, f"It cannot be put back: {type(error).__name__}: {reason(error)}")

    # Moving

    def bury(self, tag: str, why: str) -> None:
        """Move a message to the dead letters, with the reason."""
        with refusal_is_a_connection_error(), self.channel.conn_or_acquire() as client:
            held_in = (self.unacked_key, self.unacked_index_key)
            letter = dead_letters.bury(client, tag, reason=why, held_in=held_in)
        if letter:
            log.error("A message went to the dead letters", reason=letter.reason, queue=letter.queue)

    def put_last(self, tag: str, name: str, message: str) -> None:
        """Put a message on the list `name`, as it is now, to be delivered last."""
        with refusal_is_a_connection_error(), self.channel.conn_or_acquire() as client:
            scripts.MOVE(client, [self.unacked_key, self.unacked_index_key, name], [tag, message, 0])
        self.forget(tag)
