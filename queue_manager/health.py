"""The state of the whole, for `queue-manager health`: servers, leader, last scans, each system's figures."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import redis
from pymongo.errors import PyMongoError

from beat_schedule import SCHEDULE
from models import scan_run
from models.database import require_replica_set, server_now
from queue_manager.core.clock import seconds, to_iso
from queue_manager.core.errors import ConfigurationError
from queue_manager.core.schedule import LEADER_LOCK, Every
from queue_manager.core.settings import Settings, masked, settings
from queue_manager.transport.leadership import leadership
from queue_manager.transport.server import connect, require_no_eviction
from services import support_snooze

FIGURES = {"support-snooze": support_snooze.health}
MISSED_TICKS = 3  # a scan whose last run is older than so many periods is late


@dataclass(kw_only=True)
class Health:
    """What was found; `problems` is empty when all is well."""

    mongodb: str
    redis: str
    leader: dict[str, Any] | None = None
    scans: dict[str, dict[str, Any] | None] = field(default_factory=dict)
    systems: dict[str, dict[str, Any]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def health() -> Health:
    """Look at everything once. A server that is away is a problem in the answer, never an exception."""
    now = settings()
    state = Health(mongodb=masked(now.mongo_db_url), redis=masked(now.redis_url))
    _look_at_redis(state, now)
    _look_at_mongodb(state, now)
    state.problems += now.remarks()
    return state


def _look_at_redis(state: Health, now: Settings) -> None:
    try:
        require_no_eviction(now.redis_url)
        with connect(now.redis_url) as client:
            leader = leadership(client, LEADER_LOCK)
    except ConfigurationError as error:
        state.problems.append(str(error))
    except redis.RedisError as error:
        state.problems.append(f"Redis at {state.redis} is unreachable ({error})")
    else:
        if leader is None:
            state.problems.append("no beat leads, so nothing is scanned: start `celery -A tasks beat`")
            return
        lease_left = round(leader.lease_left.total_seconds(), 1)
        state.leader = {**asdict(leader), "since": to_iso(leader.since), "lease_left": lease_left}


def _look_at_mongodb(state: Health, now: Settings) -> None:
    try:
        require_replica_set()
        for entry in SCHEDULE:
            if entry.is_on(now):
                _look_at_system(state, entry, now)
    except ConfigurationError as error:
        state.problems.append(str(error))
    except PyMongoError as error:
        reason = str(error).split(", Timeout:")[0]
        state.problems.append(f"MongoDB at {state.mongodb} is unreachable ({reason})")


def _look_at_system(state: Health, entry: Every, now: Settings) -> None:
    figures = state.systems[entry.name] = FIGURES[entry.name]()
    run = scan_run.last(entry.task)
    state.scans[entry.name] = None if run is None else {**run, "at": to_iso(run["at"])}
    if run is None or server_now() - run["at"] > seconds(MISSED_TICKS * entry.seconds(now)):
        last = "never in the last 24 hours" if run is None else f"last at {to_iso(run['at'])}"
        state.problems.append(f"the scan {entry.name} is late ({last}): is a worker on the queue `scans`?")
    elif run["errors"]:
        state.problems.append(f"the last scan {entry.name} met {run['errors']} errors: {run.get('error')}")
    if figures["malformed"]["count"]:
        ids = ", ".join(figures["malformed"]["ids"])
        state.problems.append(f"{figures['malformed']['count']} rooms have a malformed snooze_time: {ids}")
