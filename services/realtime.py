"""Events to Socket.IO clients: through Redis to the Socket.IO servers, in the form of each adapter in use.

- `python`: published to the channel of python-socketio, in JSON.
- `redis`: published to the room's channel of Node servers with @socket.io/redis-adapter, in MessagePack.
- `redis-streams`: appended to the stream of Node servers with @socket.io/redis-streams-adapter, in JSON.

Guarantee: `emit` and `emit_all` return after Redis has accepted the events for every adapter, or raise; the emitter of
python-socketio would drop them silently while Redis is away. Whether any server or client receives them is unknown to
the sender. The stream is bounded.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Protocol
from uuid import uuid4

import redis
from msgspec import msgpack
from redis.client import Pipeline

from queue_manager.core.errors import AppError
from queue_manager.core.redis_client import PerProcess, make_client
from queue_manager.core.settings import redact_url, settings

NAMESPACE = "/"
NODE_SENDER = "emitter"  # a sender that the adapters do not count as a server
EVENT_PACKET, BROADCAST = 2, 3  # the packet type in Socket.IO's protocol, the message type between Node servers


class EmitFailed(AppError):
    """Redis did not take the event."""


class Events(Protocol):
    def emit(self, event: str, data: dict[str, Any], *, room: str) -> None:
        """Send `event` to every client in `room`. Raises `EmitFailed`."""

    def emit_all(self, event: str, messages: Iterable[tuple[str, dict[str, Any]]]) -> None:
        """Send (room, data) each, together. Raises `EmitFailed`: whether any was sent is uncertain."""


class RedisEvents:
    """Sends the messages that Socket.IO servers exchange, but raises when Redis did not take them."""

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
        senders = {"python": self._to_python, "redis": self._to_node, "redis-streams": self._to_node_stream}
        self._senders = [senders[adapter] for adapter in adapters]
        self._client = make_client(url, health_check_interval=30)
        self._host_id = uuid4().hex

    def emit(self, event: str, data: dict[str, Any], *, room: str) -> None:
        self.emit_all(event, [(room, data)])

    def emit_all(self, event: str, messages: Iterable[tuple[str, dict[str, Any]]]) -> None:
        try:
            with self._client.pipeline(transaction=False) as pipe:
                for room, data in messages:
                    for send in self._senders:
                        send(pipe, event, data, room)
                pipe.execute()
        except redis.RedisError as error:
            raise EmitFailed(f"Redis at {redact_url(self._url)} did not take the event: {error}") from error

    def _to_python(self, pipe: Pipeline, event: str, data: dict[str, Any], room: str) -> None:
        message = {
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
        pipe.publish(self._channel, json.dumps(message))

    def _to_node(self, pipe: Pipeline, event: str, data: dict[str, Any], room: str) -> None:
        message = [NODE_SENDER, _packet(event, data), _options(room)]
        pipe.publish(f"{self._node_key}#{NAMESPACE}#{room}#", msgpack.encode(message))

    def _to_node_stream(self, pipe: Pipeline, event: str, data: dict[str, Any], room: str) -> None:
        message = json.dumps({"packet": _packet(event, data), "opts": _options(room)})
        pipe.xadd(
            self._node_key,
            {"uid": NODE_SENDER, "nsp": NAMESPACE, "type": BROADCAST, "data": message},
            maxlen=self._stream_max_length,
            approximate=True,
        )


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
