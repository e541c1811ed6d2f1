"""Migration: creation of all indexes, and removal of those of earlier releases."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pymongo import IndexModel
from pymongo.errors import OperationFailure

from models import alert, archive, audit, database, history, item_events, mark, old_claims, scan_run
from models.database import DUPLICATE_KEY
from queue_manager.core.errors import ConfigurationError, reason
from queue_manager.system import System


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
    created = database.create_indexes(shared_collections())
    obstacles: dict[str, list[str]] = {}
    for system in systems:
        try:
            if lines := system.obstacles():
                obstacles[system.name] = [*lines]
                continue
            created += database.create_indexes(system.collections())
        except OperationFailure as error:
            if error.code != DUPLICATE_KEY:
                raise
            obstacles[system.name] = [reason(error)]
    if obstacles:
        raise Obstructed(obstacles, created)
    return created


def shared_collections() -> dict[str, list[IndexModel]]:
    """Return the collections of all systems together, and their indexes."""
    return {
        **scan_run.collections(),
        **item_events.collections(),
        **alert.collections(),
        **history.collections(),
        **mark.collections(),
        **audit.collections(),
        **archive.collections(),
    }


def missing(system: System) -> list[str]:
    """Return the names of the system's indexes that do not exist yet, as `collection.index`."""
    return _missing(system.collections())


def missing_shared() -> list[str]:
    """Return the names of the indexes of all systems together that do not exist yet."""
    return _missing(shared_collections())


def _missing(wanted: Mapping[str, Sequence[IndexModel]]) -> list[str]:
    found = {name: database.collection(name).index_information() for name in wanted}
    names = ((name, index.document["name"]) for name, indexes in wanted.items() for index in indexes)
    return [f"{collection}.{index}" for collection, index in names if index not in found[collection]]


def obsolete(system: System) -> list[str]:
    """Return the names of the system's indexes that only earlier releases needed, as `collection.index`."""
    return [
        f"{name}.{index}"
        for name, indexes in system.obsolete_indexes.items()
        for index in sorted({*database.collection(name).index_information()} & {*indexes})
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
