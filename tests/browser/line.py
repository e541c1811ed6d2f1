"""A TCP line to a server on this machine, which a test can cut."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from contextlib import suppress
from threading import Lock, Thread

from dev.ports import LOOPBACK

SIZE = 64 * 1024


class Line:
    """Passes on bytes both ways while it is open, at a port of its own.

    `replacing`: what to write instead of some of the server's bytes, of the same length and known to come in one piece.
    """

    def __init__(self, to: int, *, replacing: Mapping[bytes, bytes] | None = None) -> None:
        self._to, self._replacing = to, replacing or {}
        self.port = 0
        self._ends: set[socket.socket] = set()
        self._passing: list[Thread] = []
        self._lock = Lock()
        self.open()

    def open(self) -> None:
        """Accept connections, at the same port as before."""
        self._server = socket.create_server((LOOPBACK, self.port))
        self.port = self._server.getsockname()[1]
        self._accepting = Thread(target=self._accept, args=(self._server,), daemon=True)
        self._accepting.start()

    def close_connections(self) -> None:
        """End every connection; new ones are accepted."""
        with self._lock:
            ends = list(self._ends)
        for end in ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Refuse connections and end those that there are, until it is opened again. Safe to repeat."""
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._accepting.join()
        while any(thread.is_alive() for thread in self._passing):
            self.close_connections()
            for thread in self._passing:
                thread.join(0.05)
        self._passing.clear()

    def __enter__(self) -> Line:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self, server: socket.socket) -> None:
        while True:
            try:
                client, _ = server.accept()
            except OSError:  # closed
                return
            passing = Thread(target=self._connect, args=(client,), daemon=True)
            self._passing.append(passing)
            passing.start()

    def _connect(self, client: socket.socket) -> None:
        with client, suppress(OSError), socket.create_connection((LOOPBACK, self._to)) as server:
            with self._lock:
                self._ends |= {client, server}
            back = Thread(target=self._pass_back, args=(server, client), daemon=True)
            back.start()
            self._pass_on(client, server)
            back.join()
            with self._lock:
                self._ends -= {client, server}

    def _pass_on(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := client.recv(SIZE):
                server.sendall(data)
        _end(server)

    def _pass_back(self, server: socket.socket, client: socket.socket) -> None:
        with suppress(OSError):
            while data := server.recv(SIZE):
                for before, after in self._replacing.items():
                    data = data.replace(before, after)
                client.sendall(data)
        _end(client)


def _end(one: socket.socket) -> None:
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
