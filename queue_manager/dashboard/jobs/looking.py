"""Looking at jobs: a page of them, one, and how the queues stand."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi.responses import JSONResponse

from models.database import server_now
from queue_manager.core.clock import to_iso
from queue_manager.dashboard.jobs.given import naming
from queue_manager.dashboard.servers import mongodb
from services.job_queues import as_json, jobs

USUAL_PAGE, LARGEST_PAGE = 50, 200

router = APIRouter()


@router.get("/jobs")
def page(
    name: Annotated[str | None, Query()] = None,
    state: Annotated[str | None, Query()] = None,
    before: Annotated[str | None, Query()] = None,
    limit: Annotated[int, Query(ge=1, le=LARGEST_PAGE)] = USUAL_PAGE,
) -> JSONResponse:
    """List jobs, the newest first. `cursor` is the next page's `before`; null on the last."""
    with mongodb(), naming(id="before"):
        found = jobs.list(name=name or None, state=state or None, before=before or None, limit=limit + 1)
        now = server_now()
    shown = [as_json(job) for job in found[:limit]]
    return _answer(
        {"jobs": shown, "cursor": shown[-1]["_id"] if len(found) > limit else None, "server_time": to_iso(now)}
    )


@router.get("/jobs/status")
def status() -> JSONResponse:
    """Say of each name how many jobs are in which state and what comes next; and who leads."""
    with mongodb():
        return _answer({**as_json(jobs.status()), "server_time": to_iso(server_now())})


@router.get("/jobs/{id}")
def show(id: str) -> JSONResponse:
    with mongodb():
        return _answer({"job": as_json(jobs.get(id))})


def _answer(content: dict[str, Any]) -> JSONResponse:
    return JSONResponse(content, headers={"cache-control": "no-store"})
