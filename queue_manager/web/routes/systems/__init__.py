"""The systems over HTTP: the state of each, live; its items, its scans, the schedule.

Guarantee: the numbers of a server that is away are null, with the reason, within about 3 s; the servers are read at
most once a second, however many pages are open, and not at all while none is.
"""

from __future__ import annotations

from fastapi import FastAPI

from queue_manager.web.auth import operator, viewer
from queue_manager.web.routes.systems import commands, events, listing, queries
from queue_manager.web.routes.systems.overview import read_overview
from queue_manager.web.routes.systems.overview_broadcaster import OverviewBroadcaster

__all__ = ["OverviewBroadcaster", "install", "read_overview"]


def install(api: FastAPI, overview: OverviewBroadcaster) -> None:
    """Add the routes."""
    api.state.overview = overview
    for part, rule in ((queries, viewer), (events, viewer), (listing, viewer), (commands, operator)):
        api.include_router(part.router, prefix="/api", dependencies=[rule], tags=["systems"])
