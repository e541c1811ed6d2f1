"""Requests that have no response yet when the process has to end."""

from __future__ import annotations

import asyncio
import json

import pytest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from queue_manager.web.http.middleware import ShutdownMiddleware

CANCELED = {"type": "cancelled"}
START = {"type": "http.response.start", "status": 200, "headers": []}


def cancel(app: ASGIApp, kind: str = "http") -> list[Message]:
    """Send a request, and cancel it once it waits; return what was sent."""
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        return {"type": "http.request"}

    async def request() -> None:
        task = asyncio.create_task(ShutdownMiddleware(app)({"type": kind}, receive, send))
        await asyncio.sleep(0)
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            sent.append(CANCELED)

    asyncio.run(request())
    return sent


def app(*messages: Message) -> ASGIApp:
    """Return an application that sends these messages, and then waits without end."""

    async def answer(_: Scope, __: Receive, send: Send) -> None:
        for message in messages:
            await send(message)
        await asyncio.Event().wait()

    return answer


def test_a_request_that_has_no_response_yet_is_answered_503() -> None:
    start, body = cancel(app())
    assert (start["status"], dict(start["headers"])[b"retry-after"]) == (503, b"1")
    assert json.loads(body["body"])["error"] == "stopping"


def test_a_started_response_is_aborted() -> None:
    assert cancel(app(START)) == [START, CANCELED]


@pytest.mark.parametrize("kind", ["websocket", "lifespan"])
def test_only_http_requests_are_answered(kind: str) -> None:
    assert cancel(app(), kind) == [CANCELED]
