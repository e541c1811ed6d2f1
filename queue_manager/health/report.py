"""The report of health: `queue-manager health`, also as JSON."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from pydantic import BaseModel, TypeAdapter

from beat_schedule import systems
from models.scan_run import ScanRun
from queue_manager.core.clock import to_iso
from queue_manager.core.settings import redact_url, settings
from queue_manager.explanation import Idle
from queue_manager.health.problems import all_problems
from queue_manager.health.readings import InMongoDB, Readings, read
from queue_manager.health_rules import Problem
from queue_manager.system import System, SystemStats

REPORT_TIMEOUT = 10.0  # seconds; longer than that of a page, because a new process connects first
HOW_TO_RESUME: dict[Idle, str] = {
    "paused": "until `queue-manager systems resume {name}`",
    "dry run": "until it is removed from QM_DRY_RUN",
}
_RUN = TypeAdapter(ScanRun)


class Health(BaseModel):
    """The state of everything; `problems` is empty if the application is healthy."""

    mongodb: str
    redis: str
    broker: str
    leader: dict[str, Any] | None
    scans: dict[str, dict[str, Any] | None]
    systems: dict[str, dict[str, int | float]]
    details: list[str]
    problems: list[Problem]


def health() -> Health:
    """Read everything once. A server that is unavailable is a problem, not an error."""
    chosen, found = settings(), asyncio.run(read(REPORT_TIMEOUT))
    on = [system for system in systems() if system.is_on(chosen)]
    return Health(
        mongodb=redact_url(chosen.mongo_db_url),
        redis=redact_url(chosen.redis_url),
        broker=redact_url(chosen.broker),
        leader=_leader(found),
        scans={} if found.in_mongodb is None else {one.name: _scan(one, found.in_mongodb) for one in on},
        systems={name: found.numbers_of(name) for name, stats in found.stats.items() if isinstance(stats, SystemStats)},
        details=list(_details(found)),
        problems=all_problems(found),
    )


def _leader(found: Readings) -> dict[str, Any] | None:
    if (leader := found.leader) is None:
        return None
    lease_left = round(leader.lease_left.total_seconds(), 1)
    return {**asdict(leader), "since": to_iso(leader.since), "lease_left": lease_left}


def _scan(system: System, mongo: InMongoDB) -> dict[str, Any] | None:
    if (run := mongo.last_runs[system.name]) is None:
        return None
    return {"scan": system.scan_task, **run.noted, **_RUN.dump_python(run, mode="json", exclude={"is_paused"})}


def _details(found: Readings) -> Iterator[str]:
    for system in systems():
        if not system.is_on(settings()):
            continue
        if found.is_starting(system):
            yield f"{system.name}: starting, its scan has not run yet"
        if (idle := found.idle(system)) is not None:
            pause = found.pause_of(system)
            why = idle if pause is None else f"{idle} {pause}".strip()
            yield f"{system.name}: {why}; its scans dispatch nothing {HOW_TO_RESUME[idle].format(name=system.name)}"
        if isinstance(stats := found.stats[system.name], SystemStats):
            yield from (f"{system.name}: {detail}" for detail in stats.details)
