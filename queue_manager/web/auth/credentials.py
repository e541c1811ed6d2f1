"""Telling who sends a request, and whether somebody who was let in still is."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hmac import compare_digest
from http import HTTPStatus

from starlette.datastructures import Headers

from queue_manager.core.settings import Settings
from queue_manager.web.auth import session
from queue_manager.web.auth.keys import Keys, now
from queue_manager.web.auth.principal import LOOPBACK, Who
from queue_manager.web.auth.revocation import Revocations
from queue_manager.web.auth.wrong_keys import WrongKeys
from queue_manager.web.http.errors import Refused

HEADER = "x-api-key"
ASK = "Send a key as X-API-KEY or as Authorization: Bearer, or log in at /login"


class Credentials:
    """What this process knows of who may use it.

    Raises:
        ConfigurationError: the keys are not as they should be.
    """

    def __init__(self, chosen: Settings) -> None:
        self._keys = Keys(chosen)
        self.are_needed = chosen.has_credentials
        self._revocations = Revocations(chosen.redis_url)
        self._wrong_keys = WrongKeys()

    @asynccontextmanager
    async def refreshing(self) -> AsyncIterator[None]:
        """Keep up with the log-outs of other processes while it is entered."""
        if not self.are_needed:
            yield
            return
        async with self._revocations.refreshing():
            yield

    async def who(self, headers: Headers, *, address: str | None) -> Who:
        """Return who sends this from `address`. A key counts more than a cookie. Raises `Refused`."""
        if not self.are_needed:
            return LOOPBACK
        if (key := shown_key(headers)) is not None:
            return await self.holder_or_slow_down(key, address=address)
        cookie = session.shown(headers)
        who = session.read(cookie, self._keys) if cookie else None
        if who is None or await self._revocations.is_revoked(who.session):
            raise refused("The session has ended: log in again at /login" if cookie else ASK)
        return who

    async def log_out(self, headers: Headers) -> None:
        """Revoke the session that these headers show, in every process."""
        cookie = session.shown(headers)
        who = session.read(cookie, self._keys) if cookie else None
        if who is not None and who.until is not None:
            await self._revocations.revoke(who.session, who.until.timestamp())

    async def holder_or_slow_down(self, key: str, *, address: str | None) -> Who:
        """Return whose key this is. Raises `Refused`, later and later when one address tries many."""
        try:
            return self.holder(key)
        except Refused:
            await self.slow_down(key, address=address)
            raise

    async def slow_down(self, key: str, *, address: str | None) -> None:
        """Count a wrong key. Raises `Refused` when its address has tried too many."""
        await self._wrong_keys.slow_down(key, address)

    def holder(self, key: str) -> Who:
        """Return whose key this is. Raises `Refused`."""
        found = self._keys.of(key)
        if found is None:
            raise refused("The key is unknown or has expired")
        known, digest = found
        return Who(name=known.name, role=known.role, by="key", digest=digest, until=known.expires_at)

    def still_admit(self, who: Who) -> bool:
        """Tell whether what let `who` in would do so now, with the same role."""
        if who is LOOPBACK:
            return True
        found = self._keys.named(who.name)
        if found is None or (who.until is not None and now() >= who.until) or self._revocations.is_known(who.session):
            return False
        key, digest = found
        return key.role == who.role and compare_digest(digest, who.digest)


def refused(message: str) -> Refused:
    return Refused(HTTPStatus.UNAUTHORIZED, "unauthorized", message, headers={"www-authenticate": "Bearer"})


def shown_key(headers: Headers) -> str | None:
    """Return the key that a program sent."""
    if HEADER in headers:
        return headers[HEADER]
    scheme, _, key = headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else None
