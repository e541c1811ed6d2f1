"""Clients that send or read too little: their connections are closed after a time, and no others."""

from __future__ import annotations

import asyncio
import gc
import socket
import struct
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from socket import SO_LINGER, SOL_SOCKET
from typing import Any

import pytest
from uvicorn import Config
from uvicorn.server import ServerState

from queue_manager.web import serve
from queue_manager.web.serve import CLIENT_TIMEOUT, KEEP_ALIVE_TIMEOUT, BoundedHttpProtocol

HEAD = b"POST / HTTP/1.1\r\nHost: localhost\r\n"
SIZED, CHUNKED = HEAD + b"Content-Length: 20\r\n\r\n", HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
EMPTY = HEAD + b"Content-Length: 0\r\n\r\n"
OPENING = (
    b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
OK = b"HTTP/1.1 200 OK"


class SkippingLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock can be put forward."""

    skipped = 0.0

    def time(self) -> float:
        return super().time() + self.skipped


@dataclass
class Application:
    """Reads the body of a request while it may, and answers `body` once it may; counts the bytes of all bodies."""

    may_read: asyncio.Event = field(default_factory=asyncio.Event)
    may_answer: asyncio.Event = field(default_factory=asyncio.Event)
    received: int = 0
    body: bytes = b""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.accept"})
            await self.may_answer.wait()
            await send({"type": "websocket.close"})
            return
        more_body = True
        while more_body:
            await self.may_read.wait()
            message = await receive()
            more_body = message.get("more_body", False)
            self.received += len(message.get("body", b""))
        await self.may_answer.wait()
        headers = [(b"content-length", b"%d" % len(self.body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": self.body})


@dataclass
class Client:
    loop: SkippingLoop
    state: ServerState
    app: Application
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def skip(self, seconds: float) -> None:
        """Put the clock forward; on return the server has done what was due, and has read what was sent."""
        await asyncio.sleep(0.01)
        self.loop.skipped += seconds
        await asyncio.sleep(0.01)

    async def request(self, request: bytes) -> bytes:
        """Return the status line of the response."""
        self.writer.write(request)
        return (await self.reader.readuntil(b"\r\n\r\n")).partition(b"\r\n")[0]


@asynccontextmanager
async def connected() -> AsyncIterator[Client]:
    app = Application()
    app.may_read.set()
    app.may_answer.set()
    config = Config(
        app,
        http=BoundedHttpProtocol,
        ws="wsproto",
        ws_ping_interval=None,
        timeout_keep_alive=KEEP_ALIVE_TIMEOUT,
        log_config=None,
    )
    config.load()
    state, loop = ServerState(), asyncio.get_running_loop()
    assert isinstance(loop, SkippingLoop)
    async with await loop.create_server(lambda: BoundedHttpProtocol(config, state, {}), "127.0.0.1", 0) as server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        try:
            yield Client(loop, state, app, reader, writer)
        finally:
            writer.close()
            await asyncio.sleep(0.01)


def play(scenario: Callable[[Client], Awaitable[None]]) -> None:
    async def run() -> None:
        async with connected() as client:
            await scenario(client)

    with asyncio.Runner(loop_factory=SkippingLoop) as runner:
        runner.run(run())


@pytest.mark.parametrize(
    ("begin", "more"),
    [
        (b"", b""),
        (HEAD, b""),
        (HEAD, b"a"),
        (SIZED, b""),
        (SIZED + b"a", b""),
        (CHUNKED + b"1\r\na\r\n0\r\nX-Name: ", b"a"),
    ],
    ids=["nothing", "half a head", "a slow head", "no body", "half a body", "slow trailers"],
)
@pytest.mark.parametrize("earlier", [b"", EMPTY], ids=["first", "second"])
def test_a_connection_on_which_no_request_arrives_is_closed(earlier: bytes, begin: bytes, more: bytes) -> None:
    async def scenario(client: Client) -> None:
        if earlier:
            assert await client.request(earlier) == OK
        client.writer.write(begin)
        for _ in range(12):
            await client.skip(CLIENT_TIMEOUT / 4)
            client.writer.write(more)
        with suppress(ConnectionError):  # more was sent than the server has read
            assert await asyncio.wait_for(client.reader.read(), 10) == b""
        assert not client.state.connections

    play(scenario)


def test_a_client_that_resets_its_connection_leaves_nothing_behind() -> None:
    async def scenario(client: Client) -> None:
        assert await client.request(EMPTY) == OK
        protocol = weakref.ref(client.state.connections.pop())
        client.writer.get_extra_info("socket").setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))
        client.writer.transport.abort()

        async def is_collected() -> None:
            while protocol() is not None:
                await client.skip(0)
                gc.collect()

        await asyncio.wait_for(is_collected(), CLIENT_TIMEOUT / 2)  # before timeouts of the connection end

    play(scenario)


def test_a_body_may_take_any_time_while_parts_of_it_arrive() -> None:
    async def scenario(client: Client) -> None:
        client.writer.write(SIZED)
        for _ in range(19):
            client.writer.write(b"a")
            await client.skip(CLIENT_TIMEOUT / 2)
        assert await client.request(b"a") == OK

    play(scenario)


def test_a_body_may_take_any_time_while_the_application_does_not_read_it() -> None:
    async def scenario(client: Client) -> None:
        size = 1_000_000
        client.app.may_read.clear()
        client.writer.write(HEAD + b"Content-Length: %d\r\n\r\n" % size + b"a" * size)
        for _ in range(4):
            await client.skip(CLIENT_TIMEOUT * 0.8)
        client.app.may_read.set()
        assert await client.request(b"") == OK
        assert client.app.received == size

    play(scenario)


def test_a_response_may_take_any_time() -> None:
    async def scenario(client: Client) -> None:
        client.app.may_answer.clear()
        client.writer.write(EMPTY)
        await client.skip(10 * CLIENT_TIMEOUT)
        client.app.may_answer.set()
        assert await client.request(b"") == OK

    play(scenario)


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="only Linux has this timeout")
@pytest.mark.parametrize("header", [b"", b"Connection: close\r\n"], ids=["kept", "to be closed"])
def test_a_connection_whose_client_does_not_read_is_closed(header: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "CLIENT_TIMEOUT", 1)  # of the kernel, whose clock cannot be put forward

    async def scenario(client: Client) -> None:
        client.app.body = b"a" * 50_000_000
        client.writer.write(HEAD + header + b"Content-Length: 0\r\n\r\n")
        await client.reader.readuntil(b"\r\n\r\n")
        async with asyncio.timeout(60):
            while client.state.connections:
                await asyncio.sleep(0.05)

    play(scenario)


def test_a_websocket_may_be_silent() -> None:
    async def scenario(client: Client) -> None:
        client.app.may_answer.clear()
        assert await client.request(OPENING) == b"HTTP/1.1 101 Switching Protocols"
        await client.skip(10 * CLIENT_TIMEOUT)
        client.app.may_answer.set()
        assert await client.reader.read(1) == b"\x88"  # a close frame

    play(scenario)


def test_a_connection_is_kept_between_requests_for_longer_than_proxies_use_it() -> None:
    async def scenario(client: Client) -> None:
        for _ in range(3):
            assert await client.request(EMPTY) == OK
            await client.skip(KEEP_ALIVE_TIMEOUT - 20)

    play(scenario)
