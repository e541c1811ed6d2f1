"""Jobs over HTTP, under `/api/jobs`, where jobs run: `QM_JOBS`, and `JOBS_PRODUCTION_ONLY` allows it.

Guarantee: every request is done, or refused in the one form of errors, with the field.
"""

from __future__ import annotations

from fastapi import FastAPI

from queue_manager.web.auth import operator, viewer
from queue_manager.web.live.event_feed import Feed
from queue_manager.web.routes.jobs import endpoints, events
from queue_manager.web.routes.jobs.events import JobEvents
from services.job_queues import registry

__all__ = ["JobEvents", "install"]


def install(api: FastAPI, feed: Feed[str]) -> None:
    """Add the routes. Raises `ConfigurationError`: a module of `JOBS_IMPORTS` cannot be imported."""
    registry.load()
    api.state.job_feed = feed
    endpoints.install_error_responses(api)
    for router, role in ((events.router, viewer), (endpoints.queries, viewer), (endpoints.commands, operator)):
        api.include_router(router, prefix="/api", dependencies=[role], tags=["jobs"])
