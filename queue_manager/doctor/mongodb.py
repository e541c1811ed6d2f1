"""Checks of MongoDB beyond those of health: rights, durability, documents in the way of indexes."""

from __future__ import annotations

from collections.abc import Iterator

from pymongo.errors import ExecutionTimeout, NetworkTimeout, OperationFailure, WTimeoutError

from beat_schedule import systems
from models import database, deployment, schema
from queue_manager.core.clock import seconds
from queue_manager.core.errors import reason
from queue_manager.core.settings import settings
from queue_manager.doctor.findings import Finding, Findings, NotChecked
from queue_manager.system import System

MIN_MONGODB_VERSION = (6, 0)
WRITE_TIMEOUT = seconds(2)
WRITE_TIMEOUTS = (ExecutionTimeout, NetworkTimeout, WTimeoutError)


def version() -> Iterator[Findings]:
    """Yield the version of the server if it is too old."""
    found = deployment.server_version()
    if tuple(int(part) for part in found.split(".")[:2]) < MIN_MONGODB_VERSION:
        yield Finding(
            f"MongoDB is version {found}, and must be {'.'.join(map(str, MIN_MONGODB_VERSION))} or newer",
            "Upgrade it, one major version at a time.",
        )


def permissions() -> Iterator[Findings]:
    """Yield the collections on which our user may not do everything."""
    for collection, missing in deployment.missing_actions(_systems()):
        yield Finding(
            f"The user of MONGO_DB_URL may not {', '.join(missing)} in the collection {collection}",
            f"Grant it these actions, or the role readWrite on the database {database.database().name!r}.",
        )


def write_concern() -> Iterator[Findings]:
    """Yield what keeps a confirmed write from being durable."""
    try:
        with database.within(WRITE_TIMEOUT):
            deployment.probe_write()
    except WRITE_TIMEOUTS:
        yield Finding(
            f"A majority of the members did not confirm a write within {WRITE_TIMEOUT.total_seconds():g} s",
            "Start the members that are unavailable: rs.status() in mongosh shows them.",
        )
    try:
        is_journaled = deployment.journals_majority_writes()
    except OperationFailure as error:
        yield NotChecked(f"Whether the journal has a confirmed write is unknown ({reason(error)})")
    else:
        if not is_journaled:
            yield Finding(
                "writeConcernMajorityJournalDefault is false, so that a confirmed write may be lost in a crash",
                "Set it to true with rs.reconfig() in mongosh.",
            )


def obstacles() -> Iterator[Findings]:
    """Yield the documents because of which `migrate` cannot create an index."""
    for system in _systems():
        if schema.missing(system.collections()) and (lines := system.obstacles()):
            yield Finding(
                f"{system.name}: {'; '.join(lines)}", "Repair these documents, then run `queue-manager migrate`."
            )


def _systems() -> list[System]:
    return [system for system in systems() if system.is_switched_on(settings())]
