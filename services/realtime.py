"""Events to the browsers: Socket.IO's Redis channel, which every Socket.IO server of the product listens on.

Guarantee: `emit` returns after Redis took the event, or raises; python-socketio's own emitter would drop it in
silence while Redis is away. Whether anybody listens is not known to the sender.
"""

from __future__ import annotations

import os
from typing import Any, Protocol

import redis
import socketio
from redis.backoff import NoBackoff
from redis.retry import Retry

from queue_manager.core.errors import AppError
from queue_manager.core.settings import masked, settings


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
            # The caller decides how often an emit is tried; a repeat inside the client would double the event.
            redis_options={
                "socket_timeout": 5,
                "socket_connect_timeout": 2,
                "health_check_interval": 30,
                "retry": Retry(NoBackoff(), 0),
            },
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


_emitters: dict[int, RedisEvents] = {}


def events() -> RedisEvents:
    """Return this process's emitter, connected at its first event."""
    process = os.getpid()
    if process not in _emitters:
        _emitters[process] = RedisEvents(settings().redis_url, channel=settings().socketio_channel)
    return _emitters[process]
