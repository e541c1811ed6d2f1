"""Migration: creation of all indexes, and removal of those of earlier releases.

Release 0.1 stored the lease of an item in its document, as `claim`; `migrate --finish` removes such claims.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count

from bson import json_util
from pymongo import IndexModel
from pymongo.errors import OperationFailure

from models import alert, archive, audit, history, item_events, mark, scan_run
from models.database import Document, collection, database, is_outage, within
from queue_manager.core.clock import hours
from queue_manager.core.errors import ConfigurationError, reason
from queue_manager.core.settings import redact_url, settings
from queue_manager.system import System

SHARED_INDEXES = {
    **scan_run.RUN_INDEXES,
    **item_events.EVENT_INDEXES,
    **alert.ALERT_INDEXES,
    **history.HISTORY_INDEXES,
    **mark.MARK_INDEXES,
    **audit.AUDIT_INDEXES,
    **archive.ARCHIVE_INDEXES,
}
"""The indexes of the collections that all systems share; those of one system are in `System.collections`."""
MAX_INDEX_BUILD = hours(24)  # of all indexes of a system
MAX_REBUILDS = 5  # of an index that other processes migrate at the same time
CLAIM_INDEXES = ("unclaimed_by_due", "claims_by_end", "claims_by_due", "claims_left_over")
"""Indexes of release 0.1, of every collection with claims."""
_CLAIM_TYPES = {
    "token": ["string", "null"],
    "held": ["bool"],
    "claimed_until": ["date"],
    "due_at": ["date"],
    "losses": ["int", "long"],
}
_IS_A_VIEW = 166
_NOT_AUTHORIZED = 13
_INDEX_NOT_FOUND = 27
_BUILD_ABORTED = 276  # another process has dropped the index while it was built
_INDEX_EXISTS = 85  # under another name, if it persists, or with another definition
_INDEX_DIFFERS = (_INDEX_EXISTS, 86, _BUILD_ABORTED)


class Obstructed(ConfigurationError):
    """Existing documents or collections prevent indexes of some systems; `indexes` of the others were created."""

    def __init__(self, obstacles: dict[str, list[str]], indexes: list[str]) -> None:
        lines = [line for some in obstacles.values() for line in some]
        super().__init__(
            f"{', '.join(obstacles)} could not be migrated, everything else is done. Correct this and run it "
            "again\n" + "\n".join(lines)
        )
        self.indexes = indexes


def migrate(systems: Iterable[System]) -> list[str]:
    """Create the missing indexes of these systems and the shared ones; return their names. Idempotent.

    Raises:
        Obstructed: some systems could not be migrated; the others were.
    """
    created = create_indexes(SHARED_INDEXES)
    obstacles: dict[str, list[str]] = {}
    for system in systems:
        try:
            if lines := system.obstacles():
                obstacles[system.name] = [*lines]
                continue
            created += create_indexes(system.read_collections())
        except OperationFailure as error:
            if error.code == _NOT_AUTHORIZED or is_outage(error):
                raise
            obstacles[system.name] = [reason(error)]
    if obstacles:
        raise Obstructed(obstacles, created)
    return created


def missing(wanted: Mapping[str, Sequence[IndexModel]]) -> list[str]:
    """Return the names of the indexes that do not exist yet, as `collection.index`."""
    return [f"{name}.{index}" for name, index, exists in _looked_up(wanted) if not exists]


def multikey(wanted: Mapping[str, Sequence[IndexModel]]) -> list[str]:
    """Return the names of the indexes in which a document ever had a list, as `collection.index`.

    MongoDB does not sort by them, nor skip from one value to the next, as long as the index exists.
    """
    return [f"{name}.{index}" for name, index, exists in _looked_up(wanted) if exists and _is_multikey(name, index)]


def _looked_up(wanted: Mapping[str, Sequence[IndexModel]]) -> Iterator[tuple[str, str, bool]]:
    """Yield the collection and the name of each index, and whether it exists."""
    for name, indexes in wanted.items():
        found = _indexes_of(name)
        for index in (one.document["name"] for one in indexes):
            yield name, index, index in found


def _is_multikey(name: str, index: str) -> bool:
    plan = database().command("explain", {"find": name, "hint": index}, verbosity="queryPlanner")
    return '"isMultiKey": true' in json_util.dumps(plan)


def _indexes_of(name: str) -> Mapping[str, object]:
    """Return the indexes of a collection; none of a view, which cannot have any."""
    try:
        return collection(name).index_information()
    except OperationFailure as error:
        if error.code != _IS_A_VIEW:
            raise
        return {}


def obsolete(system: System) -> list[str]:
    """Return the names of the system's indexes that only earlier releases needed, as `collection.index`."""
    return [
        f"{name}.{index}"
        for name, indexes in system.obsolete_indexes.items()
        for index in sorted({*collection(name).index_information()} & {*indexes})
    ]


def finish(systems: Iterable[System]) -> int:
    """Remove obsolete indexes and claims of earlier releases; return the number of claims. Idempotent."""
    claims = 0
    for system in systems:
        for name, indexes in system.obsolete_indexes.items():
            if {*CLAIM_INDEXES} <= {*indexes}:
                claims += _remove_claims(name)
            for index in {*collection(name).index_information()} & {*indexes}:
                _drop(name, index)
    return claims


def _remove_claims(name: str) -> int:
    """Remove the field `claim` if it has exactly the form of release 0.1; return the number of documents changed.

    A field `claim` of another form belongs to another program.
    """
    typed: list[Document] = [{"$in": [{"$type": f"$claim.{key}"}, types]} for key, types in _CLAIM_TYPES.items()]
    only_these = {"$eq": [{"$size": {"$objectToArray": "$claim"}}, len(_CLAIM_TYPES)]}
    is_old_claim = {"$cond": [{"$eq": [{"$type": "$claim"}, "object"]}, {"$and": [only_these, *typed]}, False]}
    where: Document = {"claim.claimed_until": {"$type": "date"}, "$expr": is_old_claim}
    return collection(name).update_many(where, {"$unset": {"claim": ""}}).modified_count


@contextmanager
def rights_to_migrate() -> Iterator[None]:
    """Translate authorization errors into a `ConfigurationError`."""
    try:
        yield
    except OperationFailure as error:
        if error.code != _NOT_AUTHORIZED:
            raise
        raise ConfigurationError(
            f"MongoDB at {redact_url(settings().mongo_db_url)} does not let this user create indexes: it needs the "
            f"role readWrite on the database {database().name!r}"
        ) from error


def create_indexes(wanted: Mapping[str, Sequence[IndexModel]]) -> list[str]:
    """Create missing indexes and rebuild changed ones; return their names as `collection.index`. Idempotent."""
    with within(MAX_INDEX_BUILD):  # instead of the timeout of other commands
        return [f"{name}.{index}" for name, indexes in wanted.items() for index in _create(name, indexes)]


def _create(name: str, indexes: Sequence[IndexModel]) -> list[str]:
    try:
        return collection(name).create_indexes([*indexes])
    except OperationFailure as error:
        if error.code not in _INDEX_DIFFERS:
            raise
        return [_create_or_rebuild(name, index) for index in indexes]


def _create_or_rebuild(name: str, index: IndexModel) -> str:
    for attempt in count(1):  # another process may drop it, or create its own, meanwhile
        try:
            (created,) = collection(name).create_indexes([index])
            break
        except OperationFailure as error:
            if error.code not in _INDEX_DIFFERS or attempt == MAX_REBUILDS:
                if error.code == _INDEX_EXISTS:
                    ours = index.document["name"]
                    is_same = "already exists with a different name:" in str(error)  # not only an equivalent one
                    advice = f". Drop that one; {ours}, with the same definition, replaces it" if is_same else ""
                    raise OperationFailure(f"{name}: {reason(error)}{advice}", error.code) from error
                raise
            if error.code != _BUILD_ABORTED:
                _drop(name, index.document["name"])
    return created


def _drop(name: str, index: str) -> None:
    try:
        collection(name).drop_index(index)
    except OperationFailure as error:
        if error.code != _INDEX_NOT_FOUND:  # another process has dropped it
            raise
