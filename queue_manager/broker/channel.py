"""A Redis channel of kombu that takes messages in batches, and loses none.

Stock kombu takes a message in one round trip and registers it as unacknowledged in another: if the worker is killed in
between, the message is lost. Here one script takes up to `TAKE_BATCH_SIZE` messages and registers them.

Malformed messages, messages that fail dispatch twice, and rejected messages are dead-lettered with the reason. They do
not block the messages behind them.

Stock kombu 5.7 closes its channels when it loses the connection. A closing channel requeues its messages over a
connection that is `None` by then, so the worker exits with an AttributeError. Here it raises a connection error, after
which Celery reconnects.

An idle worker waits until the server notifies it of a change of a list (`queue_lists.py`).

Queues of one priority are served fairly; `queue_order_strategy` has no effect. Needs Redis 7.0 or Valkey 7.2.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from queue import Empty
from typing import Any, NoReturn
from uuid import uuid4

from kombu.exceptions import BatchPublishError
from kombu.transport import redis as stock
from kombu.utils.encoding import bytes_to_str
from kombu.utils.json import dumps
from redis.exceptions import NoPermissionError, NoScriptError, OutOfMemoryError, ResponseError

from queue_manager.broker import scripts
from queue_manager.broker.dead_letters import FAILED_ONCE
from queue_manager.broker.envelope import BrokerMessage, NotAMessage, read, write
from queue_manager.broker.errors import ConnectionLost, refusals_as_connection_errors
from queue_manager.broker.options import options_beyond_url
from queue_manager.broker.queue_lists import EmptyQueues, PriorityList, PriorityLists
from queue_manager.broker.unacked import UnackedMessages
from queue_manager.core import redis_client
from queue_manager.core.errors import ConfigurationError, reason
from queue_manager.core.log import get_logger
from queue_manager.core.redis_client import REDIS_OUTAGES
from queue_manager.core.settings import settings

TAKE_BATCH_SIZE = 500  # messages; a larger batch would delay other clients of the server
MAX_REQUESTED_QUEUES = 50  # per request: Lua's stack has room for the lists of some hundred, and other clients wait
PUSH_BATCH_SIZE = 500  # messages per command: about half a megabyte

log = get_logger("QM/transport")


class Channel(stock.Channel):
    """A channel that takes, delivers and publishes messages in batches.

    Raises:
        ConfigurationError: a transport option is set that this channel does not support.
    """

    QoS = UnackedMessages
    Message = BrokerMessage
    connection_class = redis_client.Connection
    connection_class_ssl = redis_client.SecureConnection

    take_batch_size: int = TAKE_BATCH_SIZE
    """Maximum number of messages that are taken at once."""

    is_of_settings: bool = False
    """Whether the broker is that of the settings, whose URL may have options that kombu's URL lacks."""

    from_transport_options = (
        *stock.Channel.from_transport_options,
        "is_of_settings",
        # Names of keys that stock kombu does not accept as options.
        "keyprefix_queue",
        "keyprefix_binding_permanent",
        "keyprefix_binding_deadlines",
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._tag_prefix = uuid4().hex
        self._take_count = 0
        self._is_script_loaded = False
        self._lists = PriorityLists(self._list_names)
        self._requested: tuple[list[PriorityList], int, dict[str, int]] = ([], 0, {})
        """The lists, and how many messages at most: of all, and of each queue."""
        self.empty_queues = EmptyQueues(self._lists)
        self._no_ack_queues: set[str] = set()
        self._captured: list[tuple[str, dict[str, Any]]] | None = None
        self._command_client: Any = None
        with refusals_as_connection_errors(but=(NoPermissionError,)):  # of a ping
            super().__init__(*args, **kwargs)
        if self.global_keyprefix or not self.ack_emulation:
            raise ConfigurationError("broker_transport_options: global_keyprefix and ack_emulation cannot be set here")

    def has_taken(self, tag: str) -> bool:
        """Return True if a batch of this channel took the message, which is then registered."""
        return tag.startswith(self._tag_prefix)

    def basic_consume(self, queue: str, no_ack: bool, *args: Any, **kwargs: Any) -> Any:
        self._no_ack_queues.add(queue) if no_ack else self._no_ack_queues.discard(queue)
        self.empty_queues.discard(queue)
        return super().basic_consume(queue, no_ack, *args, **kwargs)

    # Connections

    def _connparams(self, asynchronous: bool = False) -> dict[str, Any]:
        # Every new pool asks here, so this one place covers ack, reject, restore and publish.
        if self.connection is None or self.connection.client is None:
            raise ConnectionLost("the connection of this channel was lost")
        params: dict[str, Any] = super()._connparams(asynchronous=asynchronous)
        if self.is_of_settings:
            params |= options_beyond_url(settings().broker)
        return {**params, "protocol": 3} if asynchronous else params

    def _create_client(self, asynchronous: bool = False) -> Any:
        """Return the client for commands, created once per pool; stock kombu creates one for each ack.

        The client owns no connection, only the pool, which threads may share and which kombu replaces after a
        disconnect or a fork. An asynchronous client owns a connection and is always a new one.
        """
        if asynchronous:
            return super()._create_client(asynchronous=True)
        if self._command_client is None or self._command_client.connection_pool is not self.pool:
            self._command_client = super()._create_client()
        return self._command_client

    # Taking

    def _brpop_start(self, timeout: float | None = None) -> None:
        """Request a batch of messages of the queues that may have some."""
        connection = self.client.connection
        self.empty_queues.ask_for_notifications(connection)
        free_slots = self.qos.free_slots
        rooms = self._queues_to_request()
        if not rooms:
            # Notifications that came with the last reply do not make the connection readable.
            self.empty_queues.read_notifications(connection)
            rooms = self._queues_to_request()
        if not rooms or free_slots == 0:
            return
        lists, script = self._lists.of(rooms), scripts.TAKE_MESSAGES
        most = min(self.take_batch_size, free_slots or self.take_batch_size)
        self._requested = lists, most, rooms
        keys, arguments = self._take_arguments(lists, most, rooms)
        command = ("EVALSHA", script.sha) if self._is_script_loaded else ("EVAL", script.source)
        connection.send_command(*command, len(keys), *keys, *arguments)
        self._in_poll, self._brpop_sent_at = connection, time.monotonic()

    def _queues_to_request(self) -> dict[str, int]:
        """Return the next queues that may have messages, in the order of their turns, with the room of each.

        With each request, some of them are found empty, or those with messages move behind the others.
        """
        in_turn = self._queue_cycle.consume(len(self.active_queues))
        waiting = (one for one in in_turn if one not in self.empty_queues)
        rooms = ((one, self.qos.room(one, self.take_batch_size)) for one in waiting)
        return dict(islice(((one, room) for one, room in rooms if room), MAX_REQUESTED_QUEUES))

    def _list_names(self, queue: str) -> list[tuple[str, int]]:
        """Return the names of a queue's lists, each with its priority."""
        return [(self._q_for_pri(queue, step), self.priority(step)) for step in self.priority_steps]

    def _take_arguments(
        self, lists: Sequence[PriorityList], batch_size: int, rooms: dict[str, int]
    ) -> tuple[list[str], list[Any]]:
        """Return the keys and arguments of `scripts.TAKE_MESSAGES`, for the lists of the queues in `rooms`."""
        self._take_count += 1
        keys = [self.unacked_key, self.unacked_index_key, *(one.name for one in lists)]
        of_lists = (part for one in lists for part in (one.ending, one.priority))
        return keys, [f"{self._tag_prefix}-{self._take_count}", batch_size, len(rooms), *rooms.values(), *of_lists]

    def _brpop_read(self, **options: Any) -> bool:
        """Deliver the batch that was requested. Raises `Empty` if there is no message."""
        reply, (lists, most, rooms) = self._read_reply(**options), self._requested
        self._is_script_loaded = True
        if len(reply) < 3 * most:
            taken = Counter(lists[number - 1].queue for number in reply[::3])
            self.empty_queues.update(queue for queue, room in rooms.items() if taken[queue] < room)
        if not reply:
            raise Empty
        for number in reversed(dict.fromkeys(reversed(reply[::3]))):  # each once, in the order of its last message
            self._queue_cycle.rotate(lists[number - 1].queue)  # so that the other queues have their turn first
        unwanted = []
        self.qos.arriving = [bytes_to_str(tag) for tag in reply[1::3]]
        try:
            for number, tag, message in zip(reply[::3], self.qos.arriving, reply[2::3], strict=True):
                source = lists[number - 1]
                if self._closing or source.queue not in self.connection._callbacks:
                    unwanted.append(tag)
                else:
                    self._dispatch(source, tag, message)
        finally:
            self.qos.arriving = ()
        self.qos.requeue_first(unwanted)
        return True

    def _read_reply(self, **options: Any) -> Any:
        """Return the list number, tag and message of each message that was taken, in one flat list."""
        try:
            with refusals_as_connection_errors(but=(NoScriptError,)):
                return self.client.parse_response(self.client.connection, "EVALSHA", **options)
        except NoScriptError:
            self._is_script_loaded = False  # the server was restarted
            raise Empty from None
        except self.connection_errors:
            self.client.connection.disconnect()
            raise
        finally:
            self._in_poll = None
            self._flush_brpop_reauth()  # only while no reply is awaited

    def _dispatch(self, source: PriorityList, tag: str, raw: bytes) -> None:
        """Deliver a message of a list to the consumer of its queue, or dead-letter it."""
        try:
            message = read(raw)
            message["properties"]["delivery_tag"] = tag
            self.connection._deliver(message, source.queue)
            self.qos.count_single(source.queue, tag, message["headers"])
            if source.queue in self._no_ack_queues:
                self.qos.ack_later(tag)
        except REDIS_OUTAGES:
            raise
        except NotAMessage as error:
            self.qos.dead_letter(tag, str(error))
        except Exception as error:
            self._dispatch_failed(message, tag, source.name, error)

    def _dispatch_failed(self, message: dict[str, Any], tag: str, name: str, error: Exception) -> None:
        """Move a message to the end of its list after its first failure, and to the dead letters after the second."""
        log.error("A message could not be dispatched", list=name, error=reason(error), exc_info=error)
        if self.qos.is_settled(tag):
            return
        if message["properties"].get(FAILED_ONCE):
            self.qos.dead_letter(tag, f"It failed dispatch twice: {type(error).__name__}: {reason(error)}")
            self.qos.forget(tag)
        else:
            message["properties"][FAILED_ONCE] = True
            self.qos.requeue_last(tag, name, dumps(message))

    def basic_get(self, queue: str, no_ack: bool = False, **_: Any) -> Any:
        """Take one message and register it in the same step. Returns `None` if there is none."""
        keys, arguments = self._take_arguments(self._lists.of([queue]), 1, {queue: 1})
        while True:
            with self.conn_or_acquire() as client:
                taken = scripts.TAKE_MESSAGES(client, keys, arguments)
                self._maybe_update_queues_expire(client, queue)
            if not taken:
                return None
            _, tag, raw = taken
            try:
                message = self.Message(read(raw), channel=self)
            except Exception as error:
                self.qos.dead_letter(bytes_to_str(tag), reason(error))
                continue
            message.delivery_tag = message.properties["delivery_tag"] = bytes_to_str(tag)
            self.qos.ack_later(message.delivery_tag) if no_ack else self.qos.append(message, message.delivery_tag)
            return message

    def _receive_one(self, client: Any) -> Any:
        """Read a broadcast; drop it if it cannot be read.

        Raises:
            ConnectionLost: redis-py would open an outdated connection again before it reads. Kombu would not subscribe
                again, and the read would never end.
        """
        if getattr(client.connection, "is_outdated", False):
            self._in_listen = None
            raise ConnectionLost("the server of this connection refused another one")
        try:
            return super()._receive_one(client)
        except (Empty, *REDIS_OUTAGES):
            raise
        except Exception as error:
            log.error("A broadcast could not be dispatched", error=reason(error), exc_info=error)
            return None

    # Publishing

    def encode_body(self, body: str | bytes, encoding: str | None = None) -> tuple[str, str | None]:
        """Leave text unencoded. Kombu encodes it in Base64, which costs time and a third more memory.

        Programs with kombu's own transport read both forms; a compressed body is still encoded in Base64.
        """
        try:
            return body if isinstance(body, str) else body.decode(), None
        except UnicodeDecodeError:
            encoded: tuple[str, str | None] = super().encode_body(body, encoding)
            return encoded

    @contextmanager
    def capturing(self) -> Iterator[list[tuple[str, dict[str, Any]]]]:
        """Collect published messages as (list, message), instead of sending them."""
        self._captured = []
        try:
            yield self._captured
        finally:
            self._captured = None

    def _put(self, queue: str, message: dict[str, Any], **kwargs: Any) -> None:
        if self._captured is not None:
            name = self._q_for_pri(queue, self._get_message_priority(message, reverse=False))
            self._captured.append((name, message))
        else:
            super()._put(queue, message, **kwargs)

    def _put_fanout(self, exchange: str, message: dict[str, Any], routing_key: str, **kwargs: Any) -> None:
        """Publish an event or a command. A message may contain a thousand events, which kombu would encode slowly."""
        if kwargs.get("_publish_batch") is not None:
            super()._put_fanout(exchange, message, routing_key, **kwargs)
            return
        with self.conn_or_acquire() as client:
            for topic in self._get_publish_topics(exchange, routing_key):
                client.publish(topic, write(message))

    def put_many(self, name: str, messages: Iterable[str]) -> None:
        """Push messages on a list, in order of delivery.

        Raises:
            RedisError: after an error of the connection, delivery is uncertain; after others, nothing was pushed.
            BatchPublishError: the server refused the rest after it had taken some, because its memory is full.
        """
        rest, has_pushed = iter(messages), False
        with self.conn_or_acquire() as client:
            while batch := list(islice(rest, PUSH_BATCH_SIZE)):
                try:
                    client.lpush(name, *batch)
                except ResponseError as error:
                    if not has_pushed:
                        raise
                    raise BatchPublishError(f"only some of the messages were taken: {error}") from error
                has_pushed = True

    # Queues

    def _size(self, queue: str) -> int:
        with self.conn_or_acquire() as client:
            return int(scripts.COUNT_MESSAGES(client, [one.name for one in self._lists.of([queue])], []))

    def _do_restore_message(self, payload: Any, exchange: str, routing_key: str, *args: Any, **kwargs: Any) -> None:
        """Put back a message that the stock transport registered. Raises `NotAMessage` if that would lose it."""
        if not isinstance(payload, dict) or not self._lookup(exchange, routing_key):
            raise NotAMessage(f"no queue is bound to exchange {exchange!r} by {routing_key!r}")
        super()._do_restore_message(payload, exchange, routing_key, *args, **kwargs)

    def _delete(self, queue: str, *args: Any, **kwargs: Any) -> None:
        """Delete a queue. Its lists are changed once more, so that the server forgets to notify workers of them."""
        super()._delete(queue, *args, **kwargs)
        with self.conn_or_acquire() as client:
            scripts.TOUCH_LISTS(client, [one.name for one in self._lists.of([queue])], [])

    def _queue_bind(self, exchange: str, routing_key: str, pattern: str, queue: str) -> None:
        try:
            with refusals_as_connection_errors(but=(OutOfMemoryError,)):
                super()._queue_bind(exchange, routing_key, pattern, queue)
        except OutOfMemoryError:
            keys = [self.keyprefix_queue % exchange, self.keyprefix_binding_permanent % exchange]
            with self.conn_or_acquire() as client:
                scripts.ADD_TO_SETS(client, keys, [self.sep.join((routing_key or "", pattern or "", queue or ""))])

    # Waiting

    def handle_notifications(self) -> NoReturn:
        """Handle a push of the server: lists have changed, or it closes the connection."""
        try:
            self.empty_queues.read_notifications(self.client.connection)
        except self.connection_errors:
            if self.active_queues and self.qos.can_consume():
                raise
            # After a long time without requests, the server may close an idle connection; the next request opens it.
        else:
            self.connection.cycle.request(self)
        raise Empty  # otherwise kombu would count it as a message

    # Closing

    def close(self) -> None:
        """Requeue all messages that were taken. Without a connection, the visibility timeout requeues them."""
        self._closing = True
        if self._in_poll:
            with suppress(Empty, *REDIS_OUTAGES):
                self._brpop_read()
        super().close()

    def queue_delete(self, queue: str, *args: Any, **kwargs: Any) -> None:
        """Delete a queue. A closing channel without a connection leaves it, so that it can close the rest."""
        try:
            with refusals_as_connection_errors():
                super().queue_delete(queue, *args, **kwargs)
        except REDIS_OUTAGES:
            if not self._closing:
                raise
