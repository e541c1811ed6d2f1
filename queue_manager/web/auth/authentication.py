"""Authentication: finds the principal that sends a request, and notices when a client that is connected loses access.

A principal is found by its API key or by the session cookie of a log-in. The cookie holds the name of a key and an
expiry, signed with a secret derived from that key. Every process that has the key accepts the cookie; no further secret
is configured. Guarantee: a session ends with its key or when it is revoked (see `revocation`).

Keys are those of the setting, or of a file that is read again when it changes. Guarantee: a change of the file takes
effect within a second. A file that is unreadable or invalid is logged and leaves the keys as they are: a partial write
must not lock users out.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from hashlib import sha256
from http import HTTPStatus
from pathlib import Path
from typing import Literal

import jwt
from starlette.datastructures import Headers
from starlette.requests import HTTPConnection, Request, cookie_parser
from starlette.responses import Response

from queue_manager.core.api_keys import ROLES, ApiKey, Role
from queue_manager.core.clock import hours, local_now
from queue_manager.core.errors import ConfigurationError
from queue_manager.core.log import get_logger
from queue_manager.core.settings import Settings, settings
from queue_manager.operations.api_keys import configured_keys, read_keys
from queue_manager.pauses import LOCAL_USER
from queue_manager.web.auth.revocation import Revocations
from queue_manager.web.auth.wrong_keys import WrongKeys
from queue_manager.web.http.errors import ApiError

API_KEY_HEADER = "x-api-key"
LOGIN_HINT = "Send a key as X-API-KEY or as Authorization: Bearer, or log in at /login"
SESSION_COOKIE = "qm_session"
SESSION_LIFETIME = hours(12)
MAX_SESSION_COOKIES = 4  # of a request that are checked
FILE_CHECK_INTERVAL = 1.0  # seconds
ACCESS_CHECK_INTERVAL = 0.5  # seconds; with a second for a changed key file, a client is disconnected within 2 s
_REQUIRED_CLAIMS = ["name", "role", "exp"]
_SECRET_PURPOSE = b"queue-manager session"

log = get_logger("QM/access")


@dataclass(frozen=True, kw_only=True)
class Principal:
    """The holder of a key, or any user of this machine if no keys are configured."""

    name: str
    """The key's name; `loopback` without keys."""
    role: Role
    by: Literal["loopback", "key", "session"]
    key_digest: bytes = field(default=b"", repr=False)
    """Tells the key from a later one with the same name."""
    session: str = field(default="", repr=False)
    """The id by which the session is revoked."""
    expires_at: datetime | None = None
    """When the key or the session ends."""
    systems: tuple[str, ...] | None = None
    """The names of the only systems that the key is for; `None`: all."""

    def is_expired(self, now: datetime) -> bool:
        return self.expires_at is not None and now >= self.expires_at

    def has_role(self, role: Role) -> bool:
        return ROLES.index(self.role) >= ROLES.index(role)

    def has_system(self, name: str | None) -> bool:
        """Return True if the key is for this system; with `None`, if it is for all."""
        return self.systems is None or name in self.systems

    @property
    def may_act(self) -> bool:
        return self.has_role("operator")


LOOPBACK = Principal(name=LOCAL_USER, role="operator", by="loopback")


def digest_of(key: str) -> bytes:
    """Return the digest by which keys are compared: digests have one length, so that comparing takes constant time."""
    return sha256(key.encode("utf-8", "surrogatepass")).digest()


class KeyRing:
    """All keys. Raises `ConfigurationError` if both settings are given, or the file is unreadable or invalid."""

    def __init__(self, chosen: Settings) -> None:
        self._file = chosen.qm_api_keys_file
        self._checked_at = time.monotonic()
        self._stamp = _stamp(self._file) if self._file is not None else None
        self._keys = _holders(configured_keys(chosen))

    def find(self, key: str) -> Principal | None:
        """Return the holder of the key with this secret, unless it has expired."""
        digest, found = digest_of(key), None
        for holder in self._current():  # all of them, so that the duration reveals nothing
            if hmac.compare_digest(holder.key_digest, digest):
                found = holder
        return found if found is not None and not found.is_expired(local_now()) else None

    def named(self, name: str) -> Principal | None:
        """Return the holder of the key with this name, unless it has expired."""
        found = next((holder for holder in self._current() if holder.name == name), None)
        return found if found is not None and not found.is_expired(local_now()) else None

    def _current(self) -> list[Principal]:
        if self._file is not None and time.monotonic() - self._checked_at >= FILE_CHECK_INTERVAL:
            self._checked_at = time.monotonic()
            self._reload(self._file)
        return self._keys

    def _reload(self, file: Path) -> None:
        stamp = _stamp(file)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._keys = _holders(read_keys(file))
        except ConfigurationError as error:
            log.error(f"The API keys are unchanged: {error}")
        else:
            log.info("Keys read again", keys=len(self._keys))


def _stamp(file: Path) -> tuple[int, ...] | None:
    try:
        about = file.stat()
    except OSError:
        return None
    return about.st_mtime_ns, about.st_size, about.st_ino


def _holders(keys: list[ApiKey]) -> list[Principal]:
    return [
        Principal(
            name=key.name,
            role=key.role,
            by="key",
            key_digest=digest_of(key.key.get_secret_value()),
            expires_at=key.expires_at,
            systems=key.systems,
        )
        for key in keys
    ]


class Authenticator:
    """The keys, revoked sessions and wrong keys that this process knows.

    Raises:
        ConfigurationError: the keys are invalid.
    """

    def __init__(self, chosen: Settings) -> None:
        self._keys = KeyRing(chosen)
        self.is_required = chosen.has_credentials
        self._revocations = Revocations(chosen.redis_url)
        self._wrong_keys = WrongKeys()

    @asynccontextmanager
    async def refreshing(self) -> AsyncIterator[None]:
        """Follow the log-outs in other processes within the block."""
        if not self.is_required:
            yield
            return
        async with self._revocations.refreshing():
            yield

    async def authenticate(self, connection: HTTPConnection) -> Principal:
        """Return the principal that sends a request; a key takes precedence over a cookie. Raises `ApiError`."""
        if not self.is_required:
            return LOOPBACK
        if (key := sent_key(connection.headers)) is not None:
            return await self.authenticate_key(key, connection)
        cookies = _cookies(connection.headers)
        for principal in filter(None, map(self._read_cookie, cookies)):
            if not await self._revocations.is_revoked(principal.session):
                return principal
        raise unauthorized("The session has ended: log in again at /login" if cookies else LOGIN_HINT)

    async def authenticate_key(self, key: str, connection: HTTPConnection) -> Principal:
        """Return the holder of a key. Raises `ApiError`, with a delay if the client's address tries many keys."""
        try:
            return self.key_holder(key)
        except ApiError:
            await self.count_wrong_key(key, connection)
            raise

    def key_holder(self, key: str) -> Principal:
        """Return the holder of a key. Raises `ApiError`."""
        found = self._keys.find(key)
        if found is None:
            raise unauthorized("The key is unknown or has expired")
        return found

    async def count_wrong_key(self, key: str, connection: HTTPConnection) -> None:
        """Count a wrong key. Raises `ApiError`, after a delay, if the client's address has tried too many."""
        await self._wrong_keys.count(digest_of(key), connection.client.host if connection.client else None)

    def is_valid(self, principal: Principal) -> bool:
        """Return True if the key or session of `principal` is still valid, with the same role and systems."""
        if principal is LOOPBACK:
            return True
        holder = self._keys.named(principal.name)
        if holder is None or principal.is_expired(local_now()) or self._revocations.is_known(principal.session):
            return False
        is_same = (holder.role, holder.systems) == (principal.role, principal.systems)
        return is_same and hmac.compare_digest(holder.key_digest, principal.key_digest)

    async def log_out(self, headers: Headers) -> None:
        """Revoke each session of a request, in every process."""
        for principal in filter(None, map(self._read_cookie, _cookies(headers))):
            if principal.expires_at is not None:
                await self._revocations.revoke(principal.session, principal.expires_at.timestamp())

    def _read_cookie(self, cookie: str) -> Principal | None:
        """Return the principal of a session cookie, `None` if the cookie is invalid or has expired."""
        try:
            # The unverified name only selects the key that must have signed the cookie.
            claimed = jwt.decode(cookie, options={"verify_signature": False}).get("name")
            holder = self._keys.named(claimed) if isinstance(claimed, str) else None
            if holder is None:
                return None
            secret = _session_secret(holder.key_digest)
            claims = jwt.decode(cookie, secret, algorithms=["HS256"], options={"require": _REQUIRED_CLAIMS})
            expires_at = datetime.fromtimestamp(int(claims["exp"]), local_now().tzinfo)
        except (jwt.InvalidTokenError, TypeError, ValueError, OverflowError, RecursionError):
            return None
        if claims["role"] != holder.role:  # the key's role was changed since: log in again
            return None
        # Hash only the signed part: a signature can be encoded in several ways. Cookies of 0.1 have no `jti`.
        id = sha256(cookie.rpartition(".")[0].encode()).hexdigest()[:32]
        return replace(holder, by="session", session=id, expires_at=expires_at)


def authenticator_of(connection: HTTPConnection) -> Authenticator:
    """Return the authenticator of the application that serves a request."""
    authenticator: Authenticator = connection.app.state.authenticator
    return authenticator


def access_check(request: Request) -> Callable[[], bool]:
    """Return a function that returns True once the sender of `request` has lost access."""
    authenticator, principal = authenticator_of(request), request.state.principal
    return lambda: not authenticator.is_valid(principal)


async def until_lost(is_over: Callable[[], bool]) -> None:
    """Wait until a function that `access_check` has returned returns True."""
    while not is_over():
        await asyncio.sleep(ACCESS_CHECK_INTERVAL)


@asynccontextmanager
async def ending(end: Callable[[], None], *, when: Callable[[], bool]) -> AsyncIterator[None]:
    """Call `end` once `when` returns True within the block."""
    task = asyncio.create_task(until_lost(when))
    task.add_done_callback(lambda done: None if done.cancelled() else end())
    try:
        yield
    finally:
        task.cancel()


def unauthorized(message: str) -> ApiError:
    return ApiError(HTTPStatus.UNAUTHORIZED, "unauthorized", message, headers={"www-authenticate": "Bearer"})


def sent_key(headers: Headers) -> str | None:
    """Return the API key of a request."""
    if (key := headers.get(API_KEY_HEADER)) is not None:
        return key
    scheme, _, key = headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else None


def set_session_cookie(response: Response, principal: Principal, *, is_https: bool) -> None:
    """Start a session for the holder of a key. It never outlives the key."""
    started_at = local_now()
    ends_at = min(started_at + SESSION_LIFETIME, principal.expires_at or datetime.max.replace(tzinfo=started_at.tzinfo))
    claims = {
        "name": principal.name,
        "role": principal.role,
        "exp": int(ends_at.timestamp()),
        "jti": secrets.token_hex(8),
    }
    response.set_cookie(
        SESSION_COOKIE,
        jwt.encode(claims, _session_secret(principal.key_digest), algorithm="HS256"),
        max_age=int((ends_at - started_at).total_seconds()),
        path=_cookie_path(),
        httponly=True,
        samesite="strict",
        secure=is_https,
    )


def delete_session_cookie(response: Response, *, is_https: bool) -> None:
    response.delete_cookie(SESSION_COOKIE, path=_cookie_path(), httponly=True, samesite="strict", secure=is_https)


def _cookie_path() -> str:
    return settings().web_prefix or "/"


def _cookies(headers: Headers) -> list[str]:
    """Return the session cookies. A browser sends one of each path that the page is below, the longest path first."""
    parts = map(cookie_parser, headers.get("cookie", "").split(";"))
    return [part[SESSION_COOKIE] for part in parts if part.get(SESSION_COOKIE)][:MAX_SESSION_COOKIES]


def _session_secret(key_digest: bytes) -> bytes:
    return hmac.digest(key_digest, _SECRET_PURPOSE, "sha256")
