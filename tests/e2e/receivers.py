"""Receivers of what the processes send to other services: HTTP posts, and mails."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email import message_from_bytes, policy
from email.message import EmailMessage
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from warnings import catch_warnings, simplefilter

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult, Envelope

from dev.ports import LOOPBACK, free_port


@contextmanager
def receiving_posts(take: Callable[[str, bytes], int | None], *, location: str = "") -> Iterator[int]:
    """Yield the port of a server that hands path and body of each post to `take`, which may return a status.

    `location` is where its answers redirect to; a GET of any path succeeds.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            status = take(self.path, gzip.decompress(body) if self.headers["Content-Encoding"] == "gzip" else body)
            self._answer(status or 200)

        def do_GET(self) -> None:
            self._answer(200)

        def _answer(self, status: int) -> None:
            self.send_response(status)
            if location:
                self.send_header("Location", location)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer((LOOPBACK, 0), Handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def receiving_mails(mails: list[EmailMessage], user: str = "", password: str = "", **tls: Any) -> Iterator[int]:
    """Yield the port of a server that appends each mail to `mails`. With a user, it requires this login.

    Args:
        tls: `ssl_context` for a server of `smtps://`, `tls_context` for one with STARTTLS.
    """

    class Handler:
        async def handle_DATA(self, server: object, session: object, envelope: Envelope) -> str:
            assert envelope.original_content is not None
            mails.append(message_from_bytes(envelope.original_content, policy=policy.default))
            return "250 taken"

    def authenticate(*arguments: Any) -> AuthResult:
        *_, login = arguments
        return AuthResult(success=(login.login, login.password) == (user.encode(), password.encode()))

    required: dict[str, Any] = {"authenticator": authenticate, "auth_required": True, "auth_require_tls": False}
    controller = Controller(Handler(), hostname=LOOPBACK, port=free_port(), **(required if user else {}), **tls)
    with catch_warnings():
        simplefilter("ignore" if user else "default", UserWarning)  # a login without TLS
        controller.start()
        try:
            yield controller.port
        finally:
            controller.stop()
