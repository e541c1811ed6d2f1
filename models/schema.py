"""Migration: creation of all indexes, and removal of those of earlier releases."""

from __future__ import annotations

from collections.abc import Iterable

from pymongo.errors import OperationFailure

from models import database, old_claims, scan_run
from queue_manager.core.errors import ConfigurationError, reason
from queue_manager.system import System

_DUPLICATE_KEY = 11000


class Obstructed(ConfigurationError):
    """Existing documents violate unique indexes of some systems; the `indexes` of the others were created."""

    def __init__(self, obstacles: dict[str, list[str]], indexes: list[str]) -> None:
        lines = [line for some in obstacles.values() for line in some]
        super().__init__(
            f"{', '.join(obstacles)} could not be migrated, everything else is done. Fix these documents and "
            "run it again\n" + "\n".join(lines)
        )
        self.indexes = indexes


def migrate(systems: Iterable[System]) -> list[str]:
    """Create the missing indexes of these systems and the shared ones; return their names. Idempotent.

    Raises:
        Obstructed: some systems could not be migrated; the others were.
    """
    created = database.create_indexes(scan_run.collections())
    obstacles: dict[str, list[str]] = {}
    for system in systems:
        try:
            if lines := system.obstacles():
                obstacles[system.name] = [*lines]
                continue
            created += database.create_indexes(system.collections())
        except OperationFailure as error:
            if error.code != _DUPLICATE_KEY:
                raise
            obstacles[system.name] = [reason(error)]
    if obstacles:
        raise Obstructed(obstacles, created)
    return created


def missing(system: System) -> list[str]:
    """Return the names of the system's indexes that do not exist yet, as `collection.index`."""
    return [
        f"{name}.{index.document['name']}"
        for name, indexes in system.collections().items()
        for index in indexes
        if index.document["name"] not in database.collection(name).index_information()
    ]


def finish(systems: Iterable[System]) -> int:
    """Remove obsolete indexes and claims of earlier releases; return the number of claims. Idempotent."""
    claims = 0
    for system in systems:
        for name, indexes in system.obsolete_indexes.items():
            if {*old_claims.INDEXES} <= {*indexes}:
                claims += old_claims.remove(name)
        database.drop_indexes(system.obsolete_indexes)
    return claims
