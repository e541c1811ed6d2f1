"""The systems over HTTP: the state of each, live; its items, its scans, the schedule.

Guarantee: the numbers of an unavailable server are null, with the reason, within about 3 s; the servers are read at
most once a second, however many pages are open, and not at all while none is.
"""

from __future__ import annotations

from fastapi import FastAPI

from queue_manager.web.auth import EACH, IN_PATH, operator, operator_of, viewer, viewer_of
from queue_manager.web.live.event_feed import Feed
from queue_manager.web.routes.systems import commands, events, history, items, queries
from queue_manager.web.routes.systems.events import OverviewStates

__all__ = ["OverviewStates", "install"]


def install(api: FastAPI, overview: Feed[int]) -> None:
    """Add the routes."""
    api.state.overview_feed = overview
    for router, role in (
        (queries.router, viewer_of(IN_PATH)),
        (queries.of_all, viewer),
        (events.router, viewer_of(EACH)),
        (items.router, viewer_of(IN_PATH)),
        (history.router, viewer_of(IN_PATH)),
        (items.retries, operator_of(IN_PATH)),
        (commands.router, operator_of(IN_PATH)),
        (history.marks, operator),
    ):
        api.include_router(router, prefix="/api", dependencies=[role], tags=["systems"])
