"""Security headers of every answer, and the check of `Host` in a process without keys."""

from __future__ import annotations

import ipaddress
from collections.abc import Awaitable, Callable, MutableMapping
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADERS = {
    "content-security-policy": "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",  # without any, a browser says of our own forms `Origin: null`
}


def is_loopback(host: str) -> bool:
    """Return True if `host`, a name or an address, is this machine's loopback."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Boundary:
    """An ASGI application around another.

    `local_only`: refuse a request whose `Host` is not this machine's own. A page of another site could otherwise
    have its name resolved to 127.0.0.1 and be taken for ours (DNS rebinding).
    """

    def __init__(self, app: ASGIApp, *, local_only: bool) -> None:
        self._app = app
        self._local_only = local_only

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif self._local_only and not is_loopback(_host(scope)):
            await _refuse(scope, receive, send)
        else:
            await self._app(scope, receive, _with_headers(send))


def _host(scope: MutableMapping[str, Any]) -> str:
    try:
        return urlsplit(f"//{Headers(scope=scope).get('host', '')}").hostname or ""
    except ValueError:
        return ""


def _with_headers(send: Send) -> Callable[[Message], Awaitable[None]]:
    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message).update(HEADERS)
        await send(message)

    return send_with_headers


async def _refuse(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008, "reason": "wrong Host"})
        return
    message = "Without QM_API_KEYS only this machine's own names are accepted as Host"
    answer = JSONResponse({"error": "wrong host", "message": message}, status_code=HTTPStatus.MISDIRECTED_REQUEST)
    await answer(scope, receive, send)
