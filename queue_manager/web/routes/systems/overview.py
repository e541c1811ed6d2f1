"""The overview: the leader, the workers online, the state of each system.

Guarantee: reading it never fails and takes about 3 s at most. What a server did not answer is null, and `servers` says
why.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import cache
from typing import Any, Generic, TypeVar

from anyio import to_thread

from beat_schedule import systems
from models import scan_run
from models.database import server_now
from models.due_documents import COUNTED
from queue_manager.beat.status import Leadership, next_runs
from queue_manager.core.clock import hours
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
from queue_manager.telemetry import counters
from queue_manager.web.auth.keys import now as own_now
from queue_manager.web.routes.systems.schemas import Leader, OnlineWorker, Overview, ScanRun, Servers, SystemState
from queue_manager.web.server_calls import mongodb, redis_server

AnswerT = TypeVar("AnswerT")

OVERVIEW_TIMEOUT = 3.0  # seconds for each of the reads, which run at the same time
STATS_FIELDS = {
    "due": ("due", "pending"),
    "in_progress": ("in_progress",),
    "stuck": ("stuck", "overdue"),
    "failed": ("failed", "cooling_off", "dead"),
    "lag_seconds": ("lag_seconds",),
}
"""The names of the overview's numbers, each with its names in the statistics of systems."""

RUN_NUMBERS = ("found", "claimed", "enqueued", "errors", "duration_ms")

CACHE_FACTOR = 20  # a slow answer is kept for this many times as long as it took

log = get_logger("QM/overview")


class CachedAnswer(Generic[AnswerT]):
    """An answer that is too expensive to compute every second, cached for `CACHE_FACTOR` times its computation time.

    An error is raised once; until the next attempt, after the same time, the answer is `None`.
    """

    def __init__(self, compute: Callable[[], AnswerT]) -> None:
        self._compute = compute
        self._answer: AnswerT | None = None
        self._due_at = 0.0

    def __call__(self) -> AnswerT | None:
        began = time.monotonic()
        if began >= self._due_at:
            self._answer = None
            try:
                self._answer = self._compute()
            finally:
                ended = time.monotonic()
                self._due_at = ended + CACHE_FACTOR * (ended - began)
        return self._answer


@dataclass(frozen=True, kw_only=True)
class InRedis:
    processes: Processes
    last_minute: dict[str, dict[str, int]]
    next_runs: dict[str, datetime]


@dataclass(frozen=True, kw_only=True)
class InMongoDB:
    now: datetime
    last_runs: dict[str, dict[str, Any] | None]
    errors: dict[str, int]
    running: set[str]


async def read_overview() -> Overview:
    """Return the overview. The servers are read in parallel, so that one that hangs delays no other."""
    on = [system for system in systems() if system.is_on(settings())]
    redis, mongo, stats, slow = await asyncio.gather(
        _bounded(_redis, "Redis"),
        _bounded(_mongodb, "MongoDB"),
        _each({one.name: _bounded(_stats(one), one.stats_server) for one in on}),
        _each({one.name: _bounded(_slow_numbers(one), "MongoDB") for one in on if one.slow_numbers is not None}),
    )
    for name, numbers in slow.items():
        if isinstance(numbers, Mapping) and isinstance(known := stats[name], SystemStats):
            known.numbers.update(numbers)
    in_mongodb = mongo if isinstance(mongo, InMongoDB) else None
    in_redis = redis if isinstance(redis, InRedis) else None
    now = in_mongodb.now if in_mongodb is not None else own_now()
    return Overview(
        server_time=now,
        servers=Servers(mongodb=_error(mongo), redis=_error(redis)),
        leader=None if in_redis is None else leader_of(in_redis.processes.leader),
        workers=None if in_redis is None else [OnlineWorker(**asdict(one)) for one in in_redis.processes.workers],
        problems=[] if in_redis is None else problems_of_processes(in_redis.processes, settings()),
        counted_to=COUNTED,
        systems=[_system(system, in_redis, in_mongodb, stats.get(system.name)) for system in systems()],
    )


async def _each(asked: Mapping[str, Awaitable[AnswerT]]) -> dict[str, AnswerT]:
    """Await all at once; return the answers by name."""
    return dict(zip(asked, await asyncio.gather(*asked.values()), strict=True))


async def _bounded(read: Callable[[], AnswerT], server: str) -> AnswerT | str:
    """Return what `read` returns, or why it failed."""
    try:
        # A thread that hangs is left alone, also when the process ends.
        return await asyncio.wait_for(to_thread.run_sync(read, abandon_on_cancel=True), OVERVIEW_TIMEOUT)
    except TimeoutError:
        return f"{server} did not answer within {OVERVIEW_TIMEOUT:g} s"
    except AppError as error:
        return str(error)
    except Exception as error:
        log.error("A part of the overview failed", server=server, error=reason(error))
        return f"{server}: {reason(error)}"


def _error(answer: object) -> str | None:
    return answer if isinstance(answer, str) else None


# Reading


def _redis() -> InRedis:
    with redis_server() as client:
        return InRedis(
            processes=Processes.read(client),
            last_minute=counters.last_minute(client, counted()),
            next_runs=next_runs(client, [system.name for system in systems()]),
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
            running=scan_run.running(now=now),
        )


def _stats(system: System) -> Callable[[], SystemStats]:
    def read() -> SystemStats:
        with mongodb():
            return system.stats()

    return read


@cache
def _slow_numbers(system: System) -> CachedAnswer[Mapping[str, float]]:
    def read() -> Mapping[str, float]:
        with mongodb():
            return {} if system.slow_numbers is None else system.slow_numbers()

    return CachedAnswer(read)


# Showing


def _system(
    system: System, redis: InRedis | None, mongo: InMongoDB | None, stats: SystemStats | str | None
) -> SystemState:
    """Return the state of a system. `stats` is an error message if they could not be read."""
    known = stats if mongo is not None and isinstance(stats, SystemStats) else SystemStats()
    return SystemState(
        name=system.name,
        title=system.title,
        page=system.page,
        flag=system.flag,
        is_on=system.is_on(settings()),
        **{field: _first(known.numbers, names) for field, names in STATS_FIELDS.items()},
        done_per_minute=_per_minute(system, redis, "done"),
        failed_per_minute=_per_minute(system, redis, "failed"),
        errors=None if mongo is None else mongo.errors.get(system.scan_task, 0),
        last_scan=None if mongo is None else scan_of(mongo.last_runs[system.name]),
        next_scan_at=_next_scan_at(system, redis),
        is_running=mongo is not None and system.scan_task in mongo.running,
        is_starting=_is_starting(system, redis, mongo),
        idle=_idle(system, redis),
        problems=[] if mongo is None else _problems(system, redis, mongo, stats),
        pages={problem: system.page_of(state) for problem, state in known.states.items()},
        numbers=known.numbers,
    )


def _first(numbers: Mapping[str, float], names: tuple[str, ...]) -> float | None:
    return next((round(numbers[name], 3) for name in names if name in numbers), None)


def _per_minute(system: System, redis: InRedis | None, outcome: str) -> int | None:
    if redis is None or system.counted_as is None:
        return None
    return redis.last_minute[system.counted_as][outcome]


def _next_scan_at(system: System, redis: InRedis | None) -> datetime | None:
    """Return when it is scanned next; unknown while no beat leads."""
    if redis is None or redis.processes.leader is None or not system.is_on(settings()):
        return None
    return redis.next_runs.get(system.name)


def _is_starting(system: System, redis: InRedis | None, mongo: InMongoDB | None) -> bool:
    if redis is None or mongo is None or not system.is_on(settings()):
        return False
    run, leader = mongo.last_runs[system.name], redis.processes.leader
    return is_starting(system, run, settings(), leader, now=mongo.now)


def _idle(system: System, redis: InRedis | None) -> Idle | None:
    return idle_because(system, settings(), None if redis is None else redis.processes)


def _problems(system: System, redis: InRedis | None, mongo: InMongoDB, stats: SystemStats | str | None) -> list[str]:
    if not system.is_on(settings()):
        return []
    processes = None if redis is None else redis.processes
    problems = problems_of_scan(system, mongo.last_runs[system.name], settings(), processes, now=mongo.now)
    if isinstance(stats, SystemStats):
        return problems + problems_of_items(system, stats, settings(), is_idle=_idle(system, redis) is not None)
    return problems if stats is None else [*problems, stats]


def leader_of(leader: Leadership | None) -> Leader | None:
    if leader is None:
        return None
    return Leader(
        holder=f"{leader.host}:{leader.pid}",
        since=leader.since,
        lease_left_seconds=round(leader.lease_left.total_seconds(), 1),
        epoch=leader.epoch,
    )


def scan_of(run: dict[str, Any] | None) -> ScanRun | None:
    return None if run is None else ScanRun(**numbers_of(run))


def numbers_of(run: dict[str, Any]) -> dict[str, Any]:
    """Return the members of a run that every scan has."""
    return {"at": run["at"], "error": run.get("error")} | {name: run.get(name, 0) for name in RUN_NUMBERS}
