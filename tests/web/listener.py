"""A Socket.IO client of a few lines, over WebSocket only."""

from __future__ import annotations

import json
import socket
import ssl
from collections import deque
from collections.abc import Mapping
from typing import Any, Self

from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, CloseConnection, RejectConnection, Request, TextMessage


class ConnectionRefused(Exception):
    """The server refused: with its message, or the HTTP status in place of a WebSocket."""


class Listener:
    """Connected on return. Events come in order from `next_event`."""

    def __init__(
        self,
        port: int,
        auth: Any = None,
        *,
        host: str = "127.0.0.1",
        path: str = "/socket.io/",
        tls: ssl.SSLContext | None = None,
        origin: str | None = None,
        query: str = "",
        **headers: str,
    ) -> None:
        self._events: deque[tuple[str, dict[str, Any]]] = deque()
        self._packets: deque[str] = deque()
        self._partial = ""
        self._asked = 0
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=30)
        if tls is not None:
            self._socket = tls.wrap_socket(self._socket, server_hostname=host)
        self._protocol = WSConnection(ConnectionType.CLIENT)
        try:
            self._open(
                auth,
                host,
                f"{path}?EIO=4&transport=websocket{query}",
                headers | ({} if origin is None else {"Origin": origin}),
            )
        except BaseException:
            self.close()
            raise

    def call(self, *event: Any) -> Any:
        """Send an event and return its acknowledgement."""
        self._asked += 1
        self.send(f"42{self._asked}{json.dumps(event)}")
        while not (packet := self._receive()).startswith(f"43{self._asked}["):
            self._keep(packet)
        return json.loads(packet[packet.index("[") :])[0]

    def send(self, packet: str) -> None:
        self._socket.sendall(self._protocol.send(TextMessage(packet)))

    def next_event(self) -> tuple[str, dict[str, Any]]:
        while not self._events:
            self._keep(self._receive())
        return self._events.popleft()

    def wait_until_disconnected(self) -> None:
        while self._receive() != "41":
            pass

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self, auth: Any, host: str, target: str, headers: Mapping[str, str]) -> None:
        named = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
        request = Request(host=host, target=target, extra_headers=named)
        self._socket.sendall(self._protocol.send(request))
        assert self._receive()[0] == "0"
        self.send("40" + ("" if auth is None else json.dumps(auth)))
        answer = self._receive()
        if answer.startswith("44"):
            raise ConnectionRefused(json.loads(answer[2:])["message"])
        assert answer.startswith("40{")

    def _keep(self, packet: str) -> None:
        assert packet.startswith("42["), packet
        name, data = json.loads(packet[2:])
        self._events.append((name, data))

    def _receive(self) -> str:
        """Return the next packet that is not a ping. Raises TimeoutError if none comes within 30 s."""
        while True:
            while not self._packets:
                self._read()
            packet = self._packets.popleft()
            if packet != "2":
                return packet
            self.send("3")

    def _read(self) -> None:
        self._protocol.receive_data(self._socket.recv(65_536) or None)
        for event in self._protocol.events():
            if isinstance(event, TextMessage):
                self._partial += event.data
                if event.message_finished:
                    self._packets.append(self._partial)
                    self._partial = ""
            elif isinstance(event, RejectConnection):
                raise ConnectionRefused(f"HTTP {event.status_code}")
            elif isinstance(event, CloseConnection):
                raise ConnectionRefused(f"closed: {event.code}")
            else:
                assert isinstance(event, AcceptConnection), event
