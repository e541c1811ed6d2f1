"""A TCP proxy whose target can be changed for new connections, while those that are open stay where they are.

It can also hold back what one side sends, delay everything, close all connections, or refuse new ones.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Self

from dev.ports import LOOPBACK


class Direction:
    """What one side sends. It can be held back, as by a network that loses its packets."""

    def __init__(self) -> None:
        self._is_open = threading.Event()
        self._is_open.set()

    @contextmanager
    def held_back(self) -> Iterator[None]:
        self._is_open.clear()
        try:
            yield
        finally:
            self._is_open.set()

    def wait_until_open(self) -> None:
        self._is_open.wait()


class TcpProxy:
    """Forwards connections to the port `target` of this machine; as a context manager.

    `replacing`: what to write instead of some of the server's bytes, of the same length and known to come in one piece.
    """

    def __init__(self, target: int, *, replacing: Mapping[bytes, bytes] | None = None) -> None:
        self.target, self.port = target, 0
        self.delay = 0.0  # seconds, of what one side sends at once
        self.to_server, self.to_client = Direction(), Direction()
        self._replacing = replacing or {}
        self._sockets = set[socket.socket]()
        self._forwarding = set[threading.Thread]()

    @property
    def redis_url(self) -> str:
        return f"redis://{LOOPBACK}:{self.port}/0"

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self._refuse()
        self.close_connections()

    def open(self) -> None:
        """Accept connections, at the same port as before."""
        self._listener = socket.create_server((LOOPBACK, self.port), backlog=512)
        self.port = self._listener.getsockname()[1]
        self._accepting = threading.Thread(target=self._accept, args=[self._listener], daemon=True)
        self._accepting.start()

    def close(self) -> None:
        """Refuse connections and end those that there are, until it is opened again. Safe to repeat."""
        self._refuse()
        while forwarding := list(self._forwarding):
            self.close_connections()
            for thread in forwarding:
                thread.join(0.05)

    def _refuse(self) -> None:
        _shut_down(self._listener, socket.SHUT_RDWR)
        self._listener.close()
        self._accepting.join()

    @contextmanager
    def cut_off(self) -> Iterator[None]:
        """Hold back both sides."""
        with self.to_server.held_back(), self.to_client.held_back():
            yield

    def close_connections(self) -> None:
        """Close all connections; new ones are accepted."""
        for one in list(self._sockets):
            _shut_down(one, socket.SHUT_RDWR)

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            forwarding = threading.Thread(target=self._forward, args=[client], daemon=True)
            self._forwarding.add(forwarding)
            forwarding.start()

    def _forward(self, client: socket.socket) -> None:
        try:
            self._connect(client)
        finally:
            self._forwarding.discard(threading.current_thread())

    def _connect(self, client: socket.socket) -> None:
        with client:
            try:
                server = socket.create_connection((LOOPBACK, self.target))
            except OSError:
                return
            with server:
                self._sockets |= {client, server}
                answers = threading.Thread(target=self._copy, args=(server, client, self.to_client), daemon=True)
                answers.start()
                self._copy(client, server, self.to_server)
                answers.join()
                self._sockets -= {client, server}

    def _copy(self, source: socket.socket, sink: socket.socket, direction: Direction) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                if self.delay:
                    time.sleep(self.delay)
                direction.wait_until_open()
                if direction is self.to_client:
                    for before, after in self._replacing.items():
                        data = data.replace(before, after)
                sink.sendall(data)
        _shut_down(sink, socket.SHUT_WR)


def _shut_down(one: socket.socket, how: int) -> None:
    with suppress(OSError):
        one.shutdown(how)
