"""Answers that are true for a moment only."""

from __future__ import annotations

from typing import Any

from fastapi.responses import JSONResponse

NOT_KEPT = {"cache-control": "no-store"}


def fresh(content: dict[str, Any]) -> JSONResponse:
    """Return an answer that no cache keeps: what it tells changes all the time, and not everybody may see it."""
    return JSONResponse(content, headers=NOT_KEPT)
