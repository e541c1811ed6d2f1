"""The MongoDB deployment: whether it accepts a write, what our user may do, and how durable a confirmed write is.

Collection `qm_readiness`, one document that is written repeatedly: {_id: "web", at}
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from pymongo import WriteConcern

from models import alert, job, job_counts, job_queue, scan_run, schema, site
from models.database import Document, client, collection, database
from queue_manager.core.settings import settings
from queue_manager.system import System

READINESS_COLLECTION = "qm_readiness"
MAJORITY = WriteConcern("majority")
READ = ("find", "listIndexes")
OWN = (*READ, "insert", "update", "remove")
"""MongoDB's privilege actions that the collections of Queue Manager need."""
WITHOUT_INDEXES = {READINESS_COLLECTION, scan_run.RUNNING_COLLECTION, alert.ALERTS_COLLECTION}
WITHOUT_INDEXES_OF_JOBS = {job_queue.LEADERS_COLLECTION, job_counts.COUNTS_COLLECTION}
OWN_COLLECTIONS = {
    *WITHOUT_INDEXES,
    *WITHOUT_INDEXES_OF_JOBS,
    *(scan_run.RUNS_COLLECTION, site.RESETS_COLLECTION, job.JOBS_COLLECTION, job_queue.QUEUES_COLLECTION),
}


def probe_write() -> None:
    """Write a document with majority write concern. Raises the errors of the driver."""
    durable = collection(READINESS_COLLECTION).with_options(write_concern=MAJORITY)
    durable.update_one({"_id": "web"}, {"$currentDate": {"at": True}}, upsert=True)


def used_collections(systems: Iterable[System]) -> set[str]:
    """Return the names of the collections that these systems use. Our user may lack rights on any other."""
    names = WITHOUT_INDEXES.union(schema.SHARED_INDEXES, *(system.read_collections() for system in systems))
    return names | WITHOUT_INDEXES_OF_JOBS if job.JOBS_COLLECTION in names else names


def missing_actions(systems: Iterable[System]) -> Iterator[tuple[str, list[str]]]:
    """Yield each collection of these systems on which our user lacks privileges, and the missing ones.

    Nothing if the server has no access control. Raises the errors of the driver.
    """
    auth = client().admin.command("connectionStatus", showPrivileges=True)["authInfo"]
    if not auth["authenticatedUsers"]:
        collection(READINESS_COLLECTION).find_one()  # refused if the server expects a login
        return
    for name in sorted(used_collections(systems)):
        allowed = _allowed(auth["authenticatedUserPrivileges"], name)
        if missing := [action for action in _needed(name) if action not in allowed and "anyAction" not in allowed]:
            yield name, missing


def _needed(name: str) -> tuple[str, ...]:
    """Return the actions that the processes need; `migrate`, which may have another user, creates indexes, too."""
    if name == job.JOBS_COLLECTION:
        return (*OWN, "changeStream")
    if name in OWN_COLLECTIONS or name.startswith("qm_"):
        return OWN
    if name == settings().subscriptions_collection:
        return READ
    return (*READ, "insert", "update") if name == settings().pulses_collection else (*READ, "update")


def _allowed(privileges: Iterable[Document], name: str) -> set[str]:
    covering = (one for one in privileges if _covers(one["resource"], name))
    return {action for one in covering for action in one["actions"]}


def _covers(resource: Document, name: str) -> bool:
    if resource.get("anyResource"):
        return True
    of_database, of_collection = resource.get("db"), resource.get("collection")
    return of_database in ("", database().name) and of_collection in ("", name)


def server_version() -> str:
    """Return the version of MongoDB, such as `6.0.5`. Raises the errors of the driver."""
    return str(client().server_info()["version"])


def journals_majority_writes() -> bool:
    """Return True if a write that a majority confirmed is in the journals of these members.

    Raises OperationFailure if our user may not read the configuration of the replica set.
    """
    config: Any = client().admin.command("replSetGetConfig")["config"]
    return bool(config.get("writeConcernMajorityJournalDefault", True))
