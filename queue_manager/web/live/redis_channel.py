"""Events from Redis to the Socket.IO clients of this process.

Guarantee: after an outage of Redis, events are received again within about a second; python-socketio's own listener
would wait up to a minute. Events that are published during the outage are lost: a channel stores nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import socketio
from redis.asyncio import Redis
from redis.exceptions import RedisError

from queue_manager.core.log import get_logger
from queue_manager.core.redis_client import describe_outage, make_async_client

RESUBSCRIBE_DELAY = 1.0  # seconds
HEALTH_CHECK_INTERVAL = 5  # seconds: detects half-open connections

log = get_logger("QM/live")


class RedisChannel(socketio.AsyncRedisManager):  # type: ignore[misc]  # python-socketio has no types
    """python-socketio's manager, with a listener that subscribes again within about a second after an outage."""

    def __init__(self, url: str, *, channel: str) -> None:
        super().__init__(url, channel=channel)
        self._is_away = False

    def _redis_connect(self) -> None:
        self.redis = self._client()
        self.connected = True

    def _client(self) -> Redis:
        return make_async_client(self.redis_url, health_check_interval=HEALTH_CHECK_INTERVAL)

    async def _listen(self) -> AsyncIterator[bytes]:
        while True:
            try:
                async for data in self._subscribed():
                    yield data
            except (RedisError, OSError) as error:
                self._report(is_away=True, error=error)
                await asyncio.sleep(RESUBSCRIBE_DELAY)

    async def _subscribed(self) -> AsyncIterator[bytes]:
        async with self._client() as client, client.pubsub() as pubsub:
            await pubsub.subscribe(self.channel)
            while True:
                message = await pubsub.get_message(ignore_subscribe_messages=True, timeout=RESUBSCRIBE_DELAY)
                self._report(is_away=False)
                if message is not None:
                    yield message["data"]

    def _report(self, *, is_away: bool, error: Exception | None = None) -> None:
        has_changed, self._is_away = is_away != self._is_away, is_away
        if has_changed and error is not None:
            log.warning(f"No live events: {describe_outage(self.redis_url, error)}; retrying until it is back")
        elif has_changed:
            log.info("Live events flow again")
