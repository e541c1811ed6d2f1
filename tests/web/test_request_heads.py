"""Request lines, headers and trailers that never end: refused before they fill the memory."""

from __future__ import annotations

import socket

import pytest

from queue_manager.web.serve import MAX_HEAD_SIZE
from tests.web.web_process import Web

PART = 4_096
MAX_SENT = 64 * MAX_HEAD_SIZE
REQUEST = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
CHUNKED = b"POST /login HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"


def refusal(process: Web, begin: bytes, part: bytes) -> bytes:
    """Repeat `part` until the server answers; return the status line, which is lost if the server closed before."""
    with socket.create_connection(("127.0.0.1", process.port), timeout=10) as client:
        client.sendall(begin)
        sent = 0
        try:
            while sent < MAX_SENT:
                client.sendall(part)
                sent += len(part)
                client.settimeout(0.01)
                try:
                    return client.recv(1_024).partition(b"\r\n")[0]
                except TimeoutError:
                    client.settimeout(10)
        except ConnectionError:
            return b""
    raise AssertionError(f"{sent} bytes were not refused")


@pytest.mark.parametrize(
    ("begin", "part"),
    [
        (b"GET /", b"a" * PART),
        (REQUEST, b"X-Name: " + b"a" * PART + b"\r\n"),
        (REQUEST + b"X-Name: ", b"a" * PART),
        (CHUNKED + b"5\r\nkey=a\r\n0\r\n", b"X-Name: " + b"a" * PART + b"\r\n"),
    ],
    ids=["request line", "headers", "one header", "trailers"],
)
def test_a_head_without_an_end_is_refused(process: Web, begin: bytes, part: bytes) -> None:
    assert refusal(process, begin, part) in (b"HTTP/1.1 400 Bad Request", b"")


def test_many_requests_on_one_connection_are_answered(process: Web) -> None:
    request = REQUEST + b"X-Name: " + b"a" * PART + b"\r\n\r\n"
    with socket.create_connection(("127.0.0.1", process.port), timeout=10) as client:
        with client.makefile("rb") as answers:
            for _ in range(2 * MAX_HEAD_SIZE // PART):
                for half in (request[: PART // 2], request[PART // 2 :]):
                    client.sendall(half)
                head = b"".join(iter(answers.readline, b"\r\n"))
                assert head.startswith(b"HTTP/1.1 200 ")
                assert answers.read(15) == b'{"status":"ok"}'


def test_a_long_body_in_small_chunks_is_read(process: Web) -> None:
    chunk = b"400\r\n" + b"a" * 1_024 + b"\r\n"
    with socket.create_connection(("127.0.0.1", process.port), timeout=10) as client:
        client.sendall(CHUNKED)
        for _ in range(3 * MAX_HEAD_SIZE // 1_024):
            client.sendall(chunk)
        client.sendall(b"0\r\n\r\n")
        assert client.recv(1_024).startswith(b"HTTP/1.1 413 ")
