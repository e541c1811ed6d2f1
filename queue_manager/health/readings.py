"""What health and the overview read of the servers, once.

Guarantee: reading never fails, and what a server did not answer is a `Problem`. The servers are read in parallel, so
reading takes little longer than its limit, unless the statistics of more than `MAX_READ_AT_ONCE` systems do.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from threading import Semaphore
from typing import TypeVar

import redis
from pymongo import IndexModel

from beat_schedule import systems
from models import deployment, scan_run, schema
from models.database import is_forbidden, require_replica_set, server_now
from models.scan_run import Scan
from queue_manager import pauses
from queue_manager.beat.status import Leadership, leadership, next_runs, older_leader
from queue_manager.broker import dead_letters, start_check
from queue_manager.core.background import call_within
from queue_manager.core.cached_answer import CachedAnswer
from queue_manager.core.clock import hours, seconds
from queue_manager.core.errors import AppError, ConfigurationError, Unavailable, reason, typed_reason
from queue_manager.core.log import get_logger
from queue_manager.core.redis_client import time_of
from queue_manager.core.server_check import refused_writes, require_server
from queue_manager.core.settings import redact_url, settings
from queue_manager.explanation import Idle
from queue_manager.health_rules import WORKER_START_TIME, Problem, Rule
from queue_manager.leases import Leases
from queue_manager.pauses import PauseState
from queue_manager.server_calls import mongodb, redis_client, redis_server
from queue_manager.system import System, SystemStats, read_each, sources
from queue_manager.telemetry import counters, worker_heartbeats
from queue_manager.telemetry.counters import Recent
from queue_manager.telemetry.worker_heartbeats import OnlineWorker

AnswerT = TypeVar("AnswerT")

READ_TIMEOUT = 3.0  # seconds
WRITE_TIMEOUT = 2.5  # seconds in which MongoDB must confirm a write
REPORT_MARGIN = 0.5  # seconds by which a driver gives up earlier, so that it reports what is wrong
MAX_CALLS = 8  # of one function at a time, because a call that hangs keeps its thread
MAX_READ_AT_ONCE = 16  # systems, because each call has a thread and a connection
RECHECK_INTERVAL = 5.0  # seconds until existing indexes, a usable Redis, or writes of MongoDB are checked again
OF_ALL_SYSTEMS = ""  # in `_checked_until`: the collections that all share

log = get_logger("QM/health")

_checked_until: dict[str, float] = {}
"""By system, `OF_ALL_SYSTEMS`, or URL of a Redis: when the next check is due, by this machine's monotonic clock."""
_checked_writes: dict[str, tuple[float, Problem | None]] = {}
"""By URL of a MongoDB: when the next write is due, by the same clock, and the problem that it had with the last one."""
_slow_numbers = cache(CachedAnswer[Mapping[str, float]])
"""Returns the cached answer of the `slow_numbers` of a system."""


@dataclass(frozen=True, kw_only=True)
class InRedis:
    """The leader, the workers online, dead letters, lost items, and numbers of the systems."""

    now: datetime
    """Time of Redis, which the leader also uses."""
    clock_ahead: timedelta
    """How far the server's clock is ahead of this machine's, without the time of the call."""
    leader: Leadership | None
    older_leader: str | None
    """The leading beat of release 0.1, as `host:pid`."""
    workers: Sequence[OnlineWorker]
    dead_letters: int | None
    """`None` if they could not be counted."""
    losses: Mapping[str, Mapping[str, datetime]]
    """By system and item id, of items whose process was often lost in a row: the end of the cool-down, after which no
    scan has taken it yet, or `now` while its lease is held."""
    pauses: Mapping[str, PauseState]
    """By name: of paused systems."""
    recent: Mapping[str, Recent]
    """By system: what was counted."""
    next_runs: Mapping[str, datetime]
    refused_writes: str | None
    """Why the server refuses writes, if it does."""

    @property
    def are_workers_starting(self) -> bool:
        """Return True if the leader began a moment ago; not if that is in the future, since the clock was set back."""
        return self.leader is not None and abs(self.now - self.leader.since) < WORKER_START_TIME


@dataclass(frozen=True, kw_only=True)
class InMongoDB:
    """The scans, and the missing indexes by system. A dropped one is found within `RECHECK_INTERVAL`."""

    now: datetime
    clock_ahead: timedelta
    """How far the server's clock is ahead of this machine's, without the time of the call."""
    missing_shared_indexes: Sequence[str]
    missing_indexes: Mapping[str, Sequence[str]]
    last_runs: Mapping[str, Scan | None]
    errors: Mapping[str, int] | None
    """By scan: errors of the last 24 hours; `None` while a shared index, which counting needs, is missing."""
    running: Set[str]
    """The scans that run."""


@dataclass(frozen=True, kw_only=True)
class Readings:
    """What each server answered, or the problem that it has; `stats` and `slow_numbers` of the systems that are on."""

    redis: InRedis | Problem
    mongodb: InMongoDB | Problem
    mongodb_writes: Problem | None
    """Meaningless if `mongodb` is a problem."""
    broker: Problem | None
    stats: Mapping[str, SystemStats | Problem]
    slow_numbers: Mapping[str, Mapping[str, float] | Problem | None]

    @property
    def in_redis(self) -> InRedis | None:
        return self.redis if isinstance(self.redis, InRedis) else None

    @property
    def in_mongodb(self) -> InMongoDB | None:
        return self.mongodb if isinstance(self.mongodb, InMongoDB) else None

    @property
    def leader(self) -> Leadership | None:
        return None if self.in_redis is None else self.in_redis.leader

    def numbers_of(self, name: str) -> dict[str, float]:
        """Return the numbers of a system, including the slow ones; none if its statistics could not be read."""
        stats, slow = self.stats.get(name), self.slow_numbers.get(name)
        if not isinstance(stats, SystemStats):
            return {}
        return {**stats.numbers, **(slow if isinstance(slow, Mapping) else {})}

    def pause_of(self, system: System) -> PauseState | None:
        """Return the pause of a system, if an operator paused it."""
        return None if self.in_redis is None else self.in_redis.pauses.get(system.name)

    def idle(self, system: System) -> Idle | None:
        """Return why the scans of a system dispatch nothing, or `None` if they dispatch."""
        return system.idle(settings(), is_paused=self.pause_of(system) is not None)

    def is_starting(self, system: System) -> bool:
        """Return True if the scan has not run since the leader began and is not late yet.

        Without a leader, which is a problem of its own, a scan that never ran is starting too.
        """
        if self.in_mongodb is None:
            return False
        run, now = self.in_mongodb.last_runs[system.name], self.in_mongodb.now
        if self.leader is None:
            return run is None
        late_after = system.late_after(settings())
        ran_in_time = run is None or self.leader.since - late_after <= run.at < self.leader.since
        return ran_in_time and abs(now - self.leader.since) <= late_after


async def read(limit: float = READ_TIMEOUT) -> Readings:
    """Read the servers at the same time, each for at most `limit` seconds."""
    bounded = partial(_bounded, limit=limit)
    slow_ones = {one.name: one.slow_numbers for one in systems() if one.slow_numbers and one.is_on(settings())}
    redis, mongo, writes, broker, stats, slow = await asyncio.gather(
        bounded(_redis, "redis", "Redis"),
        bounded(_mongodb, "mongodb", "MongoDB"),
        _mongodb_writes(limit),
        bounded(_broker, "broker", "The broker"),
        read_stats(limit),
        _each({name: partial(bounded, _slow_numbers(one), name, "MongoDB") for name, one in slow_ones.items()}),
    )
    if isinstance(mongo, Problem):
        _checked_writes.clear()  # the outage was perhaps why the write failed
    if any(isinstance(one, Problem) for one in (redis, broker, *stats.values(), *slow.values())):
        _checked_until.clear()  # perhaps an index was dropped, or another Redis answers, which the next reading finds
    return Readings(redis=redis, mongodb=mongo, mongodb_writes=writes, broker=broker, stats=stats, slow_numbers=slow)


async def read_stats(limit: float = READ_TIMEOUT) -> dict[str, SystemStats | Problem]:
    """Read the statistics of the systems that are on, each for at most `limit` seconds from its turn on."""
    bounded = partial(_bounded, limit=limit, rule=Rule.UNKNOWN_STATE)
    on = [system for system in systems() if system.is_on(settings())]
    return await _each({one.name: partial(bounded, one.read_state, one.name, one.stats_server) for one in on})


async def _each(asked: Mapping[str, Callable[[], Awaitable[AnswerT]]]) -> dict[str, AnswerT]:
    """Ask up to `MAX_READ_AT_ONCE` at the same time; return the answers by name."""
    turns = asyncio.Semaphore(MAX_READ_AT_ONCE)

    async def in_turn(ask: Callable[[], Awaitable[AnswerT]]) -> AnswerT:
        async with turns:
            return await ask()

    return dict(zip(asked, await asyncio.gather(*map(in_turn, asked.values())), strict=True))


async def _bounded(
    read: Callable[[], AnswerT], system: str, server: str, *, limit: float, rule: Rule = Rule.SERVER_AWAY
) -> AnswerT | Problem:
    """Return what `read` returns, or the problem that `server` has with it."""
    late, failed = f"{server} did not answer within {limit:g} s", f"{server}:"
    if rule is Rule.REFUSED_WRITES:
        late = f"{server} did not confirm a write within {limit:g} s"
    elif rule is Rule.UNKNOWN_STATE:
        late = f"Its `stats` did not return within {limit:g} s, perhaps because {server} did not answer"
        failed = "Its `stats` raised"

    def in_time() -> AnswerT:
        if not (calls := _calls(read)).acquire(blocking=False):
            raise TimeoutError
        try:
            with mongodb(limit - REPORT_MARGIN):
                return read()
        finally:
            calls.release()

    try:
        return await call_within(limit, in_time)
    except TimeoutError:
        text = late
    except AppError as error:
        cause = error.__cause__
        is_refused = is_forbidden(cause) or isinstance(cause, redis.AuthenticationError) or "WRONGTYPE " in str(cause)
        is_unsuitable = isinstance(error, ConfigurationError) or is_refused
        if rule is not Rule.UNKNOWN_STATE and is_unsuitable:
            rule = Rule.SERVER_UNSUITABLE
        is_late = rule is Rule.REFUSED_WRITES and getattr(cause, "timeout", False)  # also by the driver
        text = late if is_late else str(error)
    except redis.RedisError as error:
        text = f"{server}: {reason(error)}"
    except Exception as error:
        log.error("A part of the health could not be read", server=server, error=reason(error), exc_info=error)
        text = f"{failed} {typed_reason(error)}"
    return Problem(system=system, rule=rule, text=text)


async def _mongodb_writes(limit: float) -> Problem | None:
    """Return the problem that MongoDB has with a write: it may only answer reads, as after `fsyncLock`.

    Apart from the reads, which it would delay. The outcome is kept for `RECHECK_INTERVAL`.
    """
    url = settings().mongo_db_url
    due_at, problem = _checked_writes.get(url, (0.0, None))
    if time.monotonic() >= due_at:
        limit = min(limit, WRITE_TIMEOUT)
        probe = deployment.probe_write
        problem = await _bounded(probe, "mongodb", "MongoDB", limit=limit, rule=Rule.REFUSED_WRITES)
        _checked_writes[url] = time.monotonic() + RECHECK_INTERVAL, problem
    return problem


@cache
def _calls(read: Callable[[], object]) -> Semaphore:
    return Semaphore(MAX_CALLS)


def _redis() -> InRedis:
    with redis_server() as client:
        _require_redis(settings().redis_url, client)
        now, ahead = _timed(lambda: time_of(client.time()))
        names = [system.name for system in systems()]
        with_items = [system.name for system in systems() if system.queue is not None]
        counted = sources(systems())
        return InRedis(
            now=now,
            clock_ahead=ahead,
            leader=leadership(client),
            older_leader=older_leader(client),
            workers=worker_heartbeats.online(client),
            dead_letters=_count_dead_letters(client),
            losses={one: Leases(one).often_lost(now=now) for one in with_items},
            pauses=pauses.paused(),
            recent=counters.from_each_server(client, counted, counters.recent),
            next_runs=next_runs(client, names),
            refused_writes=refused_writes(client),
        )


def _count_dead_letters(client: redis.Redis) -> int | None:
    url = settings().broker_redis_url
    if url is None or url == settings().redis_url:
        return dead_letters.count(client)
    try:
        return dead_letters.count(redis_client(url))
    except redis.RedisError:  # the outage is reported separately
        return None


def _broker() -> Problem | None:
    url, redis_url = settings().broker, settings().broker_redis_url
    if url == settings().redis_url:
        return None
    from tasks import app  # imported here, because it takes a second

    try:
        if redis_url is None:
            start_check.require_broker(app, url)
        else:
            client = redis_client(redis_url)
            _require_redis(redis_url, client)
            if (why := refused_writes(client)) is not None:
                text = f"The broker at {redact_url(url)} refuses writes ({why})"
                return Problem(system="broker", rule=Rule.REFUSED_WRITES, text=text)
    except start_check.BROKER_OUTAGES as error:
        raise Unavailable(f"The broker at {redact_url(url)} is unreachable ({reason(error)})") from error
    return None


def _require_redis(url: str, client: redis.Redis) -> None:
    """Check that a server is usable, unless it was a moment ago. Raises like `require_server`."""
    if time.monotonic() >= _checked_until.get(url, 0.0):
        require_server(url, client)
        _checked_until[url] = time.monotonic() + RECHECK_INTERVAL


def _mongodb() -> InMongoDB:
    require_replica_set()
    now, ahead = _timed(server_now)
    # Those that counting errors needs are looked for each time.
    missing_shared = _missing(OF_ALL_SYSTEMS, schema.SHARED_INDEXES) or schema.missing(scan_run.RUN_INDEXES)
    on = [system for system in systems() if system.is_on(settings())]
    wanted = read_each(on, System.read_collections)
    return InMongoDB(
        now=now,
        clock_ahead=ahead,
        missing_shared_indexes=missing_shared,
        missing_indexes={name: _missing(name, indexes) for name, indexes in wanted.items()},
        last_runs={system.name: scan_run.last(system.scan_task) for system in systems()},
        errors=None if missing_shared else scan_run.count_errors(now - hours(24)),
        running=scan_run.running(now=now),
    )


def _missing(of: str, wanted: Mapping[str, Sequence[IndexModel]]) -> list[str]:
    """Return the missing indexes of a system or of `OF_ALL_SYSTEMS`; that there are none is cached."""
    now = time.monotonic()
    if now < _checked_until.get(of, 0.0):
        return []
    if not (missing := schema.missing(wanted)):
        _checked_until[of] = now + RECHECK_INTERVAL
    return missing


def _timed(read: Callable[[], datetime]) -> tuple[datetime, timedelta]:
    """Return a server's time, and how far it is outside the time in which this machine asked for it."""
    before = datetime.now(UTC)
    found = read()
    after = datetime.now(UTC)
    return found, max(found - after, seconds(0)) + min(found - before, seconds(0))
