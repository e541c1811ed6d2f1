"""Events to the browsers: Socket.IO's Redis channel, which every Socket.IO server of the product listens on.

Guarantee: `emit` returns after Redis took the event, or raises; python-socketio's own emitter would drop it in
silence while Redis is away. Whether anybody listens is not known to the sender.
"""

from __future__ import annotations

from typing import Any, Protocol

import redis
import socketio

from queue_manager.core.errors import AppError
from queue_manager.core.per_process import PerProcess
from queue_manager.core.settings import masked, settings
from queue_manager.transport.server import CLIENT_OPTIONS


class EmitFailed(AppError):
    """Redis did not take the event."""


class Events(Protocol):
    def emit(self, event: str, data: dict[str, Any], *, room: str) -> None:
        """Send `event` to every client in `room`. Raises `EmitFailed`."""


class RedisEvents(socketio.RedisManager):  # type: ignore[misc]  # python-socketio has no types
    """A write-only Socket.IO emitter whose failures are seen."""

    def __init__(self, url: str, *, channel: str) -> None:
        super().__init__(
            url,
            channel=channel,
            write_only=True,
            redis_options={**CLIENT_OPTIONS, "health_check_interval": 30},
        )

    def emit(self, event: str, data: dict[str, Any], *, room: str) -> None:
        super().emit(event, data, room=room)

    def _publish(self, data: dict[str, Any]) -> None:
        try:
            if not self.connected:
                self._redis_connect()
            self.redis.publish(self.channel, self.json.dumps(data))
        except redis.RedisError as error:
            raise EmitFailed(f"Redis at {masked(self.redis_url)} did not take the event: {error}") from error


events = PerProcess(lambda: RedisEvents(settings().redis_url, channel=settings().socketio_channel))
"""This process's emitter, connected at its first event."""
