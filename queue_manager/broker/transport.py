"""A Redis transport that takes, renews and acknowledges messages in batches, and loses none.

Stock kombu takes one message in one round trip and registers it as unacknowledged in another: a worker killed in
between loses it. Here one script takes up to `TAKE_AT_MOST` and registers them. While a worker lives it renews what it
holds, so `visibility_timeout` may be short, and what a killed worker held is back soon after it. Acknowledgements are
sent together, once a turn of the event loop: what a crash leaves unsent is delivered again, which items bear.

A message that is none, that makes Celery fail whenever it is handed over, or that is rejected for good goes to the dead
letters with the reason, and the next one is handed over.

Queues of one priority are served fairly; `queue_order_strategy` has no effect. Needs Redis 7.0 or Valkey 7.2.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from queue import Empty
from typing import Any, NoReturn
from uuid import uuid4

from kombu.utils.encoding import bytes_to_str
from kombu.utils.json import dumps
from redis.exceptions import NoScriptError, OutOfMemoryError

from queue_manager.broker import bulk_publish, connection_guard, scripts, unacked
from queue_manager.broker.connection_guard import refusal_is_a_connection_error
from queue_manager.broker.dead_letters import PUT_ASIDE
from queue_manager.broker.envelope import Message, NotAMessage, read
from queue_manager.broker.poller import Poller
from queue_manager.broker.unacked import LOST
from queue_manager.broker.waiter import Waiter
from queue_manager.core.errors import ConfigurationError, reason
from queue_manager.core.log import get_logger

TAKE_AT_MOST = 256  # messages in one round trip: more would keep other clients of the server waiting
UNBOUNDED = 2**31  # connections of a pool: one for each list that is waited on

log = get_logger("QM/transport")


class Channel(bulk_publish.Channel):
    """A channel that takes messages in batches.

    Raises:
        ConfigurationError: an option that it does not have is set.
    """

    QoS = unacked.QoS
    Message = Message

    awaited_priorities: Sequence[int] | None = None
    """Priority steps whose lists are each waited on over a connection of their own; `None`: all of them.

    The other lists are looked at every second while nothing comes, and waited on once they have had a message.
    """

    from_transport_options = (
        *bulk_publish.Channel.from_transport_options,
        "awaited_priorities",
        # Names of keys that stock kombu does not have as options.
        "keyprefix_queue",
        "keyprefix_binding_permanent",
        "keyprefix_binding_deadlines",
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._tags = uuid4().hex
        self._takes = 0
        self._is_known = False  # whether the server has the script
        self._is_dry = False  # whether there was nothing more to take
        self._asked_for: tuple[list[str], int] = ([], 0)
        self._without_ack: set[str] = set()
        self._used_lists: set[str] = set()
        self.waiters: dict[str, Waiter] = {}
        super().__init__(*args, **kwargs)
        if self.global_keyprefix or not self.ack_emulation:
            raise ConfigurationError("broker_transport_options: global_keyprefix and ack_emulation cannot be set here")

    @property
    def has_event_loop(self) -> bool:
        return getattr(self.connection, "has_event_loop", False)

    def has_taken(self, tag: str) -> bool:
        return tag.startswith(self._tags)

    def basic_consume(self, queue: str, no_ack: bool, *args: Any, **kwargs: Any) -> Any:
        self._without_ack.add(queue) if no_ack else self._without_ack.discard(queue)
        self._is_dry = False
        return super().basic_consume(queue, no_ack, *args, **kwargs)

    # Taking

    def _brpop_start(self, timeout: float | None = None) -> None:
        """Ask for messages, unless there are none: then the waiters tell when there is one."""
        queues = self._queue_cycle.consume(len(self.active_queues))
        room = self.qos.room
        if not queues or self._is_dry or room == 0:
            return
        most = min(TAKE_AT_MOST, room or TAKE_AT_MOST)
        keys, arguments = self._question(queues, most)
        script = ("EVALSHA", scripts.TAKE.sha) if self._is_known else ("EVAL", scripts.TAKE.source)
        self._asked_for = keys[2:], most
        self._in_poll = self.client.connection
        self._brpop_sent_at = time.monotonic()
        self.client.connection.send_command(*script, len(keys), *keys, *arguments)

    def _question(self, queues: Sequence[str], most: int) -> tuple[list[str], list[Any]]:
        """Return the keys and arguments of `scripts.TAKE`."""
        self._takes += 1
        lists = [(queue, step) for step in self.priority_steps for queue in queues]
        keys = [self.unacked_key, self.unacked_index_key, *(self._q_for_pri(*one) for one in lists)]
        behind = (part for queue, step in lists for part in (f', "", {dumps(queue)}]', self.priority(step)))
        return keys, [f"{self._tags}-{self._takes}", most, len(queues), *behind]

    def _brpop_read(self, **options: Any) -> bool:
        """Read what was taken, and hand it over. Raises `Empty`: nothing was."""
        try:
            with refusal_is_a_connection_error():
                taken = self.client.parse_response(self.client.connection, "EVALSHA", **options)
            self._is_known = True
        except connection_guard.BrokerRefuses as error:
            if not isinstance(error.__cause__, NoScriptError):
                raise
            self._is_known = False  # the server was started anew
            raise Empty from None
        except self.connection_errors:
            self.client.connection.disconnect()
            raise
        finally:
            self._in_poll = None
            self._flush_brpop_reauth()  # only while no answer is awaited
        lists, most = self._asked_for
        self._is_dry = len(taken) < 3 * most
        unwanted = []
        for number, tag, message in zip(*[iter(taken)] * 3, strict=True):
            name = lists[number - 1]
            self._used_lists.add(name)
            if self._closing or self._queue_of(name) not in self.connection._callbacks:
                unwanted.append(bytes_to_str(tag))
            else:
                self._hand_over(name, bytes_to_str(tag), message)
        self.qos.give_back(unwanted)
        if not taken:
            raise Empty
        return True

    def _queue_of(self, name: str) -> str:
        return name.rsplit(self.sep, 1)[0]

    def _hand_over(self, name: str, tag: str, raw: bytes) -> None:
        queue = self._queue_of(name)
        self._queue_cycle.rotate(queue)
        try:
            message = read(raw)
            message["properties"]["delivery_tag"] = tag
            self.connection._deliver(message, queue)
            if queue in self._without_ack:
                self.qos.done(tag)
        except LOST:
            raise
        except NotAMessage as error:
            self.qos.bury(tag, str(error))
        except Exception as error:
            self._put_aside(message, tag, name, error)

    def _put_aside(self, message: dict[str, Any], tag: str, name: str, error: Exception) -> None:
        """Hand it over once more, after all others; the second time the message itself must be what is wrong."""
        log.error("A message could not be handed over", list=name, error=reason(error), exc_info=error)
        if self.qos.is_answered(tag):
            return
        if message["properties"].get(PUT_ASIDE):
            self.qos.bury(tag, f"It fails whenever it is handed over: {type(error).__name__}: {reason(error)}")
            self.qos.forget(tag)
        else:
            message["properties"][PUT_ASIDE] = True
            self.qos.put_last(tag, name, dumps(message))

    def basic_get(self, queue: str, no_ack: bool = False, **_: Any) -> Any:
        """Take one message, registered in the same step. Returns `None` if there is none."""
        keys, arguments = self._question([queue], 1)
        while True:
            with self.conn_or_acquire() as client:
                taken = scripts.TAKE(client, keys, arguments)
                self._maybe_update_queues_expire(client, queue)
            if not taken:
                return None
            _, tag, raw = taken
            try:
                message = self.Message(read(raw), channel=self)
            except Exception as error:
                self.qos.bury(bytes_to_str(tag), reason(error))
                continue
            message.delivery_tag = message.properties["delivery_tag"] = bytes_to_str(tag)
            self.qos.done(message.delivery_tag) if no_ack else self.qos.append(message, message.delivery_tag)
            return message

    def _receive_one(self, client: Any) -> Any:
        """Read a broadcast. One that nobody can read is dropped, as one that nobody hears."""
        try:
            return super()._receive_one(client)
        except (Empty, *LOST):
            raise
        except Exception as error:
            log.error("A broadcast could not be handed over", error=reason(error), exc_info=error)
            return None

    def _do_restore_message(self, payload: Any, exchange: str, routing_key: str, *args: Any, **kwargs: Any) -> None:
        """Put back what the stock transport registered. Raises what says that this would lose it."""
        if not isinstance(payload, dict) or not self._lookup(exchange, routing_key):
            raise NotAMessage(f"no queue is bound to exchange {exchange!r} by {routing_key!r}")
        super()._do_restore_message(payload, exchange, routing_key, *args, **kwargs)

    def _queue_bind(self, exchange: str, routing_key: str, pattern: str, queue: str) -> None:
        try:
            super()._queue_bind(exchange, routing_key, pattern, queue)
        except OutOfMemoryError:
            keys = [self.keyprefix_queue % exchange, self.keyprefix_binding_permanent % exchange]
            with self.conn_or_acquire() as client:
                scripts.ADD(client, keys, [self.sep.join((routing_key or "", pattern or "", queue or ""))])

    # Waiting

    def wait_for_messages(self, poller: Poller) -> None:
        """While there is nothing, have the server tell when one of the lists has a message."""
        if not (self._is_dry and self.active_queues and self.qos.can_consume()):
            return
        for name in self._awaited_lists():
            waiter = self.waiters.get(name)
            if waiter is None:
                waiter = self.waiters[name] = Waiter(self._create_client(asynchronous=True), name)
                self.handlers[_kind(name)] = partial(self._awoken, waiter)
            if not waiter.is_waiting:
                poller.listen(self, waiter.client, _kind(name))
                waiter.ask()

    def _awaited_lists(self) -> list[str]:
        awaited = self.priority_steps if self.awaited_priorities is None else self.awaited_priorities
        lists = [(self._q_for_pri(queue, step), step) for step in self.priority_steps for queue in self.active_queues]
        return [name for name, step in lists if step in awaited or name in self._used_lists]

    def _awoken(self, waiter: Waiter) -> NoReturn:
        try:
            waiter.answered()
        except self.connection_errors:
            waiter.client.connection.disconnect()
            raise
        self._is_dry = False
        raise Empty  # it brings no message: those are asked for now

    def _connparams(self, asynchronous: bool = False) -> dict[str, Any]:
        params = super()._connparams(asynchronous)
        return {**params, "max_connections": UNBOUNDED} if asynchronous else params

    def _on_connection_disconnect(self, connection: Any) -> None:
        for waiter in self.waiters.values():
            if getattr(waiter.client, "connection", None) is connection:
                waiter.lost()
        super()._on_connection_disconnect(connection)

    def _poll_error(self, type: str, **options: Any) -> None:
        if type in ("BRPOP", "LISTEN"):
            super()._poll_error(type, **options)
        else:
            self.handlers[type]()

    # Closing

    def close(self) -> None:
        """Give back what was taken, delivered or not; without a connection the timeout does."""
        self._closing = True
        if self._in_poll:
            with suppress(Empty, *LOST):
                self._brpop_read()
        super().close()

    def queue_delete(self, queue: str, *args: Any, **kwargs: Any) -> None:
        """Delete a queue; one that a closing channel cannot delete any more is left, or the rest would stay open."""
        try:
            super().queue_delete(queue, *args, **kwargs)
        except LOST:
            if not self._closing:
                raise


def _kind(name: str) -> str:
    return f"WAIT {name}"


class Transport(connection_guard.Transport):
    """`redis://`, in batches."""

    Channel = Channel
    has_event_loop = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.cycle = Poller()

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        self.has_event_loop = True
        super().register_with_event_loop(connection, loop)
        if self.cycle.renewing is not None:
            self.cycle.renewing.cancel()
        self.cycle.renewing = loop.call_repeatedly(self._renewal_interval, self.cycle.renew)

    def keep_by_thread(self) -> None:
        """Renew and acknowledge from a thread: for a worker whose event loop does not turn while tasks run."""
        self.cycle.keep_by_thread(self._renewal_interval)

    @property
    def _renewal_interval(self) -> float:
        options = self.client.transport_options
        timeout: float = options.get("visibility_timeout", Channel.visibility_timeout)
        return timeout / 4


class SecureTransport(Transport, connection_guard.SecureTransport):
    """`rediss://`, in batches."""
