"""Counts of finished jobs by name: collection `qm_job_counts`, so that counting does not read every job that is kept.

    {_id: name, success, canceled}      finished jobs of a name, except those marked `uncounted`
    {_id: "*", recounted_at, version}   when all were counted; without it there are no counts yet
    {_id: "*attempt", at}               of a recount, while it runs and after it failed

A job is marked in the write that finishes it. `add_finished` adds marked jobs to the counts and removes the marks.

Guarantee: both change in one transaction, as they do when finished jobs are deleted or run again. So after a crash, and
while processes run concurrently, the counts and the marked jobs together are right. Finished jobs that another program
stored or deleted are included by the next `recount`. One that fails changes no count; among so many jobs that it always
takes too long, such changes are never included. A count that another program made malformed is 0 until the next one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Any

from bson import ObjectId
from pymongo import UpdateOne
from pymongo.client_session import ClientSession
from pymongo.collection import Collection
from pymongo.errors import DuplicateKeyError

from models import database
from models.database import Document, collection
from models.job import COUNTED_ATTEMPTS, FINISHED_STATES, LIVE_STATES, MAX_EXACT_COUNT, UNCOUNTED, JobState, jobs, some
from models.listing import count_by
from models.transaction import transact
from queue_manager.core.clock import hours, minutes, seconds

COUNTS_COLLECTION = "qm_job_counts"
RECOUNT_ID, ATTEMPT_ID = "*", "*attempt"
RECORD_IDS = (RECOUNT_ID, ATTEMPT_ID)  # jobs of such names, which only other programs can store, are not counted here
RECOUNT_INTERVAL = hours(1)  # for jobs that other programs, or release 0.1, finished or deleted
MAX_RECOUNT_TIME = seconds(60)  # for which a recount occupies a process; a server counts about a million jobs a second
RECOUNT_PAUSE = minutes(15)  # after an attempt that failed

CountsByName = dict[str, dict[str, int]]
ReadCounts = Callable[[], CountsByName]
Numbers = Counter[tuple[str, ...]]
"""Numbers of jobs by name and state."""


def job_counts() -> Collection[Document]:
    return collection(COUNTS_COLLECTION)


def by_name() -> CountsByName:
    """Count the jobs by name and state, at one moment. The cost does not depend on the finished jobs that are kept."""
    with database.client().start_session(snapshot=True) as session:
        is_kept = job_counts().find_one(RECOUNT_ID, session=session) is not None
        numbers = _count([*LIVE_STATES] if is_kept else [*JobState], session)
        if is_kept:
            numbers.update(_kept(session))
            numbers.update(_count_uncounted(session))
    found: CountsByName = {}
    for (name, state), number in numbers.items():
        if number:
            found.setdefault(name, {})[state] = number
    return found


def total(states: Iterable[JobState], name: str | None = None, *, read: ReadCounts = by_name) -> int:
    """Return the number of jobs in these states, of a name or of all. `read` is not called if the index has the answer.

    The index has it for the unfinished jobs of one name; the cost grows with their number.
    """
    wanted = [*states]
    if name is not None and {*wanted} <= {*LIVE_STATES}:
        of_name = {"name": name, "state": {"$in": wanted}, **COUNTED_ATTEMPTS}
        return jobs().count_documents(of_name, hint="jobs_of_a_name_by_attempts")
    counts = read()
    of_names = counts.values() if name is None else [counts.get(name, {})]
    return sum(of_states.get(one, 0) for of_states in of_names for one in wanted)


def add_finished(*, limit: int) -> int:
    """Add up to `limit` marked jobs to the counts; return their number. Raises `Contended`."""

    def add(session: ClientSession) -> int:
        projection = {"name": 1, "state": 1}
        found, _ = some(UNCOUNTED, projection, hint="uncounted_jobs", limit=limit, session=session)
        finished = [one for one in found if one.get("state") in FINISHED_STATES and isinstance(one.get("name"), str)]
        _increase(Counter((one["name"], one["state"]) for one in finished), 1, session)
        if found:
            ids = {"_id": {"$in": [one["_id"] for one in found]}}
            jobs().update_many(ids, {"$unset": {"uncounted": ""}}, hint="_id_", session=session)
        return len(found)

    return transact(add)


def subtract(gone: Iterable[Document], session: ClientSession) -> None:
    """Subtract finished jobs, as they were before, from the counts, in the transaction that changes or deletes them."""
    _increase(Counter((one["name"], one["state"]) for one in gone if _is_counted(one)), -1, session)


def _is_counted(one: Document) -> bool:
    return "uncounted" not in one and isinstance(one.get("name"), str)


def begin_recount(now: datetime) -> bool:
    """Record an attempt to recount; return False if none is due yet, or if another process was faster."""
    last, attempt = (job_counts().find_one(id) or {} for id in RECORD_IDS)
    if _is_recent(last.get("recounted_at"), RECOUNT_INTERVAL, now) or _is_recent(attempt.get("at"), RECOUNT_PAUSE, now):
        return False
    unchanged = {"_id": ATTEMPT_ID, "at": {"$eq": attempt.get("at")}}
    try:
        job_counts().update_one(unchanged, {"$set": {"at": now}}, upsert=True)
    except DuplicateKeyError:
        return False
    return True


def _is_recent(moment: Any, span: timedelta, now: datetime) -> bool:
    return isinstance(moment, datetime) and timedelta(0) <= now - moment < span


def recount(now: datetime) -> bool:
    """Correct the counts by reading an index of all jobs; return False if another recount was faster.

    One snapshot, without a transaction, shows how many jobs the counts lack; that difference is then added. It stays
    correct while jobs finish or are deleted, because this module updates the counts together with the jobs. Only a
    recount does not; the time, which release 0.2.0 also writes, and the version show that another one was faster.

    Raises:
        Contended: the counts are locked by the transaction of a living process.
        PyMongoError: of the driver, also when `MAX_RECOUNT_TIME` is over.
    """
    with database.within(MAX_RECOUNT_TIME), database.client().start_session(snapshot=True) as session:
        last = job_counts().find_one(RECOUNT_ID, session=session) or {}
        lacking = _count(FINISHED_STATES, session)
        lacking.subtract(_count_uncounted(session))
        lacking.subtract(_kept(session))

    def correct(session: ClientSession) -> bool:
        unchanged = {"_id": RECOUNT_ID, **{name: {"$eq": last.get(name)} for name in ("recounted_at", "version")}}
        new = {"recounted_at": now, "version": ObjectId()}
        job_counts().update_one(unchanged, {"$set": new}, upsert=True, session=session)
        _increase(lacking, 1, session)
        nothing: Document = {state: {"$in": [0, None]} for state in FINISHED_STATES}
        job_counts().delete_many({"_id": {"$ne": RECOUNT_ID}, **nothing}, session=session)
        return True

    try:
        return transact(correct)
    except DuplicateKeyError:
        return False


def _kept(session: ClientSession) -> Numbers:
    """Return the counts that are stored in this collection."""
    kept = job_counts().find({}, {state: _stored(state) for state in FINISHED_STATES}, session=session)
    return Counter(
        {
            (one["_id"], state): int(one[state])
            for one in kept
            for state in FINISHED_STATES
            if isinstance(one["_id"], str)
        }
    )


def _count(states: Iterable[JobState], session: ClientSession) -> Numbers:
    """Count by an index of names and states, which is skipped from range to range."""
    of_states = {"name": {"$gt": ""}, "state": {"$in": [*states]}, **COUNTED_ATTEMPTS}
    return count_by(jobs(), of_states, ["name", "state"], hint="jobs_of_a_name_by_attempts", session=session)


def _count_uncounted(session: ClientSession) -> Numbers:
    finished = {**UNCOUNTED, "state": {"$in": [*FINISHED_STATES]}}
    return count_by(jobs(), finished, ["name", "state"], hint="uncounted_jobs", session=session)


def _increase(numbers: Numbers, sign: int, session: ClientSession) -> None:
    writes = [
        UpdateOne({"_id": name}, [{"$set": {state: {"$add": [_stored(state), sign * number]}}}], upsert=True)
        for (name, state), number in numbers.items()
        if number and name not in RECORD_IDS
    ]
    if writes:
        job_counts().bulk_write(writes, session=session)


def _stored(state: str) -> Document:
    """Return the expression of a stored count, or 0 if it is malformed: an error would abort the change of the jobs."""
    count = f"${state}"
    is_number = {"$in": [{"$type": count}, ["int", "long", "double"]]}
    return {"$cond": [{"$and": [is_number, {"$gte": [count, 0]}, {"$lte": [count, MAX_EXACT_COUNT]}]}, count, 0]}
