"""The message queue over HTTP, under `/api/queue` and `/api/health`, while `QM_MESSAGE_QUEUE` is true.

Guarantee: a payload goes in and out byte for byte; every refusal has the one form of errors, with the field; nothing
that a client sends, or that it waits for, delays another client.
"""

from __future__ import annotations

from fastapi import FastAPI

from queue_manager.web.auth import operator, viewer
from queue_manager.web.routes.messages import (
    consumers,
    error_responses,
    events,
    listing,
    operator_actions,
    producers,
    stats,
)
from queue_manager.web.routes.messages.background import Background

__all__ = ["Background", "install"]


def install(api: FastAPI, background: Background) -> None:
    """Add the routes. Receiving a message has an effect, although it is a GET."""
    api.state.background = background
    error_responses.install(api)
    for part in (producers, consumers, operator_actions):
        api.include_router(part.router, prefix="/api", dependencies=[operator], tags=["queue"])
    for part in (stats, events, listing):
        api.include_router(part.router, prefix="/api", dependencies=[viewer], tags=["queue"])
