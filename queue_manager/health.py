"""Health of servers, leader, workers, scans and systems, for `queue-manager health` and the overview."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

import redis

from beat_schedule import systems, warnings
from models import database, scan_run
from models.database import require_replica_set, server_now
from queue_manager import leases
from queue_manager.beat.leader_lock import LEADER_LOCK
from queue_manager.beat.status import Leadership, leadership, older_leader
from queue_manager.broker import dead_letters, start_check
from queue_manager.core.clock import seconds, to_iso
from queue_manager.core.errors import AppError, ConfigurationError, reason
from queue_manager.core.redis_client import connect
from queue_manager.core.server_check import require_server
from queue_manager.core.settings import Settings, redact_url, settings
from queue_manager.leases import Leases
from queue_manager.system import SCANS_QUEUE, System, SystemStats, item_queues
from queue_manager.telemetry import worker_heartbeats
from queue_manager.telemetry.worker_heartbeats import Worker
from services.problems import MAX_IDS, counted, ids, span

Idle = Literal["paused", "dry run"]

WORKER_START_TIME = seconds(30)  # after a beat became the leader, workers may still be starting


@dataclass(kw_only=True)
class Health:
    """Result of the checks; `problems` is empty if the application is healthy."""

    mongodb: str
    redis: str
    broker: str
    leader: dict[str, Any] | None = None
    scans: dict[str, dict[str, Any] | None] = field(default_factory=dict)
    systems: dict[str, dict[str, Any]] = field(default_factory=dict)
    details: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Processes:
    """The leader, the workers online, the number of dead letters, and the items whose process died repeatedly."""

    leader: Leadership | None
    older_leader: str | None
    """The leading beat of release 0.1, as `host:pid`."""
    workers: Sequence[Worker]
    dead_letters: int
    losses: Mapping[str, Mapping[str, int]]
    """By system and item id: how many times in a row the item's process died, of items with many such losses."""
    paused: Set[str]
    """Names of paused systems."""
    now: datetime
    """Time of Redis, which the leader also uses."""

    @classmethod
    def read(cls, client: redis.Redis) -> Processes:
        """Read them from Redis. Raises the errors of redis-py."""
        second, micros = client.time()
        return cls(
            now=datetime.fromtimestamp(second + micros / 1_000_000, UTC),
            leader=leadership(client, LEADER_LOCK),
            older_leader=older_leader(client),
            workers=worker_heartbeats.online(client),
            dead_letters=_count_dead_letters(client),
            paused=leases.paused(),
            losses={system.name: Leases(system.name).often_lost() for system in systems() if system.queue is not None},
        )

    @property
    def are_starting(self) -> bool:
        return self.leader is not None and self.now - self.leader.since < WORKER_START_TIME


def _count_dead_letters(client: redis.Redis) -> int:
    url = settings().broker_redis_url
    if url is None or url == settings().redis_url:
        return dead_letters.count(client)
    try:
        with connect(url) as broker:
            return dead_letters.count(broker)
    except redis.RedisError:  # the outage is reported separately
        return 0


def health() -> Health:
    """Run all checks once. An unavailable server is reported as a problem, not raised."""
    chosen = settings()
    state = Health(
        mongodb=redact_url(chosen.mongo_db_url), redis=redact_url(chosen.redis_url), broker=redact_url(chosen.broker)
    )
    processes = _check_redis(state, chosen)
    if chosen.broker != chosen.redis_url:
        _check_broker(state, chosen)
    _check_mongodb(state, chosen, processes)
    state.problems += warnings()
    return state


def _check_redis(state: Health, chosen: Settings) -> Processes | None:
    try:
        require_server(chosen.redis_url)
        with connect(chosen.redis_url) as client:
            processes = Processes.read(client)
    except ConfigurationError as error:
        state.problems.append(str(error))
        return None
    except redis.RedisError as error:
        state.problems.append(f"Redis at {state.redis} is unreachable ({error})")
        return None
    state.problems += problems_of_processes(processes, chosen)
    if (leader := processes.leader) is not None:
        lease_left = round(leader.lease_left.total_seconds(), 1)
        state.leader = {**asdict(leader), "since": to_iso(leader.since), "lease_left": lease_left}
    return processes


def _check_broker(state: Health, chosen: Settings) -> None:
    from tasks import app  # imported here, because it takes a second

    try:
        start_check.require_broker(app, chosen.broker)
    except ConfigurationError as error:
        state.problems.append(str(error))
    except start_check.BROKER_OUTAGES as error:
        state.problems.append(f"The broker at {state.broker} is unreachable ({reason(error)})")


def _check_mongodb(state: Health, chosen: Settings, processes: Processes | None) -> None:
    try:
        require_replica_set()
    except ConfigurationError as error:
        state.problems.append(str(error))
        return
    except database.Error as error:
        state.problems.append(f"MongoDB at {state.mongodb} is unreachable ({reason(error)})")
        return
    for system in systems():
        if system.is_on(chosen):
            try:
                _check_system(state, system, chosen, processes)
            except (AppError, database.Error) as error:
                state.problems.append(f"{system.name}: {reason(error)}")


def _check_system(state: Health, system: System, chosen: Settings, processes: Processes | None) -> None:
    run, now = scan_run.last(system.scan_task), server_now()
    leader = None if processes is None else processes.leader
    state.scans[system.name] = None if run is None else {**run, "at": to_iso(run["at"])}
    if is_starting(system, run, chosen, leader, now=now):
        state.details.append(f"{system.name}: starting, its scan has not run yet")
    if (idle := idle_because(system, chosen, processes)) is not None:
        state.details.append(f"{system.name}: {idle}, so its scans dispatch nothing; {_HOW_TO_RESUME[idle]}")
    state.problems += problems_of_scan(system, run, chosen, processes, now=now)
    stats = system.stats()
    state.systems[system.name] = stats.numbers
    state.details += [f"{system.name}: {detail}" for detail in stats.details]
    state.problems += problems_of_items(system, stats, chosen, is_idle=idle is not None)


_HOW_TO_RESUME: dict[Idle, str] = {
    "paused": "see `queue-manager systems resume`",
    "dry run": "take it out of QM_DRY_RUN to end that",
}


# Problems, also for the overview


def problems_of_processes(processes: Processes, chosen: Settings) -> list[str]:
    """Return problems of beat and workers, which all systems need, and of the broker's dead letters."""
    on = [system for system in systems() if system.is_on(chosen)]
    needed = [SCANS_QUEUE, *item_queues(on)]
    problems = []
    if processes.dead_letters:
        problems.append(
            f"{processes.dead_letters} broker messages could not be read or used: see `queue-manager dead-letters`"
        )
    for system, items in processes.losses.items():
        if items:
            problems.append(
                f"{counted(len(items), 'item')} of {system} killed or hung their process at least {leases.OFTEN} "
                f"times in a row: see the workers' log, then repair or remove {ids(items, len(items))}"
            )
    if processes.older_leader is not None:
        problems.append(
            f"A beat of release 0.1 leads ({processes.older_leader}), and newer ones stand by: stop it once no worker "
            "of that release is left"
        )
    elif processes.leader is None:
        problems.append("No leader: no beat leads, so nothing is scanned; start `celery -A tasks beat`")
    if not on or processes.are_starting:
        return problems
    if not processes.workers:
        problems.append(
            f"No workers: none is online to consume the queues {', '.join(needed)}; start `celery -A tasks worker`"
        )
    elif worker_heartbeats.unconsumed(processes.workers, [SCANS_QUEUE]):
        problems.append(
            "no worker consumes the queue scans, so no scan runs: start `celery -A tasks worker --queues scans`"
        )
    return problems


def is_starting(
    system: System, run: database.Document | None, chosen: Settings, leader: Leadership | None, *, now: datetime
) -> bool:
    """Return True if the scan has not run since the leader began and is not late yet.

    Without a leader, which is a problem of its own, a scan that never ran is starting too.
    """
    if leader is None:
        return run is None
    late_after = system.late_after(chosen)
    ran_in_time = run is None or leader.since - late_after <= run["at"] < leader.since
    return ran_in_time and now - leader.since <= late_after


def problems_of_scan(
    system: System, run: database.Document | None, chosen: Settings, processes: Processes | None, *, now: datetime
) -> list[str]:
    """Return problems of the scan of a system that is switched on, and of its queue."""
    problems = []
    leader = None if processes is None else processes.leader
    is_late = run is None or now - run["at"] > system.late_after(chosen)
    if is_late and not is_starting(system, run, chosen, leader, now=now):
        last = "never in the last 24 hours" if run is None else f"last at {to_iso(run['at'])}"
        problems.append(f"the scan {system.name} is late ({last}): is a worker on the queue `scans`?")
    elif run is not None and not is_late and run["errors"]:
        problems.append(f"the last scan {system.name} met {run['errors']} errors: {run.get('error')}")
    if processes is None or system.queue is None or not processes.workers or processes.are_starting:
        return problems
    if worker_heartbeats.unconsumed(processes.workers, [system.queue]):
        problems.append(
            f"no worker consumes the queue {system.queue}, so no item of {system.name} is handled: start "
            f"`celery -A tasks worker --queues {system.queue}`"
        )
    return problems


def idle_because(system: System, chosen: Settings, processes: Processes | None) -> Idle | None:
    """Return why the scans of a system dispatch nothing, or `None` if they dispatch."""
    if processes is not None and system.name in processes.paused:
        return "paused"
    return "dry run" if system.name in chosen.qm_dry_run else None


def problems_of_items(system: System, stats: SystemStats, chosen: Settings, *, is_idle: bool) -> list[str]:
    """Return problems of the items of a system that is switched on. An idle system may lag."""
    lag, limit = seconds(stats.numbers.get("lag_seconds", 0)), system.late_after(chosen)
    if lag <= limit or is_idle or not system.has_lag:
        return stats.problems
    which = f" ({', '.join(stats.late[:MAX_IDS])})" if stats.late else ""
    late = (
        f"{system.name} lags: the oldest due item has waited {span(lag)}, more than {span(limit)}; see that the "
        f"workers run, keep up and log no errors{which}"
    )
    return [late, *stats.problems]
