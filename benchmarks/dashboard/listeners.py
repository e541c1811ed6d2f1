"""Plain clients of the queue's events: they note when each came, and do nothing else."""

from __future__ import annotations

import re
import selectors
import socket
import time
from collections import defaultdict
from threading import Event, Thread
from typing import Self

from benchmarks.harness import WrongResult
from dev.ports import LOOPBACK

REQUEST = b"GET /api/queue/events HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/event-stream\r\n\r\n"
GREETING = b"retry:"  # in the first event, which says that what comes from now on is sent
ADDED = re.compile(rb'"ids":\["([^"]+)"\]')
CONNECT_TIMEOUT = 10.0  # seconds


class Listeners:
    """A number of connections, read by one thread as long as the `with` lasts."""

    def __init__(self, port: int, count: int) -> None:
        self._port, self._count = port, count
        self._selector = selectors.DefaultSelector()
        self._rest: dict[socket.socket, bytes] = {}
        self._is_over = Event()
        self._thread = Thread(target=self._listen)
        self.heard: dict[str, list[float]] = defaultdict(list)
        """When the event about each message came, in seconds since 1970: once for each connection that got it."""

    def __enter__(self) -> Self:
        for _ in range(self._count):
            connection = socket.create_connection((LOOPBACK, self._port), timeout=CONNECT_TIMEOUT)
            connection.sendall(REQUEST)
            self._rest[connection] = _greeted(connection)
            self._selector.register(connection, selectors.EVENT_READ)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
        for connection in self._rest:
            connection.close()
        self._selector.close()

    def _listen(self) -> None:
        while not self._is_over.is_set():
            for key, _ in self._selector.select(timeout=0.1):
                assert isinstance(key.fileobj, socket.socket)
                self._read(key.fileobj)

    def _read(self, connection: socket.socket) -> None:
        more = connection.recv(65_536)
        at = time.time()
        if not more:  # the count of what was heard then comes out too low
            self._selector.unregister(connection)
        text = self._rest[connection] + more
        end = 0
        for found in ADDED.finditer(text):
            self.heard[found[1].decode()].append(at)
            end = found.end()
        self._rest[connection] = text[end:]


def _greeted(connection: socket.socket) -> bytes:
    """Read until the server listens for us."""
    text = b""
    while GREETING not in text:
        more = connection.recv(65_536)
        if not more:
            raise WrongResult(f"no events: {text.decode(errors='replace')[:200]}")
        text += more
    return text
