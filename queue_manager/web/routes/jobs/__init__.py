"""Jobs over HTTP, under `/api/jobs`, where jobs run: `QM_JOBS`, and `JOBS_PRODUCTION_ONLY` allows it.

Guarantee: whatever a client sends, it is answered: done, or refused in the one form of errors with the field.
"""

from __future__ import annotations

from http import HTTPStatus

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from queue_manager.web.auth import operator, viewer
from queue_manager.web.http.errors import answer
from queue_manager.web.routes.jobs import commands, events, queries
from queue_manager.web.routes.jobs.feed import Feed
from services.job_queues import DuplicateJob, InvalidJob, UnknownJob, WrongState, registry

__all__ = ["Feed", "install"]

STATUSES: dict[type[Exception], tuple[HTTPStatus, str]] = {
    InvalidJob: (HTTPStatus.UNPROCESSABLE_ENTITY, "invalid"),
    UnknownJob: (HTTPStatus.NOT_FOUND, "not found"),
    WrongState: (HTTPStatus.CONFLICT, "wrong state"),
    DuplicateJob: (HTTPStatus.CONFLICT, "blocked"),
}


def install(api: FastAPI, feed: Feed) -> None:
    """Add the routes. Raises `ConfigurationError`: a module of `JOBS_IMPORTS` cannot be imported."""
    registry.load()
    api.state.job_feed = feed
    for kind in STATUSES:
        api.add_exception_handler(kind, _refuse)
    for part, rule in ((events, viewer), (queries, viewer), (commands, operator)):
        api.include_router(part.router, prefix="/api", dependencies=[rule])


async def _refuse(_: Request, error: Exception) -> JSONResponse:
    status, word = STATUSES[type(error)]
    return answer(status, word, str(error), field=error.field if isinstance(error, InvalidJob) else None)
