"""Jobs: `jobs_data`, one document a job, kept after it is done.

    {_id, name, arguments, state, due, priority, created, updated, attempts}     every job
    {waiting, first}                        while it may be started: from when, and whether before all others
    {claim: {token, claimed_until, worker}} while it is executing
    {last_error, losses, history, progress} what happened; the last 50 entries
    {key, unique_key, singular, singular_key}   which jobs are the same, and which of them must be the only one
    {text}                                  its arguments as a search reads them

Guarantee: of the jobs of one name at most one is `executing`, by a unique index. Every change of state is one
conditional write: of any number of them at once, one wins, and a late one changes nothing. Documents of another form,
which another program stored in the same collection, are not listed and never changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from bson import ObjectId
from pymongo import ASCENDING, DESCENDING, IndexModel, ReturnDocument
from pymongo.collection import Collection
from pymongo.errors import DuplicateKeyError

from models.database import Document, collection

NAME = "jobs_data"
HISTORY = 50

# The partial indexes hold jobs that may be started, so a query must say that it wants no others. A comparison with a
# date matches nothing but dates; `$type`, which says the same, would make the server read the documents.
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MAY_BE_STARTED: Document = {"waiting": {"$gte": EPOCH}}

_COUNTED_ATTEMPTS: Document = {"attempts": {"$gte": 0}}
OURS: Document = {"_id": {"$type": "objectId"}, **_COUNTED_ATTEMPTS}
"""What every job has. Another program, such as the one whose collection this was, may have stored documents of its own
form here."""
COUNTED = 10_000

IN_ORDER = [("first", DESCENDING), ("priority", DESCENDING), ("waiting", ASCENDING)]

SORTED_BY = ("due", "updated", "priority", "attempts")
"""What jobs can be listed by, besides their ids. Every job has them all."""


class State(StrEnum):
    """Where a job stands, and who moves it on."""

    PENDING = "pending"  # a worker, when it is due
    EXECUTING = "executing"  # its worker; or the next dispatch, when its lease ran out
    SUCCESS = "success"  # nobody; `retry` by a person
    FAILURE = "failure"  # a worker, after its backoff; a take-over or a person at once
    CANCELED = "canceled"  # nobody; `retry` by a person


WAITING = (State.PENDING, State.FAILURE)
LIVE = (*WAITING, State.EXECUTING)


class Busy(Exception):
    """Another job of the same name is executing."""


class AlreadyThere(Exception):
    """A job that must be the only one of its kind is there already."""


def is_ours(document: Document) -> bool:
    """Return True if a document is a job, as `OURS` says it."""
    attempts = document.get("attempts")
    return isinstance(document["_id"], ObjectId) and isinstance(attempts, int | float) and attempts >= 0


def indexes() -> list[IndexModel]:
    waiting = {"partialFilterExpression": MAY_BE_STARTED}
    executing = {"partialFilterExpression": {"state": State.EXECUTING}}
    return [
        IndexModel([("name", ASCENDING), ("waiting", ASCENDING)], name="due_names", **waiting),
        IndexModel([("name", ASCENDING), *IN_ORDER], name="next_of_a_name", **waiting),
        IndexModel(
            [("name", ASCENDING)],
            name="one_executing_job",
            unique=True,
            partialFilterExpression={"state": State.EXECUTING, **_COUNTED_ATTEMPTS},
        ),
        IndexModel([("claim.claimed_until", ASCENDING), ("name", ASCENDING)], name="executing_by_lease", **executing),
        IndexModel([("unique_key", ASCENDING)], name="unique_jobs", unique=True, sparse=True),
        IndexModel([("singular_key", ASCENDING)], name="singular_jobs", unique=True, sparse=True),
        IndexModel([("key", ASCENDING)], name="same_jobs"),
        IndexModel([("name", ASCENDING), ("state", ASCENDING), ("_id", DESCENDING)], name="jobs_of_a_name"),
        IndexModel([("state", ASCENDING)], name="failed_jobs", partialFilterExpression={"state": State.FAILURE}),
        *_indexes_of_lists(),
    ]


def _indexes_of_lists() -> Iterator[IndexModel]:
    """Give what `models/job_pages.py` reads: jobs in a state, and jobs of a name in a state, by each field."""
    yield IndexModel([("state", ASCENDING), ("_id", DESCENDING)], name="jobs_in_a_state")
    for field in SORTED_BY:
        by = [("state", ASCENDING), (field, DESCENDING), ("_id", DESCENDING)]
        yield IndexModel(by, name=f"jobs_in_a_state_by_{field}")
        yield IndexModel([("name", ASCENDING), *by], name=f"jobs_of_a_name_by_{field}")


OBSOLETE = {NAME: ("one_executes",)}
"""Indexes of earlier releases. This one counted documents of other programs, too."""


def jobs() -> Collection[Document]:
    return collection(NAME)


def collections() -> dict[str, list[IndexModel]]:
    """Return what this module keeps, for `migrate`."""
    return {NAME: indexes()}


# Storing


def insert(job: Document, *, unique: bool, singular: bool) -> None:
    """Store a new job. Raises `AlreadyThere` when it must be the only one and is not."""
    blocked_in = [*State] if unique else [*LIVE] if singular else []
    if blocked_in and jobs().find_one({"key": job["key"], "state": {"$in": blocked_in}}, {"_id": 1}, hint="same_jobs"):
        raise AlreadyThere
    keys = {"unique_key": job["key"]} if unique else {}
    keys |= {"singular_key": job["key"], "singular": True} if singular else {}
    try:
        jobs().insert_one({**job, **keys})
    except DuplicateKeyError:
        raise AlreadyThere from None


# Looking for work


def due_names(until: datetime) -> dict[str, datetime]:
    """Return the names that have a job to be started by `until`, each with the time of its first one.

    The cost follows the names, not the jobs: in this form the server skips from name to name.
    """
    first_of_each: list[Document] = [
        {"$match": {"name": {"$gt": ""}, "waiting": {"$gte": EPOCH, "$lte": until}}},
        {"$sort": {"name": ASCENDING, "waiting": ASCENDING}},
        {"$group": {"_id": "$name", "waiting": {"$first": "$waiting"}}},
    ]
    return {row["_id"]: row["waiting"] for row in jobs().aggregate(first_of_each, hint="due_names")}


def next_due(name: str, *, after: datetime | None = None) -> datetime | None:
    """Return when the first job of `name` may be started, or the first `after` then; `None` when none waits."""
    waiting = MAY_BE_STARTED if after is None else {"waiting": {"$gt": after}}
    found = jobs().find_one(
        {"name": name, **waiting, **_COUNTED_ATTEMPTS},
        {"_id": 0, "waiting": 1},
        sort=[("waiting", ASCENDING)],
        hint="due_names",
    )
    return None if found is None else found["waiting"]


def next_jobs(name: str, *, now: datetime, limit: int) -> list[Document]:
    """Return the jobs of `name` that are due, in their order."""
    query = {"name": name, "waiting": {"$gte": EPOCH, "$lte": now}, **_COUNTED_ATTEMPTS}
    return list(jobs().find(query, sort=IN_ORDER, hint="next_of_a_name", limit=limit))


@dataclass(frozen=True, kw_only=True)
class Executing:
    """A job that is executing, and until when its worker has it."""

    id: ObjectId
    name: str
    claimed_until: datetime
    since: datetime
    worker: str | None
    """Host and process, as `host:pid`; `None` for a job that an older release started."""


def executing() -> list[Executing]:
    """Return every job that is executing, those whose lease ends first before the others."""
    found = jobs().find(
        {"state": State.EXECUTING, "claim.claimed_until": {"$gte": EPOCH}, **_COUNTED_ATTEMPTS},
        {"name": 1, "claim.claimed_until": 1, "claim.worker": 1, "updated": 1},
        sort=[("claim.claimed_until", ASCENDING)],
        hint="executing_by_lease",
    )
    return [
        Executing(
            id=job["_id"],
            name=job["name"],
            claimed_until=job["claim"]["claimed_until"],
            since=job["updated"],
            worker=job["claim"].get("worker"),
        )
        for job in found
    ]


# Acting for a new leader, or by hand


def take_over(now: datetime) -> int:
    """Make every failed job due now, once before all others of its name; return how many there are."""
    failed = {"state": State.FAILURE, **OURS}
    # Release 0.1 also made failed documents of other programs due, which nothing can run.
    foreign = {"state": State.FAILURE, "first": 1, "attempts": {"$exists": False}}
    jobs().update_many(foreign, {"$unset": {"waiting": "", "first": ""}}, hint="failed_jobs")
    return (
        jobs()
        .update_many(failed, {"$set": {"waiting": now, "due": now, "first": 1}}, hint="failed_jobs")
        .modified_count
    )


def cancel(job_id: ObjectId, *, now: datetime) -> Document | None:
    """Cancel a job that waits; return it as it is then, or `None` when it does not wait."""
    return _change(
        job_id,
        WAITING,
        {
            "$set": {"state": State.CANCELED, "updated": now},
            "$unset": {"waiting": "", "first": "", "singular_key": ""},
            "$push": pushed({"at": now, "state": State.CANCELED}),
        },
    )


def make_due(
    job_id: ObjectId, states: Iterable[State], *, due: datetime | None, priority: int | None, now: datetime
) -> Document | None:
    """Make a job in one of `states` pending from `due` on (`None`: from the time it has); return it, or `None`.

    Raises `AlreadyThere` when it is singular and another of its kind is live.
    """
    entry = {"at": now, "state": State.PENDING}
    changed: Document = {
        "state": State.PENDING,
        "due": due or "$due",
        "waiting": due or "$due",
        "updated": now,
        "singular_key": {"$cond": [{"$eq": ["$singular", True]}, "$key", "$$REMOVE"]},
        "history": {"$slice": [{"$concatArrays": ["$history", [entry]]}, -HISTORY]},
    }
    changed |= {} if priority is None else {"priority": priority}
    try:
        return _change(job_id, states, [{"$set": changed}, {"$unset": ["first"]}])
    except DuplicateKeyError:
        raise AlreadyThere from None


def pushed(entry: Document) -> Document:
    """Return what `$push` adds to the history of a job, which keeps the last `HISTORY` entries."""
    return {"history": {"$each": [entry], "$slice": -HISTORY}}


def _change(job_id: ObjectId, states: Iterable[State], change: Any) -> Document | None:
    return jobs().find_one_and_update(
        {"_id": job_id, "state": {"$in": [*states]}, **_COUNTED_ATTEMPTS},
        change,
        return_document=ReturnDocument.AFTER,
        hint="_id_",
    )


def clear(states: Sequence[State], name: str | None, *, most: int | None = None) -> int:
    """Delete the jobs in `states`, of one name or of all, `most` of them; return how many those were."""
    query: Document = {"state": {"$in": [*states]}, **OURS}
    if name is not None:
        query["name"] = name
    if most is not None:
        some = [job["_id"] for job in jobs().find(query, {"_id": 1}, limit=most)]
        query |= {"_id": {"$in": some}}
    return jobs().delete_many(query).deleted_count


# Looking


def get(job_id: ObjectId) -> Document | None:
    return jobs().find_one({"_id": job_id})


def get_any(ids: Sequence[Any]) -> Document | None:
    """Return the document that has one of these ids, the first that there is; also one of another form."""
    found = list(jobs().find({"_id": {"$in": [*ids]}}, hint="_id_"))
    return next((document for id in ids for document in found if document["_id"] == id), None)


def find(key: str) -> list[Document]:
    """Return the jobs of one name and arguments, newest first."""
    return list(jobs().find({"key": key}, sort=[("_id", DESCENDING)], hint="same_jobs"))


def failing(limit: int) -> dict[str, int]:
    """Return how many jobs of each name are in failure; of more than `limit` in all, some are left out."""
    pipeline: list[Document] = [
        {"$match": {"name": {"$gt": ""}, "state": State.FAILURE, **_COUNTED_ATTEMPTS}},
        {"$limit": limit},
        {"$group": {"_id": "$name", "jobs": {"$sum": 1}}},
        {"$sort": {"jobs": -1, "_id": 1}},
    ]
    return {row["_id"]: row["jobs"] for row in jobs().aggregate(pipeline, hint="jobs_of_a_name_by_attempts")}


def by_state(limit: int) -> dict[str, int]:
    """Return how many jobs are in each state, each counted up to `limit`."""
    return {
        state.value: jobs().count_documents(
            {"state": state, **_COUNTED_ATTEMPTS}, hint="jobs_in_a_state_by_attempts", limit=limit
        )
        for state in State
    }


def counts() -> dict[str, dict[str, int]]:
    """Return how many jobs of each name are in each state."""
    pipeline: list[Document] = [
        {"$match": _COUNTED_ATTEMPTS},  # and not `OURS`: the fields of one index must tell
        {"$group": {"_id": {"name": "$name", "state": "$state"}, "jobs": {"$sum": 1}}},
        {"$sort": {"_id.name": 1}},
    ]
    found: dict[str, dict[str, int]] = {}
    for row in jobs().aggregate(pipeline, hint="jobs_of_a_name_by_attempts"):
        found.setdefault(row["_id"]["name"], {})[row["_id"]["state"]] = row["jobs"]
    return found


def count_foreign() -> int:
    """Count the documents of another form, up to `COUNTED`: the cost follows them, not the jobs."""
    without = {"attempts": {"$not": _COUNTED_ATTEMPTS["attempts"]}}
    return jobs().count_documents(without, hint="jobs_in_a_state_by_attempts", limit=COUNTED)
