"""Jobs over HTTP, under `/api/jobs`, where jobs run: `QM_JOBS`, and `JOBS_PRODUCTION_ONLY` allows it.

Guarantee: every request is done, or refused in the one form of errors, with the field.
"""

from __future__ import annotations

from fastapi import FastAPI

from queue_manager.web.auth import operator, viewer
from queue_manager.web.live.event_feed import Feed
from queue_manager.web.routes.jobs import commands, error_responses, events, queries
from queue_manager.web.routes.jobs.events import JobEvents
from services.job_queues import registry

__all__ = ["JobEvents", "install"]


def install(api: FastAPI, feed: Feed[str]) -> None:
    """Add the routes. Raises `ConfigurationError`: a module of `JOBS_IMPORTS` cannot be imported."""
    registry.load()
    api.state.job_feed = feed
    error_responses.install(api)
    for part, rule in ((events, viewer), (queries, viewer), (commands, operator)):
        api.include_router(part.router, prefix="/api", dependencies=[rule], tags=["jobs"])
