"""The state of the systems: the last 24 hours, one system, its scans, the schedule."""

from __future__ import annotations

from collections.abc import Iterable
from http import HTTPStatus
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Path, Query, Request

from beat_schedule import systems, unknown_system
from models import listing, scan_run
from models.database import server_now
from queue_manager.beat.status import leadership, next_runs
from queue_manager.core.settings import settings
from queue_manager.server_calls import mongodb, redis_server
from queue_manager.system import System
from queue_manager.web.http import cursors
from queue_manager.web.http.cursors import Cursor
from queue_manager.web.http.errors import ApiError, errors
from queue_manager.web.routes.systems.events import current_overview
from queue_manager.web.routes.systems.overview import leader_of, numbers_of, scan_of
from queue_manager.web.routes.systems.schemas import OneSystem, Overview, Scan, Scans, Schedule, ScheduleEntry
from queue_manager.web.routes.triggers import path_of as trigger_of

DEFAULT_PAGE_SIZE = 50
MAX_LAST_RUNS = 10
RUN_FIELDS = {"_id", "scan", "at", "found", "claimed", "enqueued", "errors", "duration_ms", "error"}

PageSize = Annotated[int, Query(ge=1, le=200)]

router, of_all = APIRouter(), APIRouter()


def find_system(name: str, known: Iterable[System]) -> System:
    """Return the system of a name. Raises `ApiError`."""
    by_name = {system.name: system for system in known}
    if name not in by_name:
        raise ApiError(HTTPStatus.NOT_FOUND, "not found", unknown_system(name, [*by_name]), field="name")
    return by_name[name]


def _named(name: Annotated[str, Path()]) -> System:
    return find_system(name, systems())


Named = Annotated[System, Depends(_named)]
"""The system that a path names."""


@router.get("/systems/{name}", responses=errors(404))
async def one(system: Named, request: Request) -> OneSystem:
    """Return the state of one system."""
    return one_of(await current_overview(request), system)


def one_of(state: Overview, system: System) -> OneSystem:
    """Return the state of one system."""
    (found,) = [one for one in state.systems if one.name == system.name]
    hooks = settings().qm_hooks
    trigger = trigger_of(system) if hooks else None
    return OneSystem(**dict(found), hooks=hooks, trigger=trigger, servers=state.servers, server_time=state.server_time)


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
    after = cursors.decode(cursor, of=system.name)
    if sort == "duration":
        with mongodb():
            runs = scan_run.slowest(system.scan_task, limit=limit)
            return Scans(scans=list(map(_scan, runs)), cursor=None, server_time=server_now())
    with mongodb(), cursors.checked():
        found = scan_run.page(system.scan_task, after=after, limit=limit + 1)
        now = server_now()
    shown, has_more = found[:limit], len(found) > limit
    return Scans(
        scans=[_scan(run) for run in shown],
        cursor=cursors.encode(listing.position(shown[-1], scan_run.RUN_ORDER), of=system.name) if has_more else None,
        server_time=now,
    )


@of_all.get("/schedule", responses=errors(503))
def schedule() -> Schedule:
    """List the scans of the schedule: when each runs next, and what its last runs did."""
    with redis_server() as client:
        leader = leadership(client)
        next_at_of = next_runs(client, [system.name for system in systems()]) if leader is not None else {}
    with mongodb():
        now = server_now()
        running = scan_run.running(now=now)
        entries = []
        for system in systems():
            is_on = system.is_on(settings())
            runs = map(scan_of, scan_run.latest(system.scan_task, limit=MAX_LAST_RUNS))
            last_runs = [run for run in runs if run is not None]
            entries.append(
                ScheduleEntry(
                    name=system.name,
                    title=system.title,
                    description=system.description,
                    flag=system.flag,
                    task=system.scan_task,
                    is_on=is_on,
                    trigger=trigger_of(system) if settings().qm_hooks else None,
                    period_seconds=system.period(settings()).total_seconds(),
                    cron=system.at,
                    next_run_at=next_at_of.get(system.name) if is_on else None,
                    is_running=system.scan_task in running,
                    last_run=last_runs[0] if last_runs else None,
                    last_runs=last_runs,
                )
            )
    return Schedule(server_time=now, leader=leader_of(leader), hooks=settings().qm_hooks, entries=entries)


def _scan(run: dict[str, Any]) -> Scan:
    noted = {name: value for name, value in run.items() if name not in RUN_FIELDS}
    return Scan(id=str(run["_id"]), noted=noted, **numbers_of(run))
