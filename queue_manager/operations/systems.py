"""The systems: the state of all and of one, their scans, the schedule, their history, and marks in their charts.

Guarantee: reading the overview never fails and takes about 3 s at most. What a server did not answer is null, and
`servers` says why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from beat_schedule import systems, unknown_system
from models import mark, scan_run
from models.database import server_now
from models.due_documents import MAX_COUNT
from models.mark import ChartMark
from queue_manager.beat.status import Leadership, leadership, next_runs
from queue_manager.core.clock import local_now
from queue_manager.core.errors import NotFound
from queue_manager.core.log import get_logger
from queue_manager.core.settings import settings
from queue_manager.health.problems import problems_of_components, problems_of_system
from queue_manager.health.readings import Readings, read
from queue_manager.health_rules import Problem
from queue_manager.operations import cursors
from queue_manager.operations.schemas import latency_of, percentiles_of
from queue_manager.operations.system_schemas import (
    History,
    Leader,
    OneSystem,
    Overview,
    PercentileSeries,
    Scans,
    Schedule,
    ScheduleEntry,
    Servers,
    SystemHistory,
    SystemState,
)
from queue_manager.server_calls import mongodb, redis_server
from queue_manager.system import System, SystemStats, sources
from queue_manager.telemetry import counters
from queue_manager.telemetry.latency import MEASURES, Measure
from services import history
from services.audit import Actor, recorded
from services.history import Range

MAX_LAST_RUNS = 10
STATS_FIELDS = {
    "due": ("due", "pending"),
    "in_progress": ("in_progress",),
    "stuck": ("stuck", "overdue"),
    "failed": ("failed", "cooling_off", "dead"),
    "lag_seconds": ("lag_seconds",),
}
"""The names of the overview's numbers, each with its names in the statistics of systems."""

PAGE_STATES = {"lag_seconds": "late", "pending": "due", "in_progress": "in-progress", "cooling_off": "failed"}
"""The states of lists, by the statistics of what is in them, where the names differ."""

log = get_logger("QM/systems")


def find_system(name: str) -> System:
    """Return the system of a name. Raises `NotFound`."""
    by_name = {system.name: system for system in systems()}
    if name not in by_name:
        raise NotFound(unknown_system(name, [*by_name]), field="name")
    return by_name[name]


async def read_overview() -> Overview:
    """Return the overview. The servers are read in parallel, so that one that hangs delays no other."""
    return overview_of(await read())


def overview_of(found: Readings) -> Overview:
    """Return the overview of what was read."""
    redis, mongo = found.in_redis, found.in_mongodb
    return Overview(
        server_time=local_now() if mongo is None else mongo.now,
        servers=Servers(mongodb=_error(found.mongodb), redis=_error(found.redis)),
        leader=_leader(found.leader),
        workers=None if redis is None else redis.workers,
        problems=problems_of_components(found),
        counted_to=MAX_COUNT,
        systems=[_system(system, found) for system in systems()],
    )


def _error(answer: object) -> str | None:
    return answer.text if isinstance(answer, Problem) else None


def _system(system: System, found: Readings) -> SystemState:
    redis, mongo, is_on = found.in_redis, found.in_mongodb, system.is_on(settings())
    numbers, stats = found.numbers_of(system.name), found.stats.get(system.name)
    recent = None if redis is None else redis.recent.get(system.name)
    return SystemState(
        name=system.name,
        title=system.title,
        page=system.page,
        pages=_pages(system, numbers),
        flag=system.flag,
        is_on=is_on,
        **{field: _first(numbers, names) for field, names in STATS_FIELDS.items()},
        counted_to=stats.counted_to if isinstance(stats, SystemStats) else None,
        done_per_minute=None if recent is None else recent.minute.get("done", 0),
        failed_per_minute=None if recent is None else recent.minute.get("failed", 0),
        latency=None if recent is None or not is_on else latency_of(system, recent.hour),
        duration_names={**system.duration_names},
        errors=None if mongo is None or mongo.errors is None else mongo.errors.get(system.scan_task, 0),
        last_scan=None if mongo is None else mongo.last_runs[system.name],
        next_scan_at=None if redis is None or redis.leader is None or not is_on else redis.next_runs.get(system.name),
        is_running=mongo is not None and system.scan_task in mongo.running,
        is_starting=is_on and redis is not None and found.is_starting(system),
        idle=found.idle(system),
        pause=found.pause_of(system),
        problems=problems_of_system(system, found),
        numbers=numbers,
    )


def _first(numbers: Mapping[str, float], names: tuple[str, ...]) -> float | None:
    return next((round(numbers[name], 3) for name in names if name in numbers), None)


def _pages(system: System, numbers: Mapping[str, float]) -> dict[str, str]:
    """Return by field the page that lists what it counts."""
    known = {field: [name for name in names if name in numbers] for field, names in STATS_FIELDS.items()}
    return {field: system.page_of(PAGE_STATES.get(names[0], names[0])) for field, names in known.items() if names}


def _leader(leader: Leadership | None) -> Leader | None:
    if leader is None:
        return None
    return Leader(
        holder=f"{leader.host}:{leader.pid}",
        since=leader.since,
        lease_left_seconds=round(leader.lease_left.total_seconds(), 1),
        epoch=leader.epoch,
    )


def one_system(state: Overview, system: System) -> OneSystem:
    """Return the state of one system."""
    (found,) = [one for one in state.systems if one.name == system.name]
    hooks = settings().qm_hooks
    trigger = system.trigger_path if hooks else None
    return OneSystem(**dict(found), hooks=hooks, trigger=trigger, servers=state.servers, server_time=state.server_time)


def scan_page(system: System, cursor: str | None, limit: int, sort: Literal["at", "duration"]) -> Scans:
    """Return the newest scans of the last 24 hours, or the slowest. Raises `InvalidField` and `Unavailable`."""
    after = cursors.decode(cursor, of=system.name)
    if sort == "duration":
        with mongodb():
            runs = scan_run.slowest(system.scan_task, limit=limit)
            return Scans(scans=runs, cursor=None, server_time=server_now())
    with mongodb(), cursors.checked():
        runs, end = scan_run.page(system.scan_task, after=after, limit=limit)
        now = server_now()
    return Scans(scans=runs, cursor=cursors.encode(end, of=system.name), server_time=now)


def read_schedule() -> Schedule:
    """Return when each scan runs next, and what its last runs did. Raises `Unavailable`."""
    with redis_server() as client:
        leader = leadership(client)
        next_at_of = next_runs(client, [system.name for system in systems()]) if leader is not None else {}
    with mongodb():
        now = server_now()
        running = scan_run.running(now=now)
        entries = []
        for system in systems():
            is_on = system.is_on(settings())
            last_runs = scan_run.latest(system.scan_task, limit=MAX_LAST_RUNS)
            entries.append(
                ScheduleEntry(
                    name=system.name,
                    title=system.title,
                    description=system.description,
                    flag=system.flag,
                    task=system.scan_task,
                    is_on=is_on,
                    trigger=system.trigger_path if settings().qm_hooks else None,
                    period_seconds=system.period(settings()).total_seconds(),
                    cron=system.at,
                    next_run_at=next_at_of.get(system.name) if is_on else None,
                    is_running=system.scan_task in running,
                    last_run=last_runs[0] if last_runs else None,
                    last_runs=last_runs,
                )
            )
    return Schedule(server_time=now, leader=_leader(leader), hooks=settings().qm_hooks, entries=entries)


def last_day(listed: Sequence[System]) -> History:
    """Return how many items of these systems ended in the last 24 hours. Raises `Unavailable`."""
    counted = sources(listed)
    with mongodb(), redis_server():
        now = server_now()
        found = history.read_many([system for system in listed if system.name in counted], "24h", now=now)
    _, step = history.LENGTHS["24h"]
    return History(
        server_time=now,
        bucket_seconds=int(step.total_seconds()),
        begins_at=history.beginning("24h", now),
        systems={one.name: _outcomes(found[one.name]) if one.name in found else None for one in listed},
    )


def _outcomes(found: history.RangeHistory) -> dict[str, list[int]]:
    return {outcome: [count or 0 for count in found.numbers(outcome)] for outcome in counters.OUTCOMES}


def system_history(system: System, chosen: Range) -> SystemHistory:
    """Return what a system did: outcomes and latency, in steps. Raises `Unavailable`."""
    with mongodb(), redis_server():
        now = server_now()
        found = history.read(system, chosen, systems=systems(), now=now)
    return SystemHistory(
        server_time=now,
        begins_at=found.begins_at,
        step_seconds=int(found.step.total_seconds()),
        outcomes={outcome: found.numbers(outcome) for outcome in counters.OUTCOMES},
        percentiles={measure: _series(found, measure) for measure in MEASURES},
        latency=latency_of(system, found.total),
        duration_names={**system.duration_names},
        marks=found.marks,
    )


def add_mark(text: str, actor: Actor) -> ChartMark:
    """Annotate the charts at the current time, for example for a deployment. Raises `Unavailable`."""
    with recorded(actor, "mark", detail=text), mongodb():
        made = ChartMark(kind="deployment", at=server_now(), text=text, by=actor.who)
        mark.add(made)
    log.info("A mark was added", text=text)
    return made


def _series(found: history.RangeHistory, measure: Measure) -> PercentileSeries:
    steps = [percentiles_of(durations) for durations in found.histograms(measure)]
    return PercentileSeries(
        p50_ms=[None if one is None else one.p50_ms for one in steps],
        p95_ms=[None if one is None else one.p95_ms for one in steps],
        p99_ms=[None if one is None else one.p99_ms for one in steps],
    )
