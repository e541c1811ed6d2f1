"""The systems over HTTP: the state of each, live; its items, its scans; the schedule, the workers.

Guarantee: the numbers of an unavailable server are null, with the reason, within about 3 s; the servers are read at
most once a second, however many pages are open, and not at all while none is.
"""

from __future__ import annotations

from fastapi import FastAPI

from queue_manager.web.auth.authorization import EACH, IN_PATH, operator, operator_of, viewer, viewer_of
from queue_manager.web.live.event_feed import Feed
from queue_manager.web.routes.systems import endpoints, events
from queue_manager.web.routes.systems.events import OverviewStates

__all__ = ["OverviewStates", "install"]


def install(api: FastAPI, overview: Feed[int]) -> None:
    """Add the routes."""
    api.state.overview_feed = overview
    for router, role in (
        (events.router, viewer_of(EACH)),
        (endpoints.queries, viewer_of(IN_PATH)),
        (endpoints.queries_of_all, viewer),
        (endpoints.queries_of_each, viewer_of(EACH)),
        (endpoints.commands, operator_of(IN_PATH)),
        (endpoints.commands_of_all, operator),
    ):
        api.include_router(router, prefix="/api", dependencies=[role], tags=["systems"])
