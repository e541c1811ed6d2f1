"""ASGI middleware: path prefix, security headers, `Host` check without keys, `HEAD`, compression, shutdown."""

from __future__ import annotations

import asyncio
import re
from http import HTTPStatus
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.middleware.gzip import GZipMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from queue_manager.core.loopback import is_loopback
from queue_manager.web.http.errors import ApiError

_SECURITY_HEADERS = [
    (
        b"content-security-policy",
        b"default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),  # without it, browsers send our own forms with `Origin: null`
]
_NO_STORE = (b"cache-control", b"no-store")
_REFUSED_GZIP = re.compile(r"\bgzip\s*;\s*q=0(\.0*)?\s*(,|$)", re.IGNORECASE)


class SecurityMiddleware:
    """Adds security headers to every response, and `Cache-Control: no-store` unless the route sets that header.

    `local_only`: refuse a request whose `Host` is not a loopback name. Otherwise a page of another site could resolve
    its own name to 127.0.0.1 and pass as ours (DNS rebinding).
    """

    def __init__(self, app: ASGIApp, *, local_only: bool) -> None:
        self._app = app
        self._local_only = local_only

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [*message.get("headers", ()), *_SECURITY_HEADERS]
                if not any(name == b"cache-control" for name, _ in headers):
                    headers.append(_NO_STORE)
                message = {**message, "headers": headers}
            await send(message)

        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif self._local_only and not is_loopback(_host(scope)):
            await _refuse_host(scope, receive, send)
        else:
            await self._app(scope, receive, send_with_headers)


class PrefixMiddleware:
    """Removes `prefix` from the paths of requests, so that the application knows only paths without it.

    Other paths stay as they are: of probes, and of a proxy that has removed the prefix. `raw_path` is the path as sent.
    """

    def __init__(self, app: ASGIApp, prefix: str) -> None:
        self._app = app
        self._prefix = prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if path == self._prefix or path.startswith(f"{self._prefix}/"):
            scope = {**scope, "path": path.removeprefix(self._prefix) or "/"}
        await self._app(scope, receive, send)


class HeadMiddleware:
    """Answers `HEAD` with the status and headers of `GET`, without a body; the wrapped application sees a `GET`.

    The response ends after its headers, so that an event stream ends at once. `is_head` in the request's state lets a
    route whose `GET` has an effect refuse the request.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return

        async def send_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                await send(message)
                await send({"type": "http.response.body", "body": b""})  # the client counts as disconnected from here

        state = {**scope.get("state", {}), "is_head": True}
        await self._app({**scope, "method": "GET", "state": state}, receive, send_headers)


class CompressionMiddleware(GZipMiddleware):
    """Compresses responses, but not for a client that sends `gzip;q=0`, which Starlette takes for a consent."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and _REFUSED_GZIP.search(Headers(scope=scope).get("accept-encoding", "")):
            scope = {**scope, "headers": [header for header in scope["headers"] if header[0] != b"accept-encoding"]}
        await super().__call__(scope, receive, send)


class ShutdownMiddleware:
    """Answers 503 to a request that is not answered when the process has to end. Only the server cancels a request."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        has_started = False

        async def send_and_note(message: Message) -> None:
            nonlocal has_started
            has_started = True
            await send(message)

        try:
            await self._app(scope, receive, send_and_note)
        except asyncio.CancelledError:
            if has_started or scope["type"] != "http":
                raise
            message = "The process is ending; whether the request took effect is unknown"
            error = ApiError(HTTPStatus.SERVICE_UNAVAILABLE, "stopping", message, headers={"retry-after": "1"})
            await error.response()(scope, receive, send)


def _host(scope: Scope) -> str:
    try:
        return urlsplit(f"//{Headers(scope=scope).get('host', '')}").hostname or ""
    except ValueError:
        return ""


async def _refuse_host(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008, "reason": "wrong Host"})
        return
    message = "Without QM_API_KEYS only this machine's own names are accepted as Host"
    await ApiError(HTTPStatus.MISDIRECTED_REQUEST, "wrong host", message).response()(scope, receive, send)
