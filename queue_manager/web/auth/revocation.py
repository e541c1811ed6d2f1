"""Sessions that were logged out, known to every web process through Redis.

Guarantee: once `POST /logout` is answered, no process accepts a copy of the cookie, and its connections are closed
within 2 s. While Redis is unavailable, sessions count as valid: the pages that show the outage need them. They still
end with their key and after 12 h. A log-out in that time takes effect here at once, elsewhere when Redis is back.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

from queue_manager.core.background import in_background
from queue_manager.core.errors import reason
from queue_manager.core.log import get_logger
from queue_manager.core.redis_client import make_async_client

REVOKED_SESSIONS_KEY = "qm:revoked-sessions"
"""Sorted set: session ids, by the time at which they would have ended, in seconds."""
# Adds sessions and removes those that have ended; with allow-oom, since a log-out must succeed on a full server.
#
# KEYS     the sorted set
# ARGV     now, in seconds; then the end and the id of each session
SAVE_SCRIPT = """#!lua flags=allow-oom
redis.call('ZADD', KEYS[1], unpack(ARGV, 2))
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', ARGV[1])
"""
REFRESH_INTERVAL = 0.5  # seconds
REDIS_TIMEOUT = 1.0  # seconds, for which a request may wait
REVOCATION_CLIENT_OPTIONS: dict[str, Any] = {
    "decode_responses": True,
    "socket_timeout": REDIS_TIMEOUT,
    "socket_connect_timeout": REDIS_TIMEOUT,
}
REDIS_ERRORS = (RedisError, OSError)

log = get_logger("QM/access")


class Revocations:
    """The revoked sessions, in this process and in Redis."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._client: Redis | None = None
        self._known: dict[str, float] = {}
        self._unsaved: dict[str, float] = {}
        self._is_away = False

    @asynccontextmanager
    async def refreshing(self) -> AsyncIterator[None]:
        """Follow the log-outs in other processes within the block."""
        async with (
            make_async_client(self._url, **REVOCATION_CLIENT_OPTIONS) as self._client,
            in_background(self._refresh_forever()),
        ):
            yield

    def is_known(self, session: str) -> bool:
        """Return True if this process knows that the session was revoked; other processes' log-outs arrive later."""
        return session in self._known

    async def is_revoked(self, session: str) -> bool:
        """Return True if the session was revoked. Reads Redis unless the result is known or Redis is unavailable."""
        if session in self._known or self._client is None or self._is_away:
            return session in self._known
        try:
            ends_at = await self._client.zscore(REVOKED_SESSIONS_KEY, session)
        except REDIS_ERRORS as error:
            self._report(error)
            return False
        if ends_at is not None:
            self._known[session] = float(ends_at)
        return ends_at is not None

    async def revoke(self, session: str, ends_at: float) -> None:
        self._known[session] = self._unsaved[session] = ends_at
        if self._client is not None:
            with suppress(*REDIS_ERRORS):  # the next refresh retries it, and logs the error
                await self._save(self._client)

    async def _refresh_forever(self) -> None:
        while True:
            try:
                await self._refresh()
            except REDIS_ERRORS as error:
                self._report(error)
            else:
                self._is_away = False
            await asyncio.sleep(REFRESH_INTERVAL)

    async def _refresh(self) -> None:
        assert self._client is not None
        now = time.time()
        found: Any = await self._client.zrangebyscore(REVOKED_SESSIONS_KEY, now, "+inf", withscores=True)
        self._known |= {str(session): float(ends_at) for session, ends_at in found}
        self._known = {session: ends_at for session, ends_at in self._known.items() if ends_at > now}
        await self._save(self._client)

    async def _save(self, client: Redis) -> None:
        unsaved, now = dict(self._unsaved), time.time()
        if unsaved:
            scored = [part for session, ends_at in unsaved.items() for part in (ends_at, session)]
            await client.eval(SAVE_SCRIPT, 1, REVOKED_SESSIONS_KEY, now, *scored)
            for session in unsaved:
                self._unsaved.pop(session, None)

    def _report(self, error: Exception) -> None:
        if not self._is_away:
            log.warning("Logouts in other processes are unknown until Redis is back", error=reason(error))
        self._is_away = True
