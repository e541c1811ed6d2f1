"""Checks of MongoDB beyond those of health: rights, durability, and documents that are in the way."""

from __future__ import annotations

from collections.abc import Iterator

from pymongo.errors import OperationFailure

from beat_schedule import systems
from models import database, deployment, job, outbox, schema
from queue_manager.core.errors import reason
from queue_manager.core.settings import settings
from queue_manager.core.wording import first_ids, many
from queue_manager.doctor.findings import Finding, Findings, NotChecked
from queue_manager.system import System
from services.due_documents import DueDocuments

MIN_MONGODB_VERSION = (6, 0)


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


def journal() -> Iterator[Findings]:
    """Yield the setting by which a confirmed write need not be in the journal."""
    try:
        is_journaled = deployment.journals_majority_writes()
    except OperationFailure as error:
        text = "Could not read whether confirmed writes are in the journal, which needs the role clusterMonitor"
        yield NotChecked(f"{text} ({reason(error)})")
    else:
        if not is_journaled:
            yield Finding(
                "writeConcernMajorityJournalDefault is false, so that a confirmed write may be lost in a crash",
                "Set it to true with rs.reconfig() in mongosh.",
            )


def indexes() -> Iterator[Findings]:
    """Yield the documents because of which `migrate` cannot create an index, or reading an index of jobs is slow."""
    for system in _systems():
        if schema.missing(system.read_collections()) and (lines := system.obstacles()):
            yield Finding(
                f"{system.name}: {'; '.join(lines)}", "Repair these documents, then run `queue-manager migrate`."
            )

    if settings().runs_jobs and (slow := schema.multikey(job.JOB_INDEXES)):
        yield Finding(
            f"A job had a list instead of a value, so reading {', '.join(slow)} is slow",
            "Correct the job if it still exists, drop these indexes in mongosh, and run `queue-manager migrate`. No "
            "jobs are started in between.",
        )


def calls_of_no_system() -> Iterator[Findings]:
    """Yield the pending calls of `after` that no scan repeats: their system is not declared, or has no `after`."""
    callers = [one.name for one in systems() if isinstance(one, DueDocuments) and one.functions.after is not None]
    counts = [
        f"{name} ({many(count, 'batch', 'batches')})" for name, count in outbox.counts().items() if name not in callers
    ]
    if counts:
        yield Finding(
            f"Pending calls of `after` for systems that are not declared here, or have no `after`: "
            f"{first_ids(counts, len(counts))}",
            "Declare the system with its `after` under this name until its calls are done, or delete its documents in "
            f"{outbox.OUTBOX_COLLECTION}.",
        )


def _systems() -> list[System]:
    return [system for system in systems() if system.is_switched_on(settings())]
