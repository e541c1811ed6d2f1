"""Jobs: collection `jobs_data`, one document per job, kept after the job has finished.

    {_id, name, arguments, state, due, priority, created, updated, attempts}     every job
    {waiting, first}                        while it can be started: earliest start, and 1 if it goes before all others
    {claim: {token, claimed_until, worker}} while executing
    {claim: {timeout_seconds, ends_at, canceled_at}}   its time limit; its process is ended at `ends_at`; asked to stop
    {fence}                                 BSON timestamp that the server set when the last attempt started
    {page}                                  while executing: ids of the jobs that are reserved with it
    {reserved: {token, worker, until}, alone}  a run may start it, until then; it must not share a batch (`job_attempt`)
    {last_error, losses, history, progress} results; the history has the last 50 entries
    {key, unique_key, singular, singular_key}   hash of name and arguments, and its uniqueness constraints
    {text}                                  arguments as searchable text
    {uncounted}                             finished, and not included in the counts of its name (`job_counts`)
    {repetition, settled}                   `every_ms` or `cron`, and `since`; the attempts up to the last success,
                                            and those since then that do not count

Guarantee: at most one job of a name is `executing`, by a unique index. Every change of state is one conditional write:
of concurrent changes one succeeds, and a late one has no effect. Documents that another program stored in the same
collection are not listed, and are changed only when they are adopted (`models/foreign_job.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from enum import StrEnum
from math import isfinite
from typing import Any, TypeVar

from bson import ObjectId
from pymongo import ASCENDING, DESCENDING, IndexModel, UpdateMany
from pymongo.client_session import ClientSession
from pymongo.collection import Collection
from pymongo.errors import BulkWriteError, OperationFailure

from models.database import Document, collection, duplicates, first_reply, update_all
from models.document_id import id_candidates
from queue_manager.core.clock import EPOCH
from queue_manager.core.errors import AppError

JobId = ObjectId | str
T = TypeVar("T")
JOBS_COLLECTION = "jobs_data"
MAX_HISTORY = 50
MAX_TRANSACTION_BYTES = 8 * 1024 * 1024
_HISTORY_REFUSED = (2, 10334, 17419)  # MongoDB's codes for a `$push` to what is not a list, or to more than 16 MB
MAX_EXACT_COUNT = 2**53  # beyond this, adding one to a double does not change it, so it cannot be a count
DECLARED_PREFIX = "declared:"
"""Prefix of the ids of repeating jobs that code declares (`models/declared_job.py`)."""

# The partial indexes contain only jobs that can be started, so queries must repeat this condition. A comparison with a
# date matches only dates; the equivalent `$type` would make the server fetch the documents.
STARTABLE: Document = {"waiting": {"$gte": EPOCH}}

COUNTED_ATTEMPTS: Document = {"attempts": {"$gte": 0}}
IS_JOB: Document = {"_id": {"$type": ["objectId", "string"]}, **COUNTED_ATTEMPTS}
"""Condition that every job meets, and documents of other programs in the same collection do not.

The id of an adopted job may be a text.
"""

# An attempt adds one, and is found by the sum. A list has none, and a decimal is not always equal to a Python number.
VALID_ATTEMPTS: Document = {"attempts": {"$gte": 0, "$lte": MAX_EXACT_COUNT, "$not": {"$type": ["array", "decimal"]}}}

MALFORMED_ERROR = "The job is malformed and cannot be started: `attempts` must be a number, and `waiting` one date"
_NOT_DUE: Document = {"$unset": {"waiting": "", "first": ""}}

EXECUTION_ORDER = [("first", DESCENDING), ("priority", DESCENDING), ("waiting", ASCENDING)]

JOB_SORT_FIELDS = ("due", "updated", "priority", "attempts")
"""Fields by which jobs can be sorted, in addition to the id. Every job has them all."""


class JobState(StrEnum):
    """State of a job; the comments say who moves it to another state."""

    PENDING = "pending"  # a worker, when it is due
    EXECUTING = "executing"  # its worker; the next dispatch if its lease expired; `cancel` only asks it to stop
    SUCCESS = "success"  # only `retry` by an operator
    FAILURE = "failure"  # a worker, after the backoff; a takeover or an operator
    CANCELED = "canceled"  # only `retry`, or `reschedule` to a time, by an operator


FINISHED_STATES = (JobState.SUCCESS, JobState.CANCELED)
WAITING_STATES = (JobState.PENDING, JobState.FAILURE)
LIVE_STATES = (*WAITING_STATES, JobState.EXECUTING)
LIVE: Document = {"state": {"$in": [*LIVE_STATES]}}
RESCHEDULABLE_STATES = (*WAITING_STATES, JobState.CANCELED)
INACTIVE_STATES = (*WAITING_STATES, *FINISHED_STATES)
UNCOUNTED: Document = {"uncounted": True}
"""Condition of the finished jobs that the counts of their names do not include yet (`models/job_counts.py`)."""


class NameBusy(Exception):
    """Another job of the same name is executing."""


class DuplicateJob(AppError):
    """A job with the same name and arguments already exists, and only one is allowed."""


def is_job(document: Document) -> bool:
    """Return True if a document meets `IS_JOB`, by a number of attempts that is neither in a list nor a decimal."""
    attempts: Any = document.get("attempts")
    is_number = isinstance(attempts, int | float) and not isinstance(attempts, bool)
    return isinstance(document["_id"], JobId) and is_number and attempts >= 0


def as_count(value: Any) -> int:
    """Return a number of a stored job as a count; 0 if another program has stored an invalid one."""
    return int(min(max(value, 0), MAX_EXACT_COUNT)) if isinstance(value, int | float) and isfinite(value) else 0


def attempt_of(job: Document) -> int:
    """Return the number of the latest attempt, counted from 1, also after each success of a repeating job."""
    return as_count(job["attempts"]) - as_count(job.get("settled"))


def _indexes_of_lists() -> Iterator[IndexModel]:
    """Yield the indexes for `models/job_pages.py`: by state, and by name and state, for each sort field."""
    yield IndexModel(["state", ("_id", DESCENDING)], name="jobs_in_a_state")
    for field in JOB_SORT_FIELDS:
        by = [("state", ASCENDING), (field, DESCENDING), ("_id", DESCENDING)]
        yield IndexModel(by, name=f"jobs_in_a_state_by_{field}")
        yield IndexModel(["name", *by], name=f"jobs_of_a_name_by_{field}")


_WAITING: Document = {"partialFilterExpression": STARTABLE}
_EXECUTING: Document = {"partialFilterExpression": {"state": JobState.EXECUTING}}
JOB_INDEXES = {
    JOBS_COLLECTION: [
        IndexModel(["name", "waiting"], name="due_names", **_WAITING),
        IndexModel(["name", *EXECUTION_ORDER], name="next_of_a_name", **_WAITING),
        IndexModel(
            "name",
            name="one_executing_job",
            unique=True,
            partialFilterExpression={"state": JobState.EXECUTING, **COUNTED_ATTEMPTS},
        ),
        IndexModel(["claim.claimed_until", "name"], name="executing_by_lease", **_EXECUTING),
        IndexModel("unique_key", name="unique_jobs", unique=True, sparse=True),
        IndexModel("singular_key", name="singular_jobs", unique=True, sparse=True),
        IndexModel("key", name="same_jobs"),
        IndexModel("key", name="same_live_jobs", partialFilterExpression=LIVE),
        IndexModel(["name", "state", ("_id", DESCENDING)], name="jobs_of_a_name"),
        IndexModel("state", name="failed_jobs", partialFilterExpression={"state": JobState.FAILURE}),
        IndexModel(["name", "state"], name="uncounted_jobs", partialFilterExpression=UNCOUNTED),
        *_indexes_of_lists(),
    ]
}

OBSOLETE_INDEXES = {JOBS_COLLECTION: ("one_executes",)}
"""Indexes of earlier releases. This one included documents of other programs."""


def jobs() -> Collection[Document]:
    return collection(JOBS_COLLECTION)


# Storing


def insert(new: Sequence[Document], *, unique: bool, singular: bool) -> set[int]:
    """Store new jobs; return the positions of those that were not, because a unique or singular one already exists."""
    blocked = set[Any]()
    if unique or singular:
        alike: Document = {"key": {"$in": [job["key"] for job in new]}, **({} if unique else LIVE)}
        index, limit = "same_jobs" if unique else "same_live_jobs", 1 if len(new) == 1 else 0
        blocked = {job["key"] for job in jobs().find(alike, {"_id": 0, "key": 1}, hint=index, limit=limit)}
    positions = [number for number, job in enumerate(new) if job["key"] not in blocked]
    refused = {*range(len(new))} - {*positions}
    wanted = [{**new[number], **_unique_keys(new[number], unique, singular)} for number in positions]
    if wanted:
        try:
            jobs().insert_many(wanted, ordered=False)
        except BulkWriteError as error:
            refused |= {positions[number] for number in duplicates(error)}
    return refused


def _unique_keys(job: Document, unique: bool, singular: bool) -> Document:
    # A unique job has both keys, because it and a singular one that is stored at the same time exclude each other.
    keys = {"unique_key": job["key"], "singular_key": job["key"]} if unique else {}
    return keys | ({"singular_key": job["key"], "singular": True} if singular else {})


# Due jobs


def due_names(until: datetime) -> dict[str, datetime]:
    """Return the names with a job that is due by `until`, each with its earliest time."""
    return _first_of_each_name(_until(until))


def later_names(after: datetime) -> dict[str, datetime]:
    """Return the names with a job that is due later, each with the earliest time after `after`."""
    return _first_of_each_name({"$gt": after})


def _first_of_each_name(waiting: Document) -> dict[str, datetime]:
    """The cost grows with the number of names, not of jobs: this pipeline lets the server skip from name to name."""
    first_of_each: list[Document] = [
        {"$match": {"name": {"$gt": ""}, "waiting": waiting}},
        {"$sort": {"name": ASCENDING, "waiting": ASCENDING}},
        {"$group": {"_id": "$name", "waiting": {"$first": "$waiting"}}},
    ]
    rows = jobs().aggregate(first_of_each, hint="due_names")
    return {row["_id"]: _first_date(row["waiting"]) for row in rows if isinstance(row["_id"], str)}


def _first_date(waiting: Any) -> datetime:
    """Return a start time; of a list, whose elements a query compares one by one, the earliest."""
    times = waiting if isinstance(waiting, list) else [waiting]
    return min(one for one in times if isinstance(one, datetime))


def names() -> list[str]:
    """Return the names that have jobs, sorted. The cost grows with the number of names, not of jobs."""
    of_each: list[Document] = [
        {"$match": {"name": {"$gt": ""}, "state": {"$in": [*JobState]}, **COUNTED_ATTEMPTS}},
        {"$sort": {"name": ASCENDING, "state": ASCENDING, "attempts": DESCENDING}},
        {"$group": {"_id": "$name"}},
    ]
    rows = jobs().aggregate(of_each, hint="jobs_of_a_name_by_attempts")
    return sorted(row["_id"] for row in rows if isinstance(row["_id"], str))


def next_due(name: str) -> datetime | None:
    """Return the earliest start of the jobs of `name`; `None` if there is none."""
    query = _startable(name, STARTABLE["waiting"])
    found = jobs().find_one(query, {"_id": 0, "waiting": 1}, hint="due_names")  # no sort, like `next_jobs`
    return None if found is None else found["waiting"]


def next_jobs(name: str, *, now: datetime, limit: int, excluded: Sequence[JobId] = ()) -> list[Document]:
    """Return the due jobs of `name` in execution order, without those whose ids are `excluded`.

    If they are large, only those that fit into one reply of 16 MB.
    """
    query = _startable(name, _until(now))
    if excluded:
        query["_id"] = {"$nin": [*excluded]}
    # In the order of the index, without a sort; jobs with equal keys are in the order in which they were stored. With a
    # sort, if a job ever had a list of times, the server would sort all due jobs at each read, and shuffle equal ones.
    found, _ = first_reply(jobs(), query, limit=limit, hint="next_of_a_name")
    return found


def count_due(name: str, now: datetime, *, limit: int) -> int:
    """Count the due jobs of a name, up to `limit`."""
    return jobs().count_documents(_startable(name, _until(now)), hint="due_names", limit=limit)


def make_failed_due(now: datetime) -> int:
    """Make every failed job due now, ahead of the other jobs of its name; return their number."""
    failed = {"state": JobState.FAILURE, **IS_JOB}
    due_now = {"$set": {"waiting": now, "due": now, "first": 1}}
    return update_all(jobs(), failed, due_now, hint="failed_jobs")


def _until(now: datetime) -> Document:
    """Return the condition of a start time that has come."""
    return {"$gte": EPOCH, "$lte": now}


def _startable(name: str, waiting: Document) -> Document:
    """Return the condition of the jobs of a name that can be started at a time that meets `waiting`."""
    return {"name": _only(name), "waiting": {**waiting, "$not": {"$type": "array"}}, **VALID_ATTEMPTS}


def _only(name: str) -> Document:
    """Return the condition that the name is this text, and not a list that contains it."""
    return {"$eq": name, "$not": {"$type": "array"}}


# Malformed jobs, and the history


def fail_malformed(name: str, now: datetime) -> int:
    """Fail the due jobs of `name` that are malformed and cannot be started; return their number.

    Documents that are not jobs are only not due any more.
    """
    waiting = _until(now)
    malformed: Document = {"name": _only(name), "waiting": waiting, "$nor": [_startable(name, waiting)]}
    failed = {"state": JobState.FAILURE, "last_error": MALFORMED_ERROR, "updated": now}
    writes = [
        UpdateMany({**malformed, **COUNTED_ATTEMPTS}, {"$set": failed, **_NOT_DUE}, hint="due_names"),
        UpdateMany(malformed, _NOT_DUE, hint="due_names"),
    ]
    return jobs().bulk_write(writes).modified_count


def adding_to_history(id: JobId, write: Callable[[], T]) -> T:
    """Call `write`, which adds to a job; repeat it without the history if that is malformed or exceeds 16 MB.

    Another program may have stored so large a job.
    """
    try:
        return write()
    except OperationFailure as error:
        if error.code not in _HISTORY_REFUSED:
            raise
        jobs().update_one({"_id": id}, {"$unset": {"history": ""}}, hint="_id_")
        return write()


def push_to_history(entry: Document) -> Document:
    """Return the `$push` of a history entry; the history keeps the last `MAX_HISTORY` entries."""
    return {"history": {"$each": [entry], "$slice": -MAX_HISTORY}}


# Reading


def get_any(id: str) -> Document | None:
    """Return the job with the id that a text names, or else the document of another program."""
    candidates = id_candidates(id)
    found = list(jobs().find({"_id": {"$in": candidates}}, hint="_id_"))
    in_order = [document for one in candidates for document in found if document["_id"] == one]
    return next(filter(is_job, in_order), next(iter(in_order), None))


def some(
    query: Document, projection: Document, *, hint: str | None, limit: int, session: ClientSession
) -> tuple[list[Document], bool]:
    """Return up to `limit` documents for one transaction that changes them, and True if there may be more.

    So few that MongoDB's cache can hold them: the last is the one with which they have `MAX_TRANSACTION_BYTES`.
    """
    found: list[Document] = []
    size = 0
    sized = {**projection, "bytes": {"$bsonSize": "$$ROOT"}}
    with jobs().find(query, sized, hint=hint, limit=limit, session=session) as cursor:
        for one in cursor:
            size += one.pop("bytes")
            found.append(one)
            if size >= MAX_TRANSACTION_BYTES:
                break
    return found, len(found) == limit or size >= MAX_TRANSACTION_BYTES


def find(key: str, *, limit: int) -> list[Document]:
    """Return up to `limit` jobs with this key, newest first."""
    return list(jobs().find({"key": key}, sort=[("_id", DESCENDING)], hint="same_jobs", limit=limit))


def count_failing(limit: int) -> dict[str, int]:
    """Count the failed jobs by name, at most `limit` in total."""
    pipeline: list[Document] = [
        {"$match": {"name": {"$gt": ""}, "state": JobState.FAILURE, **COUNTED_ATTEMPTS}},
        {"$limit": limit},
        {"$group": {"_id": "$name", "jobs": {"$sum": 1}}},
        {"$sort": {"jobs": -1, "_id": 1}},
    ]
    rows = jobs().aggregate(pipeline, hint="jobs_of_a_name_by_attempts")
    return {row["_id"]: row["jobs"] for row in rows if isinstance(row["_id"], str)}


def count_by_state(limit: int) -> dict[str, int]:
    """Count the jobs by state, each up to `limit`."""
    return {
        state.value: jobs().count_documents(
            {"state": state, **COUNTED_ATTEMPTS}, hint="jobs_in_a_state_by_attempts", limit=limit
        )
        for state in JobState
    }
