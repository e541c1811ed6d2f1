"""Hears the events of a Socket.IO channel.

They are kept unread until the end: on a machine of two cores a reader would be in the way.
"""

from __future__ import annotations

import json
import socket
import time
from collections import Counter
from contextlib import suppress
from threading import Condition, Thread
from urllib.parse import urlsplit

import hiredis


class Listener(Thread):
    """One subscriber of `channel`."""

    def __init__(self, url: str, channel: str) -> None:
        super().__init__(daemon=True)
        address = urlsplit(url)
        self._socket = socket.create_connection((address.hostname, address.port))
        self._socket.sendall(f"SUBSCRIBE {channel}\r\n".encode())
        self._reader = hiredis.Reader()
        self._reader.feed(self._socket.recv(65536))
        self._reader.gets()  # that it is subscribed
        self._heard: list[tuple[float, bytes]] = []
        self._more = Condition()
        self.start()

    def run(self) -> None:
        with suppress(OSError):
            while some := self._socket.recv(1 << 20):
                at = time.time()
                self._reader.feed(some)
                with self._more:
                    while (message := self._reader.gets()) is not False:
                        self._heard.append((at, message[2]))
                    self._more.notify_all()

    def wait(self, count: int, timeout: float) -> bool:
        """Return whether `count` events came within `timeout` seconds."""
        with self._more:
            return self._more.wait_for(lambda: self.count >= count, timeout)

    @property
    def count(self) -> int:
        return len(self._heard)

    @property
    def last_at(self) -> float:
        """When the last event came, in seconds of the epoch."""
        return self._heard[-1][0]

    def rooms(self) -> Counter[str]:
        """Return how many events each room had."""
        data = (json.loads(event)["data"] for _, event in self._heard)
        return Counter((of[0] if isinstance(of, list) else of)["room_id"] for of in data)

    def close(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self.join(5)
        self._socket.close()
