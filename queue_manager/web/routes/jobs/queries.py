"""Looking at jobs: a page of them, one, and how the queues stand."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from fastapi.responses import JSONResponse

from models.database import server_now
from queue_manager.core.clock import to_iso
from queue_manager.web.http.responses import fresh
from queue_manager.web.server_calls import mongodb
from services.job_queues import as_json, jobs
from services.job_queues.job_page import SORT_BY_ID

USUAL_PAGE, LARGEST_PAGE = 50, 200

Text = Annotated[str | None, Query()]

router = APIRouter()


@router.get("/jobs")
def page(
    name: Text = None,
    state: Text = None,
    search: Text = None,
    sort: Text = None,
    order: Annotated[Literal["asc", "desc", ""], Query()] = "",
    before: Text = None,
    limit: Annotated[int, Query(ge=1, le=LARGEST_PAGE)] = USUAL_PAGE,
) -> JSONResponse:
    """List jobs, the newest first unless it is asked otherwise.

    `search` looks into the arguments, the name and the last error. `sort` is created, due, updated, priority or
    attempts. `cursor` is the next page's `before`; null on the last. With `is_partial` a search
    stopped before the page was full, and goes on at the cursor.
    """
    asked: dict[str, Any] = {
        "name": name or None,
        "state": state or None,
        "search": search or None,
        "sort": sort or SORT_BY_ID,
        "is_descending": order != "asc",
    }
    with mongodb():
        found = jobs.page(**asked, before=before or None, limit=limit)
        now = server_now()
    return fresh(
        {
            "jobs": [as_json(job) for job in found.jobs],
            "cursor": found.cursor,
            "is_partial": found.is_partial,
            "server_time": to_iso(now),
        }
    )


@router.get("/jobs/status")
def status() -> JSONResponse:
    """Say of each name how many jobs are in which state and what comes next; and who leads."""
    with mongodb():
        return fresh({**as_json(jobs.status()), "server_time": to_iso(server_now())})


@router.get("/jobs/{id}")
def show(id: str) -> JSONResponse:
    with mongodb():
        return fresh({"job": as_json(jobs.get(id))})
