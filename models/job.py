"""Jobs: collection `jobs_data`, one document per job, kept after the job has finished.

    {_id, name, arguments, state, due, priority, created, updated, attempts}     every job
    {waiting, first}                        while it can be started: earliest start, and 1 if it goes before all others
    {claim: {token, claimed_until, worker}} while executing
    {last_error, losses, history, progress} results; the history has the last 50 entries
    {key, unique_key, singular, singular_key}   hash of name and arguments, and its uniqueness constraints
    {text}                                  arguments as searchable text
    {repetition, settled}                   `every_ms` or `cron`, and `since`; the attempts up to the last success

Guarantee: at most one job of a name is `executing`, by a unique index. Every change of state is one conditional write:
of concurrent changes one succeeds, and a late one has no effect. Documents that another program stored in the same
collection are not listed, and are changed only when they are adopted (`models/foreign_job.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from bson import ObjectId
from pymongo import ASCENDING, DESCENDING, IndexModel, ReturnDocument
from pymongo.collection import Collection
from pymongo.errors import DuplicateKeyError

from models.database import Document, collection
from queue_manager.core.clock import EPOCH
from queue_manager.core.errors import AppError

JobId = ObjectId | str
JOBS_COLLECTION = "jobs_data"
MAX_HISTORY = 50

# The partial indexes contain only jobs that can be started, so queries must repeat this condition. A comparison with a
# date matches only dates; the equivalent `$type` would make the server fetch the documents.
STARTABLE: Document = {"waiting": {"$gte": EPOCH}}

COUNTED_ATTEMPTS: Document = {"attempts": {"$gte": 0}}
IS_JOB: Document = {"_id": {"$type": ["objectId", "string"]}, **COUNTED_ATTEMPTS}
"""Condition that every job meets, and documents of other programs in the same collection do not.

The id of an adopted job may be a text.
"""

EXECUTION_ORDER = [("first", DESCENDING), ("priority", DESCENDING), ("waiting", ASCENDING)]

JOB_SORT_FIELDS = ("due", "updated", "priority", "attempts")
"""Fields by which jobs can be sorted, in addition to the id. Every job has them all."""


class JobState(StrEnum):
    """State of a job; the comments say who moves it to another state."""

    PENDING = "pending"  # a worker, when it is due
    EXECUTING = "executing"  # its worker; the next dispatch if its lease expired
    SUCCESS = "success"  # only `retry` by an operator
    FAILURE = "failure"  # a worker, after the backoff; a take-over or an operator
    CANCELED = "canceled"  # only `retry` or `reschedule` by an operator


FINISHED_STATES = (JobState.SUCCESS, JobState.CANCELED)
WAITING_STATES = (JobState.PENDING, JobState.FAILURE)
LIVE_STATES = (*WAITING_STATES, JobState.EXECUTING)


class NameBusy(Exception):
    """Another job of the same name is executing."""


class DuplicateJob(AppError):
    """A job with the same name and arguments already exists, and only one is allowed."""


def is_job(document: Document) -> bool:
    """Return True if a document meets `IS_JOB`."""
    attempts = document.get("attempts")
    return isinstance(document["_id"], ObjectId | str) and isinstance(attempts, int | float) and attempts >= 0


def indexes() -> list[IndexModel]:
    waiting = {"partialFilterExpression": STARTABLE}
    executing = {"partialFilterExpression": {"state": JobState.EXECUTING}}
    return [
        IndexModel([("name", ASCENDING), ("waiting", ASCENDING)], name="due_names", **waiting),
        IndexModel([("name", ASCENDING), *EXECUTION_ORDER], name="next_of_a_name", **waiting),
        IndexModel(
            [("name", ASCENDING)],
            name="one_executing_job",
            unique=True,
            partialFilterExpression={"state": JobState.EXECUTING, **COUNTED_ATTEMPTS},
        ),
        IndexModel([("claim.claimed_until", ASCENDING), ("name", ASCENDING)], name="executing_by_lease", **executing),
        IndexModel([("unique_key", ASCENDING)], name="unique_jobs", unique=True, sparse=True),
        IndexModel([("singular_key", ASCENDING)], name="singular_jobs", unique=True, sparse=True),
        IndexModel([("key", ASCENDING)], name="same_jobs"),
        IndexModel([("name", ASCENDING), ("state", ASCENDING), ("_id", DESCENDING)], name="jobs_of_a_name"),
        IndexModel([("state", ASCENDING)], name="failed_jobs", partialFilterExpression={"state": JobState.FAILURE}),
        *_indexes_of_lists(),
    ]


def _indexes_of_lists() -> Iterator[IndexModel]:
    """Yield the indexes for `models/job_pages.py`: by state, and by name and state, for each sort field."""
    yield IndexModel([("state", ASCENDING), ("_id", DESCENDING)], name="jobs_in_a_state")
    for field in JOB_SORT_FIELDS:
        by = [("state", ASCENDING), (field, DESCENDING), ("_id", DESCENDING)]
        yield IndexModel(by, name=f"jobs_in_a_state_by_{field}")
        yield IndexModel([("name", ASCENDING), *by], name=f"jobs_of_a_name_by_{field}")


OBSOLETE_INDEXES = {JOBS_COLLECTION: ("one_executes",)}
"""Indexes of earlier releases. This one included documents of other programs."""


def jobs() -> Collection[Document]:
    return collection(JOBS_COLLECTION)


def collections() -> dict[str, list[IndexModel]]:
    """Return the collections of this module with their indexes, for `migrate`."""
    return {JOBS_COLLECTION: indexes()}


# Storing


def insert(job: Document, *, unique: bool, singular: bool) -> None:
    """Store a new job. Raises `DuplicateJob` if a unique or singular job already exists."""
    blocked_in = [*JobState] if unique else [*LIVE_STATES] if singular else []
    if blocked_in and jobs().find_one({"key": job["key"], "state": {"$in": blocked_in}}, {"_id": 1}, hint="same_jobs"):
        raise DuplicateJob(f"There is already a job {job['name']} with these arguments")
    keys = {"unique_key": job["key"]} if unique else {}
    keys |= {"singular_key": job["key"], "singular": True} if singular else {}
    try:
        jobs().insert_one({**job, **keys})
    except DuplicateKeyError:
        raise DuplicateJob(f"There is already a job {job['name']} with these arguments") from None


# Finding due jobs


def due_names(until: datetime) -> dict[str, datetime]:
    """Return the names with a job that is due by `until`, each with its earliest time.

    The cost grows with the number of names, not of jobs: this pipeline lets the server skip from name to name.
    """
    first_of_each: list[Document] = [
        {"$match": {"name": {"$gt": ""}, "waiting": {"$gte": EPOCH, "$lte": until}}},
        {"$sort": {"name": ASCENDING, "waiting": ASCENDING}},
        {"$group": {"_id": "$name", "waiting": {"$first": "$waiting"}}},
    ]
    return {row["_id"]: row["waiting"] for row in jobs().aggregate(first_of_each, hint="due_names")}


def next_due(name: str, *, after: datetime | None = None) -> datetime | None:
    """Return the earliest start of the jobs of `name`, or the earliest `after` a time; `None` if there is none."""
    waiting = STARTABLE if after is None else {"waiting": {"$gt": after}}
    found = jobs().find_one(
        {"name": name, **waiting, **COUNTED_ATTEMPTS},
        {"_id": 0, "waiting": 1},
        sort=[("waiting", ASCENDING)],
        hint="due_names",
    )
    return None if found is None else found["waiting"]


def next_jobs(name: str, *, now: datetime, limit: int) -> list[Document]:
    """Return the due jobs of `name` in execution order."""
    query = {"name": name, "waiting": {"$gte": EPOCH, "$lte": now}, **COUNTED_ATTEMPTS}
    return list(jobs().find(query, sort=EXECUTION_ORDER, hint="next_of_a_name", limit=limit))


@dataclass(frozen=True, kw_only=True)
class ExecutingJob:
    """An executing job and its claim."""

    id: JobId
    name: str
    claimed_until: datetime
    since: datetime
    worker: str | None
    """Host and process, as `host:pid`; `None` for a job that an older release started."""
    losses: int
    """Number of consecutive workers lost while executing this job."""


def executing() -> list[ExecutingJob]:
    """Return all executing jobs, ordered by the end of their lease."""
    found = jobs().find(
        {"state": JobState.EXECUTING, "claim.claimed_until": {"$gte": EPOCH}, **COUNTED_ATTEMPTS},
        {"name": 1, "claim.claimed_until": 1, "claim.worker": 1, "updated": 1, "losses": 1},
        sort=[("claim.claimed_until", ASCENDING)],
        hint="executing_by_lease",
    )
    return [
        ExecutingJob(
            id=job["_id"],
            name=job["name"],
            claimed_until=job["claim"]["claimed_until"],
            since=job["updated"],
            worker=job["claim"].get("worker"),
            losses=job.get("losses", 0),
        )
        for job in found
    ]


# Operations of a new leader and of operators


def make_failed_due(now: datetime) -> int:
    """Make every failed job due now, ahead of the other jobs of its name; return their number."""
    failed = {"state": JobState.FAILURE, **IS_JOB}
    # Release 0.1 also made failed documents of other programs due, which cannot be run.
    foreign = {"state": JobState.FAILURE, "first": 1, "attempts": {"$exists": False}}
    jobs().update_many(foreign, {"$unset": {"waiting": "", "first": ""}}, hint="failed_jobs")
    due_now = {"$set": {"waiting": now, "due": now, "first": 1}}
    return jobs().update_many(failed, due_now, hint="failed_jobs").modified_count


def cancel(job_id: JobId, *, now: datetime) -> Document | None:
    """Cancel a pending or failed job; return the updated job, or `None` if it is in another state."""
    return _change(
        job_id,
        WAITING_STATES,
        {
            "$set": {"state": JobState.CANCELED, "updated": now},
            "$unset": {"waiting": "", "first": "", "singular_key": ""},
            "$push": push_to_history({"at": now, "state": JobState.CANCELED}),
        },
    )


def make_due(
    job_id: JobId, states: Iterable[JobState], *, due: datetime | None, priority: int | None, now: datetime
) -> Document | None:
    """Set a job in one of `states` to pending with this due time (`None`: unchanged); return the job, or `None`.

    Raises `DuplicateJob` if it is singular and another job with its key is live.
    """
    entry = {"at": now, "state": JobState.PENDING}
    changed: Document = {
        "state": JobState.PENDING,
        "due": due or "$due",
        "waiting": due or "$due",
        "updated": now,
        "singular_key": {"$cond": [{"$eq": ["$singular", True]}, "$key", "$$REMOVE"]},
        "history": {"$slice": [{"$concatArrays": ["$history", [entry]]}, -MAX_HISTORY]},
    }
    changed |= {} if priority is None else {"priority": priority}
    try:
        return _change(job_id, states, [{"$set": changed}, {"$unset": ["first"]}])
    except DuplicateKeyError:
        raise DuplicateJob(f"The job {job_id} is singular, and another with its name and arguments is live") from None


def push_to_history(entry: Document) -> Document:
    """Return the `$push` of a history entry; the history keeps the last `MAX_HISTORY` entries."""
    return {"history": {"$each": [entry], "$slice": -MAX_HISTORY}}


def _change(job_id: JobId, states: Iterable[JobState], change: Any) -> Document | None:
    return jobs().find_one_and_update(
        {"_id": job_id, "state": {"$in": [*states]}, **COUNTED_ATTEMPTS},
        change,
        return_document=ReturnDocument.AFTER,
        hint="_id_",
    )


def remove(job_id: JobId) -> Document | None:
    """Delete a job unless it is executing; return it, or `None`."""
    not_executing = {"_id": job_id, "state": {"$ne": JobState.EXECUTING}, **COUNTED_ATTEMPTS}
    return jobs().find_one_and_delete(not_executing, hint="_id_")


def clear(states: Sequence[JobState], name: str | None, *, limit: int | None = None) -> int:
    """Delete up to `limit` jobs in `states`, of one name or of all names; return their number."""
    query: Document = {"state": {"$in": [*states]}, **IS_JOB}
    if name is not None:
        query["name"] = name
    if limit is not None:
        some = [job["_id"] for job in jobs().find(query, {"_id": 1}, limit=limit)]
        query |= {"_id": {"$in": some}}
    return jobs().delete_many(query).deleted_count


def remove_finished(before: datetime, *, limit: int) -> int:
    """Delete up to `limit` jobs that succeeded or were canceled before a time; return their number."""
    finished = {"state": {"$in": [*FINISHED_STATES]}, "updated": {"$lt": before}, **COUNTED_ATTEMPTS}
    found = jobs().find(finished, {"_id": 1}, hint="jobs_in_a_state_by_updated", limit=limit)
    ids = [one["_id"] for one in found]
    return jobs().delete_many({**finished, "_id": {"$in": ids}}, hint="_id_").deleted_count if ids else 0


# Reading


def get_any(ids: Sequence[Any]) -> Document | None:
    """Return the document with the first of these ids that exists, also if it is not a job."""
    found = list(jobs().find({"_id": {"$in": [*ids]}}, hint="_id_"))
    return next((document for id in ids for document in found if document["_id"] == id), None)


def find(key: str) -> list[Document]:
    """Return the jobs with this key, newest first."""
    return list(jobs().find({"key": key}, sort=[("_id", DESCENDING)], hint="same_jobs"))


def count_failing(limit: int) -> dict[str, int]:
    """Count the failed jobs by name, at most `limit` in total."""
    pipeline: list[Document] = [
        {"$match": {"name": {"$gt": ""}, "state": JobState.FAILURE, **COUNTED_ATTEMPTS}},
        {"$limit": limit},
        {"$group": {"_id": "$name", "jobs": {"$sum": 1}}},
        {"$sort": {"jobs": -1, "_id": 1}},
    ]
    return {row["_id"]: row["jobs"] for row in jobs().aggregate(pipeline, hint="jobs_of_a_name_by_attempts")}


def count_by_state(limit: int) -> dict[str, int]:
    """Count the jobs by state, each up to `limit`."""
    return {
        state.value: jobs().count_documents(
            {"state": state, **COUNTED_ATTEMPTS}, hint="jobs_in_a_state_by_attempts", limit=limit
        )
        for state in JobState
    }


def counts() -> dict[str, dict[str, int]]:
    """Count the jobs by name and state."""
    pipeline: list[Document] = [
        {"$match": COUNTED_ATTEMPTS},  # not `IS_JOB`, so that the index covers the query
        {"$group": {"_id": {"name": "$name", "state": "$state"}, "jobs": {"$sum": 1}}},
        {"$sort": {"_id.name": 1}},
    ]
    found: dict[str, dict[str, int]] = {}
    for row in jobs().aggregate(pipeline, hint="jobs_of_a_name_by_attempts"):
        found.setdefault(row["_id"]["name"], {})[row["_id"]["state"]] = row["jobs"]
    return found
