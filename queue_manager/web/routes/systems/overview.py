"""One look at everything: who leads, which workers are online, how each system stands.

Guarantee: it never fails and takes about 3 s at the most. What a server did not tell is null, and `servers` says why.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from functools import cache
from typing import Any, TypeVar

from anyio import to_thread

from beat_schedule import systems
from models import scan_mark, scan_run
from models.database import server_now
from models.due_documents import COUNTED
from queue_manager.beat import next_runs
from queue_manager.beat.leader_lock import Leadership
from queue_manager.core.clock import hours, to_iso
from queue_manager.core.errors import AppError, reason
from queue_manager.core.log import get_logger
from queue_manager.core.settings import settings
from queue_manager.health import (
    Idle,
    Processes,
    idle_because,
    is_starting,
    problems_of_items,
    problems_of_processes,
    problems_of_scan,
)
from queue_manager.system import System, SystemStats
from queue_manager.telemetry import history, worker_heartbeats
from queue_manager.web.auth.keys import now as own_now
from queue_manager.web.routes.systems.cache import Remembered
from queue_manager.web.server_calls import mongodb, redis_server

T = TypeVar("T")
Json = dict[str, Any]

PATIENCE = 3.0  # seconds for each of the looks, which run at once
FIELDS = {
    "due": ("due", "pending"),
    "in_progress": ("in_progress",),
    "stuck": ("stuck", "overdue"),
    "failed": ("failed", "cooling_off", "dead"),
    "lag_seconds": ("lag_seconds",),
}
"""What the overview calls a figure, and its names in the systems."""

log = get_logger("QM/overview")


@dataclass(frozen=True, kw_only=True)
class InRedis:
    processes: Processes
    last_minute: dict[str, dict[str, int]]
    next_runs: dict[str, datetime]


@dataclass(kw_only=True)
class InMongoDB:
    now: datetime
    last_runs: dict[str, Json | None]
    errors: dict[str, int]
    running: set[str]
    stats: dict[str, SystemStats] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    """Of systems whose statistics could not be read."""


async def look() -> Json:
    """Return the body of `GET /api/overview`. Threads ask at once: a server that hangs holds up no other."""
    on = [system for system in systems() if system.is_on(settings())]
    redis, mongo, stats, slow = await asyncio.gather(
        _bounded(_redis, "Redis"),
        _bounded(_mongodb, "MongoDB"),
        _each({one.name: _bounded(_stats(one), one.stats_server) for one in on}),
        _each({one.name: _bounded(_slow_numbers(one), "MongoDB") for one in on if one.slow_numbers is not None}),
    )
    told = mongo if isinstance(mongo, InMongoDB) else None
    if told is not None:
        _add(told, stats, slow)
    kept = redis if isinstance(redis, InRedis) else None
    now = told.now if told is not None else own_now()
    return {
        "server_time": to_iso(now),
        "servers": {"mongodb": _why(mongo), "redis": _why(redis)},
        "leader": None if kept is None else shown_leader(kept.processes.leader),
        "workers": None if kept is None else [_worker(worker) for worker in kept.processes.workers],
        "problems": [] if kept is None else problems_of_processes(kept.processes, settings()),
        "counted_to": COUNTED,
        "systems": [_system(system, kept, told) for system in systems()],
    }


async def _each(asked: Mapping[str, Awaitable[T]]) -> dict[str, T]:
    """Await all at once; return the answers by name."""
    return dict(zip(asked, await asyncio.gather(*asked.values()), strict=True))


async def _bounded(ask: Callable[[], T], server: str) -> T | str:
    """Return what `ask` does, or why not."""
    try:
        # A thread that hangs is left alone, also when the process ends.
        return await asyncio.wait_for(to_thread.run_sync(ask, abandon_on_cancel=True), PATIENCE)
    except TimeoutError:
        return f"{server} did not answer within {PATIENCE:g} s"
    except AppError as error:
        return str(error)
    except Exception as error:
        log.error("A part of the overview failed", server=server, error=reason(error))
        return f"{server}: {reason(error)}"


def _why(answer: object) -> str | None:
    return answer if isinstance(answer, str) else None


# Asking


def _redis() -> InRedis:
    with redis_server() as client:
        return InRedis(
            processes=Processes.read(client),
            last_minute=history.last_minute(client, counted()),
            next_runs=next_runs.next_runs(client, [system.name for system in systems()]),
        )


def counted() -> list[str]:
    return [system.counted_as for system in systems() if system.counted_as is not None]


def _mongodb() -> InMongoDB:
    with mongodb():
        now = server_now()
        return InMongoDB(
            now=now,
            last_runs={system.name: scan_run.last(system.scan_task) for system in systems()},
            errors=scan_run.errors(now - hours(24)),
            running=scan_mark.running(now=now),
        )


def _stats(system: System) -> Callable[[], SystemStats]:
    def read() -> SystemStats:
        with mongodb():
            return system.stats()

    return read


@cache
def _slow_numbers(system: System) -> Remembered[Mapping[str, float]]:
    def read() -> Mapping[str, float]:
        with mongodb():
            return {} if system.slow_numbers is None else system.slow_numbers()

    return Remembered(read)


def _add(
    told: InMongoDB, stats: Mapping[str, SystemStats | str], slow: Mapping[str, Mapping[str, float] | str | None]
) -> None:
    for name, found in stats.items():
        if isinstance(found, str):
            told.problems[name] = found
        else:
            told.stats[name] = found
    for name, numbers in slow.items():
        if isinstance(numbers, Mapping) and name in told.stats:
            told.stats[name].numbers.update(numbers)


# Telling


def _system(system: System, redis: InRedis | None, mongo: InMongoDB | None) -> Json:
    numbers = mongo.stats[system.name].numbers if mongo is not None and system.name in mongo.stats else {}
    return {
        "name": system.name,
        "title": system.title,
        "page": system.page,
        "flag": system.flag,
        "is_on": system.is_on(settings()),
        **{field: _first(numbers, names) for field, names in FIELDS.items()},
        "done_per_minute": _per_minute(system, redis, "done"),
        "failed_per_minute": _per_minute(system, redis, "failed"),
        "errors": None if mongo is None else mongo.errors.get(system.scan_task, 0),
        "last_scan": None if mongo is None else shown_run(mongo.last_runs[system.name]),
        "next_scan_at": _next_run(system, redis),
        "is_running": mongo is not None and system.scan_task in mongo.running,
        "is_starting": _is_starting(system, redis, mongo),
        "idle": _idle(system, redis),
        "problems": [] if mongo is None else _problems(system, redis, mongo),
        "pages": _pages(system, mongo),
        "numbers": numbers,
    }


def _first(numbers: Mapping[str, float], names: tuple[str, ...]) -> float | None:
    return next((round(numbers[name], 3) for name in names if name in numbers), None)


def _per_minute(system: System, redis: InRedis | None, outcome: str) -> int | None:
    if redis is None or system.counted_as is None:
        return None
    return redis.last_minute[system.counted_as][outcome]


def _next_run(system: System, redis: InRedis | None) -> str | None:
    """Return when it is scanned next; nobody knows while no beat leads."""
    if redis is None or redis.processes.leader is None or not system.is_on(settings()):
        return None
    at = redis.next_runs.get(system.name)
    return None if at is None else to_iso(at)


def _is_starting(system: System, redis: InRedis | None, mongo: InMongoDB | None) -> bool:
    if redis is None or mongo is None or not system.is_on(settings()):
        return False
    run, leader = mongo.last_runs[system.name], redis.processes.leader
    return is_starting(system, run, settings(), leader, now=mongo.now)


def _idle(system: System, redis: InRedis | None) -> Idle | None:
    return idle_because(system, settings(), None if redis is None else redis.processes)


def _problems(system: System, redis: InRedis | None, mongo: InMongoDB) -> list[str]:
    if not system.is_on(settings()):
        return []
    processes = None if redis is None else redis.processes
    problems = problems_of_scan(system, mongo.last_runs[system.name], settings(), processes, now=mongo.now)
    if (unread := mongo.problems.get(system.name)) is not None:
        problems.append(unread)
    if (stats := mongo.stats.get(system.name)) is not None:
        problems += problems_of_items(system, stats, settings(), is_idle=_idle(system, redis) is not None)
    return problems


def _pages(system: System, mongo: InMongoDB | None) -> dict[str, str]:
    """Return, by problem, the page that lists the items it is about."""
    stats = None if mongo is None else mongo.stats.get(system.name)
    states = {} if stats is None else stats.states
    return {problem: system.page_of(state) for problem, state in states.items()}


def shown_leader(leader: Leadership | None) -> Json | None:
    if leader is None:
        return None
    return {
        "holder": f"{leader.host}:{leader.pid}",
        "since": to_iso(leader.since),
        "lease_left_seconds": round(leader.lease_left.total_seconds(), 1),
        "epoch": leader.epoch,
    }


def _worker(worker: worker_heartbeats.Worker) -> Json:
    return {**asdict(worker), "seen_at": to_iso(worker.seen_at)}


def shown_run(run: Json | None) -> Json | None:
    """Return what a scan did, without what it noted besides."""
    if run is None:
        return None
    figures = {name: run.get(name, 0) for name in ("found", "claimed", "enqueued", "errors", "duration_ms")}
    return {"at": to_iso(run["at"]), **figures} | ({"error": run["error"]} if "error" in run else {})
