"""The state of the whole, for `queue-manager health`: servers, leader, last scans, each system's figures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import datetime
from importlib import import_module
from typing import Any

import redis

from beat_schedule import SCHEDULE
from models import database, scan_run
from models.database import require_replica_set, server_now
from queue_manager.core.clock import to_iso
from queue_manager.core.errors import AppError, ConfigurationError, reason
from queue_manager.core.schedule import Scan
from queue_manager.core.settings import Settings, masked, settings
from queue_manager.transport import dead_letters
from queue_manager.transport.leadership import LEADER_LOCK, leadership
from queue_manager.transport.server import connect, require_server
from services.due_work import Figures

FIGURES: dict[str, Callable[[], Figures]] = {
    scan.name: import_module(f"services.{scan.system}").figures for scan in SCHEDULE
}
MISSED_TICKS = 3  # a scan whose last run is older than so many periods is late


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


def health() -> Health:
    """Look at everything once. A server that is away is a problem in the answer, never an exception."""
    chosen = settings()
    state = Health(mongodb=masked(chosen.mongo_db_url), redis=masked(chosen.redis_url))
    _look_at_redis(state, chosen)
    _look_at_mongodb(state, chosen)
    state.problems += chosen.remarks()
    return state


def _look_at_redis(state: Health, chosen: Settings) -> None:
    try:
        require_server(chosen.redis_url)
        with connect(chosen.redis_url) as client:
            leader, dead = leadership(client, LEADER_LOCK), dead_letters.count(client)
    except ConfigurationError as error:
        state.problems.append(str(error))
    except redis.RedisError as error:
        state.problems.append(f"Redis at {state.redis} is unreachable ({error})")
    else:
        if dead:
            state.problems.append(f"{dead} broker messages could not be read or used: see `queue-manager dead-letters`")
        if leader is None:
            state.problems.append("no beat leads, so nothing is scanned: start `celery -A tasks beat`")
            return
        lease_left = round(leader.lease_left.total_seconds(), 1)
        state.leader = {**asdict(leader), "since": to_iso(leader.since), "lease_left": lease_left}


def _look_at_mongodb(state: Health, chosen: Settings) -> None:
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
                _look_at_system(state, scan, chosen)
            except (AppError, database.Error) as error:
                state.problems.append(f"{scan.name}: {reason(error)}")


def _look_at_system(state: Health, scan: Scan, chosen: Settings) -> None:
    run = scan_run.last(scan.task)
    state.scans[scan.name] = None if run is None else {**run, "at": to_iso(run["at"])}
    if (remark := remark_on(scan, run, chosen, now=server_now())) is not None:
        state.problems.append(remark)
    figures = FIGURES[scan.name]()
    state.systems[scan.name] = figures.numbers
    state.details += [f"{scan.name}: {detail}" for detail in figures.details]
    state.problems += figures.problems


def remark_on(scan: Scan, run: database.Document | None, chosen: Settings, *, now: datetime) -> str | None:
    """Return what is wrong with the last run of a scan that is switched on, `None` when nothing is."""
    if run is None or now - run["at"] > MISSED_TICKS * scan.period(chosen):
        last = "never in the last 24 hours" if run is None else f"last at {to_iso(run['at'])}"
        return f"the scan {scan.name} is late ({last}): is a worker on the queue `scans`?"
    if run["errors"]:
        return f"the last scan {scan.name} met {run['errors']} errors: {run.get('error')}"
    return None
