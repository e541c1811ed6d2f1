"""Answers that are true for a moment only."""

from __future__ import annotations

from typing import Any

from fastapi import Depends, Response
from fastapi.responses import JSONResponse

NO_STORE = {"cache-control": "no-store"}


async def _no_store(response: Response) -> None:
    response.headers.update(NO_STORE)


no_store = Depends(_no_store)
"""Lets no cache keep the answers of a route: they change all the time, and not everybody may see them."""


def fresh(content: dict[str, Any]) -> JSONResponse:
    """Return an answer that no cache keeps, as it is: for payloads that need not be validated."""
    return JSONResponse(content, headers=NO_STORE)
