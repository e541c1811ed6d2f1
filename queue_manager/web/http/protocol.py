"""HTTP/1.1 as uvicorn speaks it, with a bound for the memory that a client can take before a request begins."""

from __future__ import annotations

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_SIZE = 64 * 1024  # bytes of the request line and headers, or of a body's trailers


class BoundedHttpProtocol(HttpToolsProtocol):
    """Refuses a request whose head is too large; uvicorn would keep headers in memory without a limit.

    The part in which a head begins is not counted: it is at most as large as the event loop's buffer.
    """

    _head_size = 0
    """Bytes that arrived since the request began, or since the last part of its body."""

    def data_received(self, data: bytes) -> None:
        self._head_size += len(data)
        super().data_received(data)
        if self._head_size > MAX_HEAD_SIZE and not self.transport.is_closing():
            self.send_400_response("The headers are too large")

    def on_message_begin(self) -> None:
        self._head_size = 0
        super().on_message_begin()

    def on_body(self, body: bytes) -> None:
        self._head_size = 0
        super().on_body(body)
