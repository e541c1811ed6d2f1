"""Events to the browsers: Socket.IO's Redis channel, which every Socket.IO server of the product listens on.

Guarantee: `emit` and `emit_all` return after Redis took the events, or raise; python-socketio's own emitter would drop
them in silence while Redis is away. Whether anybody listens is not known to the sender.
"""

from __future__ import annotations

from collections.abc import Iterable
from threading import Lock
from typing import Any, Protocol

import redis
import socketio

from queue_manager.core.errors import AppError
from queue_manager.core.per_process import PerProcess
from queue_manager.core.redis_client import client_options
from queue_manager.core.settings import redact_url, settings


class EmitFailed(AppError):
    """Redis did not take the event."""


class Events(Protocol):
    def emit(self, event: str, data: dict[str, Any], *, room: str) -> None:
        """Send `event` to every client in `room`. Raises `EmitFailed`."""

    def emit_all(self, event: str, messages: Iterable[tuple[str, dict[str, Any]]]) -> None:
        """Send (room, data) each, together. Raises `EmitFailed`: whether any was sent is uncertain."""


class RedisEvents(socketio.RedisManager):  # type: ignore[misc]  # python-socketio has no types
    """A write-only Socket.IO emitter whose failures are seen."""

    def __init__(self, url: str, *, channel: str) -> None:
        super().__init__(
            url,
            channel=channel,
            write_only=True,
            redis_options={**client_options(url), "health_check_interval": 30},
        )
        self._lock = Lock()

    def emit(self, event: str, data: dict[str, Any], *, room: str) -> None:
        self.emit_all(event, [(room, data)])

    def emit_all(self, event: str, messages: Iterable[tuple[str, dict[str, Any]]]) -> None:
        try:
            with self._lock:
                self._send([(room, data) for room, data in messages], event)
        except redis.RedisError as error:
            raise EmitFailed(f"Redis at {redact_url(self.redis_url)} did not take the event: {error}") from error

    def _send(self, messages: list[tuple[str, dict[str, Any]]], event: str) -> None:
        self._collected: list[str] = []
        for room, data in messages:
            super().emit(event, data, room=room)
        if not self.connected:
            self._redis_connect()
        with self.redis.pipeline(transaction=False) as pipe:
            for message in self._collected:
                pipe.publish(self.channel, message)
            pipe.execute()

    def _publish(self, data: dict[str, Any]) -> None:
        self._collected.append(self.json.dumps(data))


events = PerProcess(lambda: RedisEvents(settings().redis_url, channel=settings().socketio_channel))
"""This process's emitter, connected at its first event."""
