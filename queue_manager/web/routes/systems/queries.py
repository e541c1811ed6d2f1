"""How the systems stand: the overview, its last 24 hours, one system, its scans, the schedule."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse

from beat_schedule import systems
from models import listing, scan_mark, scan_run
from models.database import server_now
from queue_manager.beat import next_runs
from queue_manager.beat.leader_lock import LEADER_LOCK, leadership
from queue_manager.core.clock import to_iso
from queue_manager.core.settings import settings
from queue_manager.telemetry import history
from queue_manager.web.auth.keys import now as own_now
from queue_manager.web.http.responses import fresh
from queue_manager.web.routes.systems import cursors
from queue_manager.web.routes.systems.overview import counted, shown_leader, shown_run
from queue_manager.web.routes.systems.overview_broadcaster import Board
from queue_manager.web.routes.systems.registry import Named
from queue_manager.web.routes.triggers import path_of as trigger_of
from queue_manager.web.server_calls import mongodb, redis_server

USUAL_PAGE, LARGEST_PAGE = 50, 200
LAST_RUNS = 10
OF_A_RUN = {"_id", "scan", "at", "found", "claimed", "enqueued", "errors", "duration_ms", "error"}

router = APIRouter()


@router.get("/overview")
async def overview(request: Request) -> JSONResponse:
    """Tell who leads, which workers are online, and how each system stands. A server that is away is said, not 503."""
    board: Board = request.app.state.board
    return fresh(await board.state())


@router.get("/overview/history")
def last_day() -> JSONResponse:
    """Tell how many items ended how in the last 24 hours, in buckets of ten minutes, oldest first."""
    with redis_server() as client:
        day = history.day(client, counted())
    of_systems = {
        system.name: None if system.counted_as is None else day.counts[system.counted_as] for system in systems()
    }
    return fresh(
        {
            "server_time": to_iso(own_now()),
            "bucket_seconds": history.BUCKET_SECONDS,
            "begins_at": to_iso(day.begins_at),
            "systems": of_systems,
        }
    )


@router.get("/systems/{name}")
async def one(system: Named, request: Request) -> JSONResponse:
    """Tell how one system stands."""
    board: Board = request.app.state.board
    state = await board.state()
    (found,) = [of_one for of_one in state["systems"] if of_one["name"] == system.name]
    hooks = settings().qm_hooks
    about = {"hooks": hooks, "trigger": trigger_of(system) if hooks else None}
    return fresh({**found, **about, "servers": state["servers"], "server_time": state["server_time"]})


@router.get("/systems/{name}/scans")
def scans(
    system: Named,
    before: Annotated[str | None, Query()] = None,
    limit: Annotated[int, Query(ge=1, le=LARGEST_PAGE)] = USUAL_PAGE,
) -> JSONResponse:
    """List what its scans of the last 24 hours did, newest first."""
    after = cursors.position(before, of=system.name)
    with mongodb(), cursors.checked():
        found = scan_run.page(system.scan_task, after=after, limit=limit + 1)
        now = server_now()
    shown = found[:limit]
    cursor = (
        cursors.written(listing.position(shown[-1], scan_run.ORDER), of=system.name) if len(found) > limit else None
    )
    return fresh({"scans": [_run(run) for run in shown], "cursor": cursor, "server_time": to_iso(now)})


@router.get("/schedule")
def schedule() -> JSONResponse:
    """List every scan of the schedule: when it runs next, and what its last runs did."""
    with redis_server() as client:
        leader = leadership(client, LEADER_LOCK)
        next_at_of = next_runs.next_runs(client, [system.name for system in systems()]) if leader is not None else {}
    with mongodb():
        now = server_now()
        running = scan_mark.running(now=now)
        entries = []
        for system in systems():
            is_on = system.is_on(settings())
            next_at = next_at_of.get(system.name) if is_on else None
            last_runs = [shown_run(run) for run in scan_run.latest(system.scan_task, limit=LAST_RUNS)]
            entries.append(
                {
                    "name": system.name,
                    "title": system.title,
                    "description": system.description,
                    "flag": system.flag,
                    "task": system.scan_task,
                    "is_on": is_on,
                    "trigger": trigger_of(system) if settings().qm_hooks else None,
                    "period_seconds": system.period(settings()).total_seconds(),
                    "cron": system.at,
                    "next_run_at": None if next_at is None else to_iso(next_at),
                    "is_running": system.scan_task in running,
                    "last_run": last_runs[0] if last_runs else None,
                    "last_runs": last_runs,
                }
            )
    shown = {"server_time": to_iso(now), "leader": shown_leader(leader), "hooks": settings().qm_hooks}
    return fresh({**shown, "entries": entries})


def _run(run: dict[str, Any]) -> dict[str, Any]:
    noted = {name: value for name, value in run.items() if name not in OF_A_RUN}
    return {"id": str(run["_id"]), **(shown_run(run) or {}), "noted": noted}
