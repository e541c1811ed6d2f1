"""Whether a request wants a page for a person, or an answer for a program."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import Request
from starlette.datastructures import Headers

SAFE = {"GET", "HEAD"}


class LoginFirst(Exception):
    """A page was opened without a session."""


def address_of(scope: Mapping[str, Any]) -> str | None:
    """Return the address of the client; behind a proxy that uvicorn trusts, the one that the proxy names."""
    client = scope.get("client")
    return client[0] if client else None


def prefers_page(headers: Headers) -> bool:
    """Return True if a browser shows the answer."""
    return "text/html" in headers.get("accept", "")


def is_page_view(request: Request) -> bool:
    return request.method in SAFE and prefers_page(request.headers)
