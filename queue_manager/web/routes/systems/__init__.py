"""The systems over HTTP: the state of each, live; its items, its scans, the schedule.

Guarantee: the numbers of a server that is away are null, with the reason, within about 3 s; the servers are read at
most once a second, however many pages are open, and not at all while none is.
"""

from __future__ import annotations

from fastapi import FastAPI

from queue_manager.web.auth import operator, viewer
from queue_manager.web.live.event_feed import Feed
from queue_manager.web.routes.systems import commands, events, history, items, queries
from queue_manager.web.routes.systems.events import OverviewStates

__all__ = ["OverviewStates", "install"]


def install(api: FastAPI, overview: Feed[int]) -> None:
    """Add the routes."""
    api.state.overview_feed = overview
    for router in (queries.router, events.router, items.router, history.router):
        api.include_router(router, prefix="/api", dependencies=[viewer], tags=["systems"])
    for router in (items.retries, commands.router, history.marks):
        api.include_router(router, prefix="/api", dependencies=[operator], tags=["systems"])
