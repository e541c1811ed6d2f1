"""Operations of users on jobs: cancel, make due, delete; and the retention of finished jobs.

Guarantee: an operation is one conditional write in a transaction, which also updates the counts of finished jobs
(`job_counts`). Outside of a transaction, a write would wait for the locks of others without a limit. An operation does
not change a job that a run executes or has reserved, nor one whose `CHANGEABLE_FIELDS` differ from those of the
document that was read before: so the caller knows what was changed. The outcome of a run whose reservation has ended is
refused if an operation has changed the job since.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

from pymongo import ReturnDocument
from pymongo.client_session import ClientSession
from pymongo.errors import BulkWriteError, DuplicateKeyError

from models import job_counts
from models.database import Document, duplicates
from models.job import (
    COUNTED_ATTEMPTS,
    DECLARED_PREFIX,
    FINISHED_STATES,
    INACTIVE_STATES,
    IS_JOB,
    DuplicateJob,
    JobState,
    adding_to_history,
    jobs,
    push_to_history,
    some,
)
from models.job_attempt import not_reserved
from models.transaction import transact
from queue_manager.core.clock import truncate

CHANGEABLE_FIELDS = ("state", "due", "priority")
"""The fields that users change."""
KeepJobs = Callable[[Sequence[Document], ClientSession], object]
"""Stores jobs in the transaction that deletes them."""
# The next dispatch would store a declared job again, and run it: it is deleted only by its id.
_IS_UNDECLARED: Document = {"$not": {"$regex": f"^{DECLARED_PREFIX}"}}


def cancel(found: Document, *, now: datetime, grace: timedelta) -> Document | None:
    """Cancel a pending or failed job, or ask an executing one to stop, and let its process be killed after `grace`.

    Returns the updated job, or `None` if it was changed or is reserved.
    """
    if found["state"] == JobState.EXECUTING:
        asked = {"claim.canceled_at": now, "claim.ends_at": truncate(now + grace)}
        return _change(found, {"$min": asked}, now)
    change = {
        "$set": {"state": JobState.CANCELED, "updated": now, "uncounted": True},
        "$unset": {"waiting": "", "first": "", "singular_key": "", "reserved": ""},
        "$push": push_to_history({"at": now, "state": JobState.CANCELED}),
    }
    return adding_to_history(found["_id"], lambda: _change(found, change, now))


def set_priority(found: Document, *, priority: int, now: datetime) -> Document | None:
    """Change only the priority of a job that is not executing; return the job, or `None` as `cancel` does."""
    return _change(found, {"$set": {"priority": priority}, "$unset": {"reserved": ""}}, now)


def make_due(found: Document, *, due: datetime, priority: int | None, now: datetime) -> Document | None:
    """Set a job that is not executing to pending with this due time; return the job, or `None` as `cancel` does.

    Raises `DuplicateJob` if it is singular and another job with its key is live.
    """
    changed: Document = {"state": JobState.PENDING, "due": due, "waiting": due, "updated": now}
    if priority is not None:
        changed["priority"] = priority
    if found.get("singular") is True and "key" in found:
        changed["singular_key"] = found["key"]
    change = {
        "$set": changed,
        "$unset": {"first": "", "uncounted": "", "reserved": ""},
        "$push": push_to_history({"at": now, "state": JobState.PENDING}),
    }

    def revive(session: ClientSession) -> Document | None:
        before = jobs().find_one({**_unchanged(found), **COUNTED_ATTEMPTS}, hint="_id_", session=session)
        if before is None:
            return None
        job_counts.subtract([before], session)
        return _change(found, change, now, session)

    try:
        if found["state"] in FINISHED_STATES:
            return adding_to_history(found["_id"], lambda: transact(revive))
        return adding_to_history(found["_id"], lambda: _change(found, change, now))
    except DuplicateKeyError:
        raise DuplicateJob(
            f"The job {found['_id']} is singular, and another with its name and arguments is live"
        ) from None


def _change(found: Document, change: Any, now: datetime, session: ClientSession | None = None) -> Document | None:
    def write(session: ClientSession) -> Document | None:
        return jobs().find_one_and_update(
            {**_unchanged(found), **not_reserved(now), **COUNTED_ATTEMPTS},
            change,
            return_document=ReturnDocument.AFTER,
            hint="_id_",
            session=session,
        )

    return transact(write) if session is None else write(session)


def _unchanged(found: Document) -> Document:
    return {"_id": found["_id"], **{name: {"$eq": found.get(name)} for name in CHANGEABLE_FIELDS}}


def remove(found: Document, *, now: datetime, keep: KeepJobs | None = None) -> Document | None:
    """Delete a job unless it is executing or reserved; return it, or `None`."""
    query = {"_id": found["_id"], "state": {"$in": [*INACTIVE_STATES]}, **not_reserved(now), **COUNTED_ATTEMPTS}

    def delete(session: ClientSession) -> Document | None:
        gone = jobs().find_one_and_delete(query, hint="_id_", session=session)
        _deleted([] if gone is None else [gone], keep, session)
        return gone

    return transact(delete)


def clear(
    states: Sequence[JobState], name: str | None, *, now: datetime, limit: int, keep: KeepJobs | None = None
) -> tuple[int, bool]:
    """Delete up to `limit` jobs in `states`, of one name or of all names, except reserved ones, in one transaction.

    Declared jobs are kept. It deletes fewer if they are large. Returns their number, and True if there may be more.
    Raises `Contended`.
    """
    undeclared = {**IS_JOB, "_id": {**IS_JOB["_id"], **_IS_UNDECLARED}}
    return _delete_batch({**not_reserved(now), **_of(states, name), **undeclared}, limit=limit, keep=keep)


def count_up_to(limit: int, states: Sequence[JobState], name: str | None) -> int:
    """Return the number of jobs that `clear` would delete, up to `limit`, which bounds the cost."""
    index = "jobs_in_a_state_by_attempts" if name is None else "jobs_of_a_name_by_attempts"
    wanted = {**_of(states, name), **COUNTED_ATTEMPTS, "_id": _IS_UNDECLARED}
    return jobs().count_documents(wanted, limit=limit, hint=index)


def _of(states: Sequence[JobState], name: str | None) -> Document:
    return {"state": {"$in": [*states]}, **({} if name is None else {"name": name})}


def restore(gone: Sequence[Document]) -> tuple[int, list[Document]]:
    """Store deleted jobs again, and count those that are finished.

    Returns:
        The number of those that did not exist, and those that another unique or singular job keeps out.
    """
    restored = [{**one, "uncounted": True} if one["state"] in FINISHED_STATES else one for one in gone]
    try:
        jobs().insert_many(restored, ordered=False)
    except BulkWriteError as error:
        refused = duplicates(error)
        blocked = [gone[position] for position, fields in refused.items() if fields != ["_id"]]
        return len(restored) - len(refused), blocked
    return len(restored), []


def _delete_batch(
    query: Document, *, limit: int, hint: str | None = None, keep: KeepJobs | None = None
) -> tuple[int, bool]:
    """Delete jobs; return their number, and True if there may be more."""

    def delete(session: ClientSession) -> tuple[int, bool]:
        projection = {"name": 1, "state": 1, "uncounted": 1}
        found, has_more = some(query, projection, hint=hint, limit=limit, session=session)
        if not found:
            return 0, False
        ids = {"_id": {"$in": [one["_id"] for one in found]}}
        _deleted(list(jobs().find(ids, hint="_id_", session=session)) if keep else found, keep, session)
        return jobs().delete_many(ids, hint="_id_", session=session).deleted_count, has_more

    return transact(delete)


def _deleted(gone: Sequence[Document], keep: KeepJobs | None, session: ClientSession) -> None:
    """Count and keep jobs in the transaction that deletes them."""
    job_counts.subtract([one for one in gone if one["state"] in FINISHED_STATES], session)
    if keep is not None and gone:
        keep(gone, session)


def remove_finished(before: datetime, *, limit: int) -> int:
    """Delete up to `limit` jobs that succeeded or were canceled before a time; return their number.

    A declared job that was canceled is kept.
    """
    finished = {"state": {"$in": [*FINISHED_STATES]}, "updated": {"$lt": before}, **COUNTED_ATTEMPTS}
    deleted, _ = _delete_batch({**finished, "_id": _IS_UNDECLARED}, limit=limit, hint="jobs_in_a_state_by_updated")
    return deleted
