"""Events to Socket.IO clients: through Redis to the Socket.IO servers, in the form of each adapter in use.

- `python`: published to the channel of python-socketio, in JSON.
- `redis`: published to the room's channel of Node servers with @socket.io/redis-adapter, in MessagePack.
- `redis-streams`: appended to the stream of Node servers with @socket.io/redis-streams-adapter, in JSON.

Guarantee: `emit_all` returns after a primary has accepted the events for every adapter, or raises; the emitter of
python-socketio would drop them silently while Redis is unavailable. After a restart or a failover of Redis,
Socket.IO servers subscribe again within `RESUBSCRIBE_TIME`; `emit_all` then returns when to emit the events again.
Whether any client receives them is unknown to the sender. The stream is bounded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any
from uuid import uuid4

import redis
from msgspec import json, msgpack

from queue_manager.core.clock import minutes
from queue_manager.core.errors import AppError, ErrorText
from queue_manager.core.process import PerProcess
from queue_manager.core.redis_client import Script, make_client
from queue_manager.core.settings import redact_url, settings
from queue_manager.telemetry import tracing

NAMESPACE = "/"
NODE_SENDER = "emitter"  # a sender that the adapters do not count as a server
EVENT_PACKET, BROADCAST = 2, 3  # the packet type in Socket.IO's protocol, the message type between Node servers
RESUBSCRIBE_TIME = minutes(1)  # the longest wait of python-socketio between two attempts to reach Redis
SERVER_KEY = "qm:events:server"

# Send events, and record the run id of the server and the time of its first event. A server has a new run id at each
# start.
#
# KEYS     run id and time in ms; the stream of Node servers
# ARGV     maximum length of the stream; number of messages to publish; channel and message of each; new entries of the
#          stream
# Returns  ms since the first event on this server
#
# A script, because it needs the clock and the run id of the server. It counts as a write, so a replica, or a primary
# that has lost its replicas, refuses it. Both would accept PUBLISH, and nobody would receive it.
EMIT = Script(f"""#!lua flags=allow-oom
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local run_id = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
local known, since = string.match(redis.call('GET', KEYS[1]) or '', '^(%x+):(%d+)$')
if known ~= run_id or tonumber(since) > now then -- since then, the server was started, or its clock was set back
    since = now
    redis.call('SET', KEYS[1], string.format('%s:%d', run_id, now))
end
local first_entry = 3 + 2 * ARGV[2]
for i = 3, first_entry - 1, 2 do
    redis.call('PUBLISH', ARGV[i], ARGV[i + 1])
end
for i = first_entry, #ARGV do
    redis.call('XADD', KEYS[2], 'MAXLEN', '~', ARGV[1], '*', 'uid', '{NODE_SENDER}', 'nsp', '{NAMESPACE}',
        'type', '{BROADCAST}', 'data', ARGV[i])
end
return now - since
""")


class EmitFailed(AppError):
    """Redis did not accept the event."""


class RedisEvents:
    """Sends messages in the form in which Socket.IO servers exchange them, and raises if Redis does not accept them."""

    def __init__(
        self,
        url: str,
        *,
        channel: str = "socketio",
        adapters: Iterable[str] = ("python",),
        node_key: str = "socket.io",
        stream_max_length: int = 10_000,
    ) -> None:
        self._url, self._channel = url, channel
        self._node_key, self._stream_max_length = node_key, stream_max_length
        self._adapters = tuple(adapters)
        self._client = make_client(url, health_check_interval=30)
        self._host_id = uuid4().hex

    def emit_all(self, event: str, messages: Iterable[tuple[str, dict[str, Any]]]) -> timedelta:
        """Send (room, data) each, together.

        Returns:
            The time after which the same events must be emitted again, because servers may be reconnecting to Redis;
            zero if all may be connected.

        Raises:
            EmitFailed: whether any event was sent is uncertain.
        """
        some = list(messages)
        published = [part for one in self._published(event, some) for part in one]
        keys = [SERVER_KEY, self._node_key]
        arguments = [self._stream_max_length, len(published) // 2, *published, *self._entries(event, some)]
        about = {"queue_manager.event": event}
        try:
            with tracing.publishing(self._channel, system="socketio", attributes=about):
                since_ms = EMIT(self._client, keys, arguments)
        except redis.RedisError as error:
            text = f"Redis at {redact_url(self._url)} did not take the event: {error}"
            raise EmitFailed(ErrorText.of(text, error)) from error
        return max(RESUBSCRIBE_TIME - timedelta(milliseconds=since_ms), timedelta(0))

    def _published(self, event: str, messages: Sequence[tuple[str, dict[str, Any]]]) -> Iterator[tuple[str, bytes]]:
        """Yield the channel and the text of each message to publish."""
        if "python" in self._adapters:
            for room, data in messages:
                yield self._channel, json.encode(self._python_message(event, data, room))
        if "redis" in self._adapters:
            for room, data in messages:
                message = [NODE_SENDER, _packet(event, data), _options(room)]
                yield f"{self._node_key}#{NAMESPACE}#{room}#", msgpack.encode(message)

    def _python_message(self, event: str, data: dict[str, Any], room: str) -> dict[str, Any]:
        return {
            "method": "emit",
            "event": event,
            "data": [data],
            "binary": False,
            "namespace": NAMESPACE,
            "room": room,
            "skip_sid": None,
            "callback": None,
            "host_id": self._host_id,
        }

    def _entries(self, event: str, messages: Sequence[tuple[str, dict[str, Any]]]) -> Iterator[bytes]:
        """Yield the entries to append to the stream of Node servers."""
        if "redis-streams" in self._adapters:
            for room, data in messages:
                yield json.encode({"packet": _packet(event, data), "opts": _options(room)})


def _packet(event: str, data: dict[str, Any]) -> dict[str, Any]:
    return {"type": EVENT_PACKET, "data": [event, data], "nsp": NAMESPACE}


def _options(room: str) -> dict[str, Any]:
    return {"rooms": [room], "except": [], "flags": {}}


def _make_events() -> RedisEvents:
    chosen = settings()
    return RedisEvents(
        chosen.redis_url,
        channel=chosen.socketio_channel,
        adapters=chosen.socketio_adapter,
        node_key=chosen.socketio_node_key,
        stream_max_length=chosen.socketio_stream_max_length,
    )


events = PerProcess(_make_events)
"""This process's emitter, connected at its first event."""
