"""Sessions that were logged out, which every web process knows through Redis.

Guarantee: once `POST /logout` is answered, no process accepts a copy of the cookie; what is connected with it is
disconnected within 2 s. While Redis is away a session counts as valid: the pages that show the outage need it, and it
still ends with its key and after 12 h. A log-out of that time counts here at once, elsewhere when Redis is back.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from queue_manager.core.errors import reason
from queue_manager.core.log import get_logger

KEY = "qm:revoked-sessions"
"""Sorted set: the ids of sessions, by the moment at which they would have ended, in seconds."""
# Add sessions, and remove those that have ended. With allow-oom: a log-out must count although the server is full.
#
# KEYS     the sorted set
# ARGV     now, in seconds; then the end and the id of each session
SAVE = """#!lua flags=allow-oom
redis.call('ZADD', KEYS[1], unpack(ARGV, 2))
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', ARGV[1])
"""
REFRESH_INTERVAL = 0.5  # seconds
TIMEOUT = 1.0  # seconds for one command, which a request may wait for
OPTIONS: dict[str, Any] = {
    "decode_responses": True,
    "socket_timeout": TIMEOUT,
    "socket_connect_timeout": TIMEOUT,
    "retry": Retry(NoBackoff(), 0),
}
OUTAGES = (RedisError, OSError)

log = get_logger("QM/access")


class Revocations:
    """The revoked sessions, as this process knows them and as Redis does."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._client: Redis | None = None
        self._known: dict[str, float] = {}
        self._unsaved: dict[str, float] = {}
        self._is_away = False

    @asynccontextmanager
    async def refreshing(self) -> AsyncIterator[None]:
        """Keep up with the other processes while it is entered."""
        async with Redis.from_url(self._url, **OPTIONS) as self._client:
            task = asyncio.create_task(self._refresh_forever())
            try:
                yield
            finally:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task

    def is_known(self, session: str) -> bool:
        """Return True if this process knows that the session was revoked; another's log-out may take a moment."""
        return session in self._known

    async def is_revoked(self, session: str) -> bool:
        """Ask Redis, unless the answer is known or Redis is away."""
        if session in self._known or self._client is None or self._is_away:
            return session in self._known
        try:
            ends_at = await self._client.zscore(KEY, session)
        except OUTAGES as error:
            self._report(error)
            return False
        if ends_at is not None:
            self._known[session] = float(ends_at)
        return ends_at is not None

    async def revoke(self, session: str, ends_at: float) -> None:
        self._known[session] = self._unsaved[session] = ends_at
        if self._client is not None:
            with suppress(*OUTAGES):  # the next refresh repeats it, and reports what is wrong
                await self._save(self._client)

    async def _refresh_forever(self) -> None:
        while True:
            try:
                await self._refresh()
            except OUTAGES as error:
                self._report(error)
            else:
                self._is_away = False
            await asyncio.sleep(REFRESH_INTERVAL)

    async def _refresh(self) -> None:
        assert self._client is not None
        now = time.time()
        found: Any = await self._client.zrangebyscore(KEY, now, "+inf", withscores=True)
        self._known |= {str(session): float(ends_at) for session, ends_at in found}
        self._known = {session: ends_at for session, ends_at in self._known.items() if ends_at > now}
        await self._save(self._client)

    async def _save(self, client: Redis) -> None:
        unsaved, now = dict(self._unsaved), time.time()
        if unsaved:
            scored = [part for session, ends_at in unsaved.items() for part in (ends_at, session)]
            await client.eval(SAVE, 1, KEY, now, *scored)
            for session in unsaved:
                self._unsaved.pop(session, None)

    def _report(self, error: Exception) -> None:
        if not self._is_away:
            log.warning("Log-outs of other processes are not known until Redis is back", error=reason(error))
        self._is_away = True
