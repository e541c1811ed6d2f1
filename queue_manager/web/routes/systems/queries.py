"""The state of the systems: the last 24 hours, one system, its scans, the schedule."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Path, Query, Request

from queue_manager.operations.system_schemas import OneSystem, Scans, Schedule
from queue_manager.operations.systems import find_system, one_system, read_schedule, scan_page
from queue_manager.system import System
from queue_manager.web.http.errors import errors
from queue_manager.web.http.requests import Cursor
from queue_manager.web.routes.systems.events import current_overview

DEFAULT_PAGE_SIZE = 50

PageSize = Annotated[int, Query(ge=1, le=200)]

router, of_all = APIRouter(), APIRouter()


def _system_in_path(name: Annotated[str, Path()]) -> System:
    return find_system(name)


Named = Annotated[System, Depends(_system_in_path)]
"""The system that a path names."""


@router.get("/systems/{name}", responses=errors(404))
async def one(system: Named, request: Request) -> OneSystem:
    """Return the state of one system."""
    return one_system(await current_overview(request), system)


@router.get("/systems/{name}/scans", responses=errors(404, 503))
def scans(
    system: Named,
    cursor: Cursor = None,
    limit: PageSize = DEFAULT_PAGE_SIZE,
    sort: Annotated[
        Literal["at", "duration"], Query(description="The newest first, or the slowest, which have no `cursor`.")
    ] = "at",
) -> Scans:
    """List the scans of the last 24 hours."""
    return scan_page(system, cursor, limit, sort)


@of_all.get("/schedule", responses=errors(503))
def schedule() -> Schedule:
    """List the scans of the schedule: when each runs next, and what its last runs did."""
    return read_schedule()
