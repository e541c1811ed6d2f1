"""The overview: the leader, the workers online, the state of each system.

Guarantee: reading it never fails and takes about 3 s at most. What a server did not answer is null, and `servers` says
why.
"""

from __future__ import annotations

from collections.abc import Mapping

from beat_schedule import systems
from models.due_documents import MAX_COUNT
from queue_manager.beat.status import Leadership
from queue_manager.core.clock import local_now
from queue_manager.core.settings import settings
from queue_manager.health import Readings, problems_of_components, problems_of_system, read
from queue_manager.health_rules import Problem
from queue_manager.operations.schemas import latency_of
from queue_manager.operations.system_schemas import Leader, Overview, Servers, SystemState
from queue_manager.system import System, SystemStats

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


async def read_overview() -> Overview:
    """Return the overview. The servers are read in parallel, so that one that hangs delays no other."""
    return overview_of(await read())


def overview_of(found: Readings) -> Overview:
    """Return the overview of what was read."""
    redis, mongo = found.in_redis, found.in_mongodb
    return Overview(
        server_time=local_now() if mongo is None else mongo.now,
        servers=Servers(mongodb=_error(found.mongodb), redis=_error(found.redis)),
        leader=leader_of(found.leader),
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


def leader_of(leader: Leadership | None) -> Leader | None:
    if leader is None:
        return None
    return Leader(
        holder=f"{leader.host}:{leader.pid}",
        since=leader.since,
        lease_left_seconds=round(leader.lease_left.total_seconds(), 1),
        epoch=leader.epoch,
    )
