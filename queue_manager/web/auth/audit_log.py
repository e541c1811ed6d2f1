"""Who did what, when and with which outcome: a line in the log for each request that acts."""

from __future__ import annotations

from collections.abc import MutableMapping
from http import HTTPStatus
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from queue_manager.core.log import get_logger

NOBODY = "nobody"  # who was not let in

log = get_logger("QM/access")


class Journal:
    """An ASGI application around another, which tells by `acts` and `who` in the request's state."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        state = scope.setdefault("state", {})

        async def send_and_note(message: Message) -> None:
            if message["type"] == "http.response.start":
                _note(scope, state, message["status"])
            await send(message)

        await self._app(scope, receive, send_and_note)


def _note(scope: Scope, state: MutableMapping[str, Any], status: int) -> None:
    has_taken_nothing = scope["method"] == "GET" and status == HTTPStatus.NOT_FOUND
    if not state.get("acts") or has_taken_nothing:
        return
    who = getattr(state.get("who"), "name", NOBODY)
    path = scope.get("raw_path", b"").decode("ascii", "replace")  # as it was sent: no line can be made up with it
    log.info("Asked to act", who=who, method=scope["method"], path=path, status=int(status))
