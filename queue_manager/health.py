"""The state of the whole, for `queue-manager health` and the overview: servers, leader, workers, scans, systems."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib import import_module
from typing import Any

import redis

from beat_schedule import SCHEDULE
from models import database, scan_run
from models.database import require_replica_set, server_now
from queue_manager.core.clock import seconds, to_iso
from queue_manager.core.errors import AppError, ConfigurationError, reason
from queue_manager.core.schedule import Scan, item_queues
from queue_manager.core.settings import Settings, masked, settings
from queue_manager.transport import dead_letters, losses, presence
from queue_manager.transport.leadership import LEADER_LOCK, Leadership, leadership
from queue_manager.transport.presence import Worker
from queue_manager.transport.server import connect, require_server
from services.due_work import Figures
from services.problems import MAX_IDS, counted, ids, span

FIGURES: dict[str, Callable[[], Figures]] = {
    scan.name: import_module(f"services.{scan.system}").figures for scan in SCHEDULE
}
STARTING = seconds(30)  # after a beat began to lead, workers may still be on their way
NO_LAG = {"review-requests"}
"""Systems whose lag says nothing: an agency counts from its first subscription, however often it was asked since."""


@dataclass(kw_only=True)
class Health:
    """What was found; `problems` is empty when all is well."""

    mongodb: str
    redis: str
    leader: dict[str, Any] | None = None
    scans: dict[str, dict[str, Any] | None] = field(default_factory=dict)
    systems: dict[str, dict[str, Any]] = field(default_factory=dict)
    details: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Processes:
    """The beat that leads, the workers online, the broker's dead letters, and items that lost their process."""

    leader: Leadership | None
    workers: Sequence[Worker]
    dead_letters: int
    losses: Mapping[str, Mapping[str, int]]
    """By queue and id, of items that lost their process often: how often in a row."""
    now: datetime
    """By the clock of Redis, which is also that of the leader."""

    @classmethod
    def read(cls, client: redis.Redis) -> Processes:
        """Raises what redis-py raises."""
        second, micros = client.time()
        return cls(
            now=datetime.fromtimestamp(second + micros / 1_000_000, UTC),
            leader=leadership(client, LEADER_LOCK),
            workers=presence.online(client),
            dead_letters=dead_letters.count(client),
            losses={queue: losses.often(client, queue) for queue in item_queues(SCHEDULE)},
        )

    @property
    def are_starting(self) -> bool:
        return self.leader is not None and self.now - self.leader.since < STARTING


def health() -> Health:
    """Look at everything once. A server that is away is a problem in the answer, never an exception."""
    chosen = settings()
    state = Health(mongodb=masked(chosen.mongo_db_url), redis=masked(chosen.redis_url))
    processes = _look_at_redis(state, chosen)
    _look_at_mongodb(state, chosen, processes)
    state.problems += chosen.remarks()
    return state


def _look_at_redis(state: Health, chosen: Settings) -> Processes | None:
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


def _look_at_mongodb(state: Health, chosen: Settings, processes: Processes | None) -> None:
    try:
        require_replica_set()
    except ConfigurationError as error:
        state.problems.append(str(error))
        return
    except database.Error as error:
        state.problems.append(f"MongoDB at {state.mongodb} is unreachable ({reason(error)})")
        return
    for scan in SCHEDULE:
        if scan.flag(chosen):
            try:
                _look_at_system(state, scan, chosen, processes)
            except (AppError, database.Error) as error:
                state.problems.append(f"{scan.name}: {reason(error)}")


def _look_at_system(state: Health, scan: Scan, chosen: Settings, processes: Processes | None) -> None:
    run, now = scan_run.last(scan.task), server_now()
    leader = None if processes is None else processes.leader
    state.scans[scan.name] = None if run is None else {**run, "at": to_iso(run["at"])}
    if is_starting(scan, run, chosen, leader, now=now):
        state.details.append(f"{scan.name}: starting, its scan has not run yet")
    state.problems += problems_of_scan(scan, run, chosen, processes, now=now)
    figures = FIGURES[scan.name]()
    state.systems[scan.name] = figures.numbers
    state.details += [f"{scan.name}: {detail}" for detail in figures.details]
    state.problems += problems_of_items(scan, figures, chosen)


# What is wrong, also for the overview


def problems_of_processes(processes: Processes, chosen: Settings) -> list[str]:
    """Return what is wrong with the processes that all systems need, and the broker's dead letters."""
    needed = ["scans", *(scan.queue for scan in SCHEDULE if scan.queue is not None and scan.flag(chosen))]
    is_on = any(scan.flag(chosen) for scan in SCHEDULE)
    problems = []
    if processes.dead_letters:
        problems.append(
            f"{processes.dead_letters} broker messages could not be read or used: see `queue-manager dead-letters`"
        )
    for queue, items in processes.losses.items():
        if items:
            problems.append(
                f"{counted(len(items), 'item')} of {queue} killed or hung their process at least {losses.OFTEN} "
                f"times in a row: see the workers' log, then repair or remove {ids(items, len(items))}"
            )
    if processes.leader is None:
        problems.append("No leader: no beat leads, so nothing is scanned; start `celery -A tasks beat`")
    if not is_on or processes.are_starting:
        return problems
    if not processes.workers:
        problems.append(
            f"No workers: none is online to consume the queues {', '.join(needed)}; start `celery -A tasks worker`"
        )
    elif presence.unconsumed(processes.workers, ["scans"]):
        problems.append(
            "no worker consumes the queue scans, so no scan runs: start `celery -A tasks worker --queues scans`"
        )
    return problems


def is_starting(
    scan: Scan, run: database.Document | None, chosen: Settings, leader: Leadership | None, *, now: datetime
) -> bool:
    """Return True if the scan has not run since the leader began and is not late yet.

    Without a leader, which is a problem of its own, a scan that never ran is starting too.
    """
    if leader is None:
        return run is None
    late_after = scan.late_after(chosen)
    ran_in_time = run is None or leader.since - late_after <= run["at"] < leader.since
    return ran_in_time and now - leader.since <= late_after


def problems_of_scan(
    scan: Scan, run: database.Document | None, chosen: Settings, processes: Processes | None, *, now: datetime
) -> list[str]:
    """Return what is wrong with the scan of a system that is switched on, and with its queue."""
    problems = []
    leader = None if processes is None else processes.leader
    is_late = run is None or now - run["at"] > scan.late_after(chosen)
    if is_late and not is_starting(scan, run, chosen, leader, now=now):
        last = "never in the last 24 hours" if run is None else f"last at {to_iso(run['at'])}"
        problems.append(f"the scan {scan.name} is late ({last}): is a worker on the queue `scans`?")
    elif run is not None and not is_late and run["errors"]:
        problems.append(f"the last scan {scan.name} met {run['errors']} errors: {run.get('error')}")
    if processes is None or scan.queue is None or not processes.workers or processes.are_starting:
        return problems
    if presence.unconsumed(processes.workers, [scan.queue]):
        problems.append(
            f"no worker consumes the queue {scan.queue}, so no item of {scan.name} is handled: start "
            f"`celery -A tasks worker --queues {scan.queue}`"
        )
    return problems


def problems_of_items(scan: Scan, figures: Figures, chosen: Settings) -> list[str]:
    """Return what is wrong with the items of a system that is switched on."""
    lag, limit = seconds(figures.numbers.get("lag_seconds", 0)), scan.late_after(chosen)
    if lag <= limit or scan.name in NO_LAG:
        return figures.problems
    which = f" ({', '.join(figures.late[:MAX_IDS])})" if figures.late else ""
    late = (
        f"{scan.name} lags: the oldest due item has waited {span(lag)}, more than {span(limit)}; see that the workers "
        f"run, keep up and log no errors{which}"
    )
    return [late, *figures.problems]
