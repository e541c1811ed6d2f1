"""How a request asks: for a page that somebody looks at, or as a program."""

from __future__ import annotations

from fastapi import Request
from starlette.datastructures import Headers

SAFE = {"GET", "HEAD"}


class LoginFirst(Exception):
    """Somebody opened a page without being logged in."""


def prefers_page(headers: Headers) -> bool:
    """Tell whether a browser shows the answer to somebody."""
    return "text/html" in headers.get("accept", "")


def is_page_view(request: Request) -> bool:
    return request.method in SAFE and prefers_page(request.headers)
