"""Reading jobs: a page of them, one, and the state of the queues."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from fastapi.responses import JSONResponse
from pydantic import BeforeValidator

from models.database import server_now
from models.job import JobState
from queue_manager.core.clock import to_iso
from queue_manager.web.http import cursors
from queue_manager.web.http.cursors import Cursor
from queue_manager.web.http.errors import errors
from queue_manager.web.http.requests import EmptyIsNone
from queue_manager.web.http.responses import fresh
from queue_manager.web.routes.jobs.schemas import AnyJob, JobName, Jobs, JobsStatus, SortField
from queue_manager.web.server_calls import mongodb
from services.job_queues import as_json, jobs
from services.job_queues.fields import MAX_JOB_SEARCH_LENGTH, STATE_ALIASES

DEFAULT_LIMIT, MAX_LIMIT = 50, 200

router = APIRouter(responses=errors(503))


def _spelled(state: Any) -> Any:
    return STATE_ALIASES.get(state, state)


@router.get("/jobs", response_model=Jobs)
def page(
    name: Annotated[JobName | None, EmptyIsNone] = None,
    state: Annotated[JobState | None, EmptyIsNone, BeforeValidator(_spelled)] = None,
    search: Annotated[str | None, Query(max_length=MAX_JOB_SEARCH_LENGTH)] = None,
    sort: Annotated[SortField | None, EmptyIsNone] = None,
    order: Annotated[Literal["asc", "desc"] | None, EmptyIsNone] = None,
    cursor: Cursor = None,
    limit: Annotated[int, Query(ge=1, le=MAX_LIMIT)] = DEFAULT_LIMIT,
) -> JSONResponse:
    """List jobs, by default the newest first.

    `search` looks into the arguments, the name and the last error. With `is_partial` a search stopped for its time
    before the page was full, and goes on at the cursor.
    """
    by, is_descending = sort or "created", order != "asc"
    of = f"jobs {by} {'desc' if is_descending else 'asc'}"
    after = cursors.decode(cursor, of=of)
    with mongodb(), cursors.checked():
        found = jobs.page(
            name=name,
            state=state,
            search=search or None,
            sort=by,
            is_descending=is_descending,
            after=after,
            limit=limit,
        )
        now = server_now()
    return fresh(
        {
            "jobs": [as_json(job) for job in found.jobs],
            "cursor": None if found.end is None else cursors.encode(found.end, of=of),
            "is_partial": found.is_partial,
            "server_time": to_iso(now),
        }
    )


@router.get("/jobs/status", response_model=JobsStatus)
def status() -> JSONResponse:
    """Return how many jobs of each name are in which state and what comes next, and which beat dispatches them."""
    with mongodb():
        return fresh({**as_json(jobs.status()), "server_time": to_iso(server_now())})


@router.get("/jobs/{id}", response_model=AnyJob, responses=errors(404))
def show(id: str) -> JSONResponse:
    """Return one job."""
    with mongodb():
        return fresh({"job": as_json(jobs.get(id))})
