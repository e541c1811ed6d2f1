"""Socket.IO at `/socket.io`: a client receives `support_room_updated` of the accounts that it may access.

Connect: with `SOCKETIO_TOKEN_SECRET` set, `auth={"token": …}` (see `read_token`) puts a client into the rooms
`support-<account id>` of all its accounts. With API keys, a key as that token or in a header, or the session of one of
our own pages, lets it join any account. Invalid, missing or expired credentials are refused. Without secret and keys,
which is possible on loopback only, every client may join any account.
Events: `join` and `leave` with an account id, acknowledged with `{"joined": […]}`, `{"left": …}` or
`{"error", "message"}`.
Guarantee: a client whose token, key or session ends is disconnected within 2 s. Packets that no client needs
are ignored. A WebSocket or a session of long polling whose client presents no valid credentials within
`CREDENTIALS_TIMEOUT` is closed, and a WebSocket also if its client stays that long after its access has ended.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs

import jwt
import socketio
from redis.asyncio import Redis
from redis.exceptions import RedisError
from socketio.packet import CONNECT, DISCONNECT, EVENT, Packet
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

from queue_manager.core.background import cancel, in_background
from queue_manager.core.errors import AppError, reason
from queue_manager.core.log import get_logger
from queue_manager.core.redis_client import describe_outage, make_async_client
from queue_manager.core.settings import Settings
from queue_manager.web.auth.authentication import ACCESS_CHECK_INTERVAL, LOGIN_HINT, Authenticator, unauthorized
from queue_manager.web.auth.authorization import is_from_own_page, require_system
from queue_manager.web.http.errors import ApiError
from services import support_snooze

MAX_PACKET_SIZE = 64_000  # bytes; the largest packet that clients send is their token
CREDENTIALS_TIMEOUT = 10.0  # seconds
RESUBSCRIBE_DELAY = 1.0  # seconds
HEALTH_CHECK_INTERVAL = 5  # seconds: detects half-open connections
IGNORED_EVENT = "ignored"  # it has no handler
NO_ACCOUNT = "An account id is 1 to 64 letters, digits, _ or -"
_ACCOUNT = re.compile(r"[A-Za-z0-9_-]{1,64}")

Answer = dict[str, Any]

log = get_logger("QM/live")


class TokenRefused(AppError):
    """The token gives no access; the message says why."""


@dataclass(frozen=True, kw_only=True)
class Access:
    """The accounts whose events a client may receive, and until when; `None` means all, without an end."""

    accounts: frozenset[str] | None = None
    expires_at: float | None = None
    has_ended: Callable[[], bool] = field(default=lambda: False, compare=False, repr=False)
    """Returns True once the key or session of the client has ended."""

    def allows(self, account: str) -> bool:
        return self.accounts is None or account in self.accounts

    def is_over(self) -> bool:
        return self.has_ended() or (self.expires_at is not None and time.time() >= self.expires_at)


ANY_ACCOUNT = Access()


def is_account(value: Any) -> bool:
    """Return True if `value` has the form of an account id: 1 to 64 letters, digits, `_` or `-`."""
    return isinstance(value, str) and _ACCOUNT.fullmatch(value) is not None


def read_token(token: Any, *, secret: str) -> Access:
    """Return the access that a token gives: a JWT that the product signs with HS256. Raises `TokenRefused`.

    Claims: `accounts`, a list of account ids; `exp`, optional: seconds since the epoch.
    """
    if not isinstance(token, str):
        raise TokenRefused('A token is required: connect with auth={"token": ...}')
    try:
        claims = jwt.decode(token, secret, algorithms=["HS256"], options={"require": ["accounts"]})
        expires_at = float(claims["exp"]) if "exp" in claims else None
    except (jwt.InvalidTokenError, TypeError, ValueError, OverflowError) as error:  # from an invalid `exp`, too
        raise TokenRefused(f"The token is refused: {error}") from None
    accounts = claims["accounts"]
    if not isinstance(accounts, list) or not all(map(is_account, accounts)):
        raise TokenRefused("The token is refused: its claim accounts must be a list of account ids")
    return Access(accounts=frozenset(accounts), expires_at=expires_at)


class RedisChannel(socketio.AsyncRedisManager):  # type: ignore[misc]  # python-socketio has no types
    """python-socketio's manager, which passes events from Redis to the clients of this process.

    Guarantee: after an outage of Redis, events are received again within about a second; python-socketio's own listener
    would wait up to a minute. Events that are published during the outage are lost: a channel stores nothing.
    """

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


class ClientPacket(Packet):  # type: ignore[misc]  # python-socketio has no types
    """A packet of Socket.IO; what a client sends is ignored unless it connects, disconnects, joins or leaves.

    python-socketio would call our handler of `disconnect` for an event of that name, which forgets when the client's
    access ends, while the client stays in its rooms. It would keep any number of binary attachments in memory, and log
    a traceback for a malformed packet.
    """

    def decode(self, encoded_packet: Any) -> int:
        try:
            super().decode(encoded_packet)
        except (ValueError, TypeError, RecursionError) as error:
            log.debug("A malformed packet is ignored", error=reason(error))
            self.packet_type, self.data = EVENT, None
        if self.packet_type not in (CONNECT, DISCONNECT) and not self._has_handler():
            self.packet_type, self.data = EVENT, [IGNORED_EVENT]
        return 0  # attachments that follow

    def _has_handler(self) -> bool:
        return self.packet_type == EVENT and isinstance(self.data, list) and self.data[:1] in (["join"], ["leave"])


class Live:
    """The Socket.IO server of this process, and which accounts each of its clients may access."""

    def __init__(self, chosen: Settings, authenticator: Authenticator) -> None:
        self._authenticator = authenticator
        secret = chosen.socketio_token_secret
        self._secret = None if secret is None else secret.get_secret_value()
        self._has_events = "python" in chosen.socketio_adapter
        self._access: dict[str, Access] = {}
        self._without_credentials: dict[str, float] = {}  # sessions of long polling, by when they were first seen
        self._sweeper: asyncio.Task[None] | None = None
        self.server = socketio.AsyncServer(
            async_mode="asgi",
            client_manager=RedisChannel(chosen.redis_url, channel=chosen.socketio_channel),
            # Pages of any site may present a token or key; without them, only pages of this process may connect.
            cors_allowed_origins="*" if self._secret is not None or authenticator.is_required else None,
            max_http_buffer_size=MAX_PACKET_SIZE,
            serializer=ClientPacket,
            logger=_errors_of("socketio.server"),
            engineio_logger=_errors_of("engineio.server"),
        )
        for event, handler in (
            ("connect", self._connect),
            ("disconnect", self._disconnect),
            ("join", self._join),
            ("leave", self._leave),
        ):
            self.server.on(event, handler)

    def application(self, other: ASGIApp) -> ASGIApp:
        """Return the ASGI application of `/socket.io`; `other` serves all other paths."""
        server: ASGIApp = socketio.ASGIApp(self.server, other_asgi_app=other)

        async def serve(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "websocket":
                await server(scope, receive, send)
                return
            async with in_background(self._close_without_access(scope, send)):
                await server(scope, receive, send)

        return serve

    async def _close_without_access(self, scope: Scope, send: Send) -> None:
        """Close the WebSocket of a client without access, which the library would keep open."""
        # A client that began with long polling names the session in which it has presented its credentials.
        polling = parse_qs(scope["query_string"].decode("latin-1")).get("sid", [""])[0]
        while True:
            await asyncio.sleep(CREDENTIALS_TIMEOUT)
            sid = scope["state"].get("sid") or self.server.manager.sid_from_eio_sid(polling, "/")
            if sid not in self._access:
                with suppress(OSError):  # the client has just disconnected
                    await send({"type": "websocket.close", "code": 1008, "reason": "no credentials"})
                return

    async def start(self) -> None:
        """Subscribe to Redis, so that the first client misses nothing, and start checking tokens."""
        if not self._has_events:
            log.warning("SOCKETIO_ADAPTER does not contain python: clients of this process receive no Socket.IO events")
        self.server.manager_initialized = True
        self.server.manager.initialize()
        self._sweeper = asyncio.create_task(self._sweep())

    async def stop(self) -> None:
        if self._sweeper is not None:
            await cancel([self._sweeper])

    async def _connect(self, sid: str, environ: dict[str, Any], auth: Any = None) -> None:
        access = await self._access_of(auth, HTTPConnection(environ["asgi.scope"]))
        self._access[sid] = access
        environ["asgi.scope"]["state"]["sid"] = sid
        for account in access.accounts or ():
            await self.server.enter_room(sid, _room(account))

    async def _access_of(self, auth: Any, connection: HTTPConnection) -> Access:
        token = auth.get("token") if isinstance(auth, dict) else None
        if self._secret is None and not self._authenticator.is_required:
            return ANY_ACCOUNT
        reasons = []
        if self._authenticator.is_required:
            try:
                return await self._of_key(token, connection)
            except ApiError as error:
                reasons.append(error.message)
        if self._secret is not None:
            try:
                return read_token(token, secret=self._secret)
            except TokenRefused as error:
                reasons.append(str(error))
        if self._authenticator.is_required and isinstance(token, str):
            try:
                await self._authenticator.count_wrong_key(token, connection)
            except ApiError as error:
                reasons = [error.message]
        raise socketio.exceptions.ConnectionRefusedError("; ".join(reasons))

    async def _of_key(self, token: Any, connection: HTTPConnection) -> Access:
        """Return what a key or a session gives. Raises `ApiError`; a wrong `token` is not counted, it may be a JWT."""
        authenticator = self._authenticator
        if isinstance(token, str):
            principal = authenticator.key_holder(token)
        else:
            principal = await authenticator.authenticate(connection)
        require_system(principal, support_snooze.system.name)
        if principal.by == "session" and not is_from_own_page(connection.headers):
            raise unauthorized(LOGIN_HINT)
        return Access(has_ended=lambda: not authenticator.is_valid(principal))

    async def _disconnect(self, sid: str, *_: Any) -> None:
        self._access.pop(sid, None)

    async def _join(self, sid: str, account: Any = None, *_: Any) -> Answer:
        access = self._access.get(sid)
        if access is None or access.is_over():
            return _refusal("The connection is closing")
        if not is_account(account):
            return _refusal(NO_ACCOUNT)
        if not access.allows(account):
            return _refusal(f"The token does not name the account {account}")
        await self.server.enter_room(sid, _room(account))
        return {"joined": [account]}

    async def _leave(self, sid: str, account: Any = None, *_: Any) -> Answer:
        if not is_account(account):
            return _refusal(NO_ACCOUNT)
        await self.server.leave_room(sid, _room(account))
        return {"left": account}

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(ACCESS_CHECK_INTERVAL)
            for sid in [sid for sid, access in self._access.items() if access.is_over()]:
                await _try_to_end(self.server.disconnect(sid))
            for session in self._polling_without_credentials():
                await _try_to_end(session.close(wait=False))  # answers a poll that waits

    def _polling_without_credentials(self) -> list[Any]:
        """Return the sessions of long polling that are too old; the library would keep them for a minute."""
        now = time.monotonic()
        found = {
            sid: session
            for sid, session in self.server.eio.sockets.items()
            if not (session.upgraded or session.closed) and self.server.manager.sid_from_eio_sid(sid, "/") is None
        }
        self._without_credentials = {sid: self._without_credentials.get(sid, now) for sid in found}
        return [found[sid] for sid, since in self._without_credentials.items() if now - since >= CREDENTIALS_TIMEOUT]


async def _try_to_end(end: Awaitable[Any]) -> None:
    try:
        await end
    except Exception as error:
        log.warning("A client whose access ended could not be disconnected; retrying", error=reason(error))


def _errors_of(name: str) -> logging.Logger:
    """Return a library's logger that logs only errors: at lower levels it logs what clients send, including tokens.

    The library adds no handler to a logger that it is given.
    """
    logger = logging.getLogger(name)
    logger.setLevel(logging.ERROR)
    return logger


def _room(account: str) -> str:
    return f"support-{account}"


def _refusal(message: str) -> Answer:
    return {"error": "refused", "message": message}
