"""How the systems stand: the overview, its last 24 hours, one system, its scans, the schedule."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse

from models import listing, scan_mark, scan_run
from models.database import server_now
from queue_manager.core.clock import to_iso
from queue_manager.core.schedule import Scan
from queue_manager.core.settings import settings
from queue_manager.dashboard.access.keys import now as own_now
from queue_manager.dashboard.answers import fresh
from queue_manager.dashboard.servers import mongodb, redis_server
from queue_manager.dashboard.systems import cursors
from queue_manager.dashboard.systems.board import Board
from queue_manager.dashboard.systems.named import SYSTEMS, Named
from queue_manager.dashboard.systems.overview import counted, shown_leader, shown_run
from queue_manager.transport import history, planned
from queue_manager.transport.leadership import LEADER_LOCK, leadership

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
        name: None if system.counted_as is None else day.counts[system.counted_as] for name, system in SYSTEMS.items()
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
    about = {"hooks": hooks, "trigger": system.trigger if hooks else None}
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
        found = scan_run.page(system.scan.task, after=after, limit=limit + 1)
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
        next_runs = planned.next_runs(client, list(SYSTEMS)) if leader is not None else {}
    with mongodb():
        now = server_now()
        running = scan_mark.running(now=now)
        entries = []
        for name, system in SYSTEMS.items():
            scan, next_at = system.scan, next_runs.get(name) if system.is_on else None
            last_runs = [shown_run(run) for run in scan_run.latest(scan.task, limit=LAST_RUNS)]
            entries.append(
                {
                    "name": name,
                    "title": system.title,
                    "task": scan.task,
                    "is_on": system.is_on,
                    "trigger": system.trigger if settings().qm_hooks else None,
                    "period_seconds": scan.period(settings()).total_seconds(),
                    "cron": _cron(scan),
                    "next_run_at": None if next_at is None else to_iso(next_at),
                    "is_running": scan.task in running,
                    "last_run": last_runs[0] if last_runs else None,
                    "last_runs": last_runs,
                }
            )
    shown = {"server_time": to_iso(now), "leader": shown_leader(leader), "hooks": settings().qm_hooks}
    return fresh({**shown, "entries": entries})


def _run(run: dict[str, Any]) -> dict[str, Any]:
    noted = {name: value for name, value in run.items() if name not in OF_A_RUN}
    return {"id": str(run["_id"]), **(shown_run(run) or {}), "noted": noted}


def _cron(scan: Scan) -> str | None:
    """Return the five fields of a cron line, `None` for a scan that simply runs every period."""
    if scan.at is None:
        return None
    at: Any = scan.at
    parts = (at._orig_minute, at._orig_hour, at._orig_day_of_month, at._orig_month_of_year, at._orig_day_of_week)
    return " ".join(map(str, parts))
