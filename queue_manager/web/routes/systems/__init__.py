"""The systems over HTTP: how each stands, live; its items, its scans, the schedule.

Guarantee: a server that is away leaves its figures out and says so, within about 3 s; the servers are looked at once a
second at most, however many pages are open, and not at all while nobody asks.
"""

from __future__ import annotations

from fastapi import FastAPI

from queue_manager.web.auth import operator, viewer
from queue_manager.web.routes.systems import commands, events, listing, queries
from queue_manager.web.routes.systems.overview import look
from queue_manager.web.routes.systems.overview_broadcaster import Board

__all__ = ["Board", "install", "look"]


def install(api: FastAPI, board: Board) -> None:
    """Add the routes."""
    api.state.board = board
    for part, rule in ((queries, viewer), (events, viewer), (listing, viewer), (commands, operator)):
        api.include_router(part.router, prefix="/api", dependencies=[rule])
