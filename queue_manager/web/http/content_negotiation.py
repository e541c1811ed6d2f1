"""How a request asks: for a page that somebody looks at, or as a program."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import Request
from starlette.datastructures import Headers

SAFE = {"GET", "HEAD"}


class LoginFirst(Exception):
    """Somebody opened a page without being logged in."""


def address_of(scope: Mapping[str, Any]) -> str | None:
    """Return the address of the client; behind a proxy that uvicorn trusts, the one that the proxy names."""
    client = scope.get("client")
    return client[0] if client else None


def prefers_page(headers: Headers) -> bool:
    """Tell whether a browser shows the answer to somebody."""
    return "text/html" in headers.get("accept", "")


def is_page_view(request: Request) -> bool:
    return request.method in SAFE and prefers_page(request.headers)
