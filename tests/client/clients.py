"""Both clients behind one interface, a web process for them, and a proxy that loses responses."""

from __future__ import annotations

import asyncio
import inspect
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, cast

import pytest

from queue_manager.client import AsyncClient, AsyncReceivedMessage, Client
from tests.any_jobs import MODULE
from tests.e2e.tcp_proxy import Direction, TcpProxy
from tests.real_servers import Servers
from tests.web.credentials import KEYS, OPERATOR
from tests.web.queue_client import Queue, empty_queue

JOBS_AND_SCANS = {"QM_JOBS": "true", "JOBS_IMPORTS": json.dumps([MODULE]), "QM_HOOKS": "true", "QM_API_KEYS": KEYS}


class Waited:
    """An asynchronous object whose coroutines and iterators are waited for, so that one test fits both clients."""

    def __init__(self, target: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._target, self._loop = target, loop

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._target, name)
        if inspect.ismethod(value) or inspect.isfunction(value):
            return lambda *args, **options: self._result(value(*args, **options))
        return Waited(value, self._loop) if name in ("messages", "jobs", "systems") else value

    def __enter__(self) -> Any:
        return self._result(self._target.__aenter__())

    def __exit__(self, *error: Any) -> None:
        self._result(self._target.__aexit__(*error))

    def _result(self, value: Any) -> Any:
        if inspect.isasyncgen(value):
            return self._items(value)
        if inspect.iscoroutine(value):
            value = self._loop.run_until_complete(value)
        return Waited(value, self._loop) if isinstance(value, AsyncReceivedMessage) else value

    def _items(self, generator: Any) -> Iterator[Any]:
        try:
            while True:
                try:
                    yield self._result(self._next(generator))
                except StopAsyncIteration:
                    return
        finally:
            self._loop.run_until_complete(generator.aclose())

    async def _next(self, generator: Any) -> Any:
        return await anext(generator)


@contextmanager
def connected(kind: str, url: str, **options: Any) -> Iterator[Client]:
    """Yield a client of this kind, `sync` or `async`."""
    options = {"api_key": OPERATOR, **options}
    if kind == "sync":
        with Client(url, **options) as client:
            yield client
        return
    with asyncio.Runner() as runner:
        asynchronous = AsyncClient(url, **options)
        yield cast(Client, Waited(asynchronous, runner.get_loop()))
        runner.run(asynchronous.aclose())


def served(servers: Servers, directories: pytest.TempPathFactory) -> Queue:
    """Return the web process of these tests, which has everything switched on, with an empty message queue."""
    return empty_queue(servers, directories, **JOBS_AND_SCANS)


def url_of(port: int) -> str:
    return f"http://127.0.0.1:{port}"


class LossyProxy(TcpProxy):
    """Closes the connection instead of forwarding a response, `losses` times."""

    losses = 0

    def _copy(self, source: socket.socket, sink: socket.socket, direction: Direction) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                if direction is self.to_client and self.losses:
                    self.losses -= 1
                    break
                sink.sendall(data)
        for one in (source, sink):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
