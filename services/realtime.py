"""Events to the browsers: Socket.IO's Redis channel, which every Socket.IO server of the product listens on.

Guarantee: `emit` and `emit_all` return after Redis took the events, or raise; python-socketio's own emitter would drop
them in silence while Redis is away. Whether anybody listens is not known to the sender.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Protocol
from uuid import uuid4

import redis

from queue_manager.core.errors import AppError
from queue_manager.core.redis_client import PerProcess, make_client
from queue_manager.core.settings import redact_url, settings


class EmitFailed(AppError):
    """Redis did not take the event."""


class Events(Protocol):
    def emit(self, event: str, data: dict[str, Any], *, room: str) -> None:
        """Send `event` to every client in `room`. Raises `EmitFailed`."""

    def emit_all(self, event: str, messages: Iterable[tuple[str, dict[str, Any]]]) -> None:
        """Send (room, data) each, together. Raises `EmitFailed`: whether any was sent is uncertain."""


class RedisEvents:
    """Publishes the messages that python-socketio's managers exchange, but raises when they could not be sent."""

    def __init__(self, url: str, *, channel: str) -> None:
        self._url, self._channel = url, channel
        self._client = make_client(url, health_check_interval=30)
        self._host_id = uuid4().hex

    def emit(self, event: str, data: dict[str, Any], *, room: str) -> None:
        self.emit_all(event, [(room, data)])

    def emit_all(self, event: str, messages: Iterable[tuple[str, dict[str, Any]]]) -> None:
        try:
            with self._client.pipeline(transaction=False) as pipe:
                for room, data in messages:
                    pipe.publish(self._channel, self._message(event, data, room))
                pipe.execute()
        except redis.RedisError as error:
            raise EmitFailed(f"Redis at {redact_url(self._url)} did not take the event: {error}") from error

    def _message(self, event: str, data: dict[str, Any], room: str) -> str:
        message = {
            "method": "emit",
            "event": event,
            "data": [data],
            "binary": False,
            "namespace": "/",
            "room": room,
            "skip_sid": None,
            "callback": None,
            "host_id": self._host_id,
        }
        return json.dumps(message)


events = PerProcess(lambda: RedisEvents(settings().redis_url, channel=settings().socketio_channel))
"""This process's emitter, connected at its first event."""
