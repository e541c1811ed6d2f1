"""Jobs over HTTP, under `/api/jobs`, where jobs run: `QM_JOBS`, and `JOBS_PRODUCTION_ONLY` allows it.

Guarantee: every request is done, or refused in the one form of errors, with the field.
"""

from __future__ import annotations

from fastapi import FastAPI

from queue_manager.web.auth.authorization import operator_of, viewer_of
from queue_manager.web.live.event_feed import Feed
from queue_manager.web.routes.jobs import endpoints, events
from queue_manager.web.routes.jobs.events import JobEvents
from services.job_queues import registry, system

__all__ = ["JobEvents", "install"]


def install(api: FastAPI, feed: Feed[str]) -> None:
    """Add the routes. Raises `ConfigurationError`: a module of `JOBS_IMPORTS` cannot be imported."""
    registry.load()
    api.state.job_feed = feed
    for router, role_of in (
        (events.router, viewer_of),
        (endpoints.queries, viewer_of),
        (endpoints.commands, operator_of),
    ):
        api.include_router(router, prefix="/api", dependencies=[role_of(system.name)], tags=["jobs"])
