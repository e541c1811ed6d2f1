"""Every index of every collection: what `queue-manager migrate` creates."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType

from pymongo.errors import OperationFailure

import models
from models import database, pulse
from queue_manager.core.errors import ConfigurationError, reason

SYSTEM_OF = {
    "support_room": "support_snooze",
    "subscription": "review_requests",
    "pulse": "review_requests",
    "site": "stale_thumbnails",
    "job": "job_queues",
    "job_queue": "job_queues",
    "job_leader": "job_queues",
}
"""The system whose collections a module keeps. Those of other modules are for all systems."""
SHARED = "all systems"
DUPLICATE_REQUESTS = "review-requests: leave one open request of each account, and set the others to status `dismissed`"
_DUPLICATE_KEY = 11000


class Obstructed(ConfigurationError):
    """Documents that are already there contradict unique indexes of some systems; `indexes` of the others exist."""

    def __init__(self, obstacles: dict[str, list[str]], indexes: list[str]) -> None:
        systems = ", ".join(obstacles).replace("_", "-")
        lines = [line for some in obstacles.values() for line in some]
        super().__init__(
            f"{systems} could not be migrated, everything else is done. Put these documents in order and run it "
            "again\n" + "\n".join(lines)
        )
        self.indexes = indexes


def migrate(systems: Collection[str] | None = None) -> list[str]:
    """Create the missing indexes of these systems, of all for `None`; return the names. Safe to repeat.

    Raises:
        Obstructed: some systems could not be migrated; all others were.
    """
    created: list[str] = []
    obstacles: dict[str, list[str]] = {}
    for system, modules in _modules().items():
        if systems is not None and system not in (SHARED, *systems):
            continue
        try:
            if system == "review_requests" and (duplicates := pulse.obstacles()):
                obstacles[system] = [DUPLICATE_REQUESTS, *duplicates]
                continue
            for module in modules:
                created += database.create_indexes(module.collections())
                database.drop_indexes(getattr(module, "OBSOLETE", {}))
        except OperationFailure as error:
            if error.code != _DUPLICATE_KEY:
                raise
            obstacles[system] = [reason(error)]
    if obstacles:
        raise Obstructed(obstacles, created)
    return created


def _modules() -> dict[str, list[ModuleType]]:
    """Return the modules that keep collections, by system."""
    found: dict[str, list[ModuleType]] = {}
    for name, module in _keeping_collections():
        found.setdefault(SYSTEM_OF.get(name, SHARED), []).append(module)
    return found


def _keeping_collections() -> Iterator[tuple[str, ModuleType]]:
    for one in iter_modules(models.__path__):
        module = import_module(f"models.{one.name}")
        if hasattr(module, "collections"):
            yield one.name, module
