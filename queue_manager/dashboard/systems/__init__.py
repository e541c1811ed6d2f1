"""The systems over HTTP: how each stands, live; its items, its scans, the schedule.

Guarantee: a server that is away leaves its figures out and says so, within about 3 s; the servers are looked at once a
second at most, however many pages are open, and not at all while nobody asks.
"""

from __future__ import annotations

from fastapi import FastAPI

from queue_manager.dashboard.access import operator, viewer
from queue_manager.dashboard.systems import events, listing, looking, retrying
from queue_manager.dashboard.systems.board import Board
from queue_manager.dashboard.systems.overview import look

__all__ = ["Board", "install", "look"]


def install(api: FastAPI, board: Board) -> None:
    """Add the routes."""
    api.state.board = board
    for part, rule in ((looking, viewer), (events, viewer), (listing, viewer), (retrying, operator)):
        api.include_router(part.router, prefix="/api", dependencies=[rule])
