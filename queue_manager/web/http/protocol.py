"""HTTP/1.1 as uvicorn speaks it, with bounds for the memory and the time that a client can take to send a request."""

from __future__ import annotations

import asyncio
import socket

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_SIZE = 64 * 1024  # bytes of the request line and headers, or of a body's trailers
CLIENT_TIMEOUT = 60  # seconds for a request's head, between parts of its body, and between reads, as in nginx


class BoundedHttpProtocol(HttpToolsProtocol):
    """Refuses a request whose head is too large; uvicorn would keep headers in memory without a limit.

    The part in which a head begins is not counted: it is at most as large as the event loop's buffer.

    Closes a connection whose client sends nothing, half a head, or a part of a body, for `CLIENT_TIMEOUT`. uvicorn
    would keep it until the client closes it: its timeout only begins after a response, and ends with the next byte.
    Linux closes a connection whose client does not read, also one that waits to be closed until all is sent.
    """

    _head_size = 0
    """Bytes that arrived since the request began, or since the last part of its body."""
    _timeout: asyncio.TimerHandle | None = None
    """Runs while the client has to send something: from when the connection, the request or the wait began."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_timeout()
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux
            connection = transport.get_extra_info("socket")
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1_000 * CLIENT_TIMEOUT)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop_timeout()
        if self.timeout_keep_alive_task is not None:  # it would keep the protocol of a connection that the client reset
            self.timeout_keep_alive_task.cancel()

    def data_received(self, data: bytes) -> None:
        self._head_size += len(data)
        super().data_received(data)
        if self._head_size > MAX_HEAD_SIZE and not self.transport.is_closing():
            self.send_400_response("The headers are too large")
        if not self._is_waiting():
            self._stop_timeout()
        elif self._timeout is None:
            self._start_timeout()

    def on_message_begin(self) -> None:
        self._begin_part()
        super().on_message_begin()

    def on_body(self, body: bytes) -> None:
        self._begin_part()
        super().on_body(body)

    def _begin_part(self) -> None:
        self._head_size = 0
        self._stop_timeout()

    def _is_waiting(self) -> bool:
        """Return True if nothing happens until the client sends more; False after a change to WebSocket."""
        if self.transport.is_closing() or self.transport.get_protocol() is not self:
            return False
        return self.cycle is None or self.cycle.more_body or self.cycle.response_complete

    def _start_timeout(self) -> None:
        self._timeout = self.loop.call_later(CLIENT_TIMEOUT, self._time_out)

    def _stop_timeout(self) -> None:
        if self._timeout is not None:
            self._timeout.cancel()
            self._timeout = None

    def _time_out(self) -> None:
        if self.flow.read_paused:  # the application has not read what the client sent before
            self._start_timeout()
        else:
            self.transport.close()
