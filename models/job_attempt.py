"""One attempt of one job: it starts, is renewed, and ends, or is lost with its worker.

Guarantee: every step is one conditional write that names the token and the attempt, so that a worker whose lease was
lost changes nothing, and a step that is repeated does no harm.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from bson import ObjectId
from pymongo import UpdateOne
from pymongo.errors import BulkWriteError, DuplicateKeyError

from models.database import Document
from models.job import EPOCH, Busy, Executing, State, jobs, pushed
from queue_manager.core.clock import truncate


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How an attempt ended: the new state, and how long the job must rest before it may be started again, if it may."""

    state: State
    rest: timedelta | None = None
    error: str | None = None
    took_ms: int = 0


def start(job: Document, *, token: str, now: datetime, until: datetime, worker: str | None = None) -> bool:
    """Claim one job for execution; tell whether it was still waiting. Raises `Busy`."""
    try:
        return jobs().update_one(*_start(job, token, now, until, worker), hint="_id_").modified_count == 1
    except DuplicateKeyError:
        raise Busy from None


def finish(job: Document, outcome: Outcome, *, token: str, now: datetime) -> bool:
    """Write how the attempt ended; tell whether it is written. Harmless when repeated.

    It is not when `token` does not hold the job any more: then nothing is written.
    """
    written = jobs().update_one(*_finish(job, outcome, token, now), hint="_id_").modified_count == 1
    return written or _has_ended(job, token)


def finish_and_start(
    job: Document,
    outcome: Outcome,
    following: Document,
    *,
    token: str,
    now: datetime,
    until: datetime,
    worker: str | None = None,
) -> tuple[bool, bool]:
    """Do both in one round trip, in this order; tell of each whether it was done."""
    writes = [
        UpdateOne(*_finish(job, outcome, token, now), hint="_id_"),
        UpdateOne(*_start(following, token, now, until, worker), hint="_id_"),
    ]
    try:
        if jobs().bulk_write(writes).modified_count == len(writes):
            return True, True
    except BulkWriteError:
        pass  # another executes, because our lease was lost: what was written is looked up
    return _has_ended(job, token), is_held(following, token)


def is_held(job: Document, token: str) -> bool:
    """Tell whether `token` holds the job."""
    return jobs().find_one(_held(job, token), {"_id": 1}) is not None


def _has_ended(job: Document, token: str) -> bool:
    entry = {"$elemMatch": {"run": token, "attempt": job["attempts"] + 1}}
    return jobs().find_one({"_id": job["_id"], "history": entry}, {"_id": 1}) is not None


def _start(job: Document, token: str, now: datetime, until: datetime, worker: str | None) -> tuple[Document, Document]:
    still_waiting = {"_id": job["_id"], "waiting": {"$gte": EPOCH, "$lte": now}, "attempts": job["attempts"]}
    claim = {"token": token, "claimed_until": until} | ({} if worker is None else {"worker": worker})
    change = {
        "$set": {"state": State.EXECUTING, "claim": claim, "updated": now},
        "$unset": {"waiting": "", "first": "", "progress": ""},
        "$inc": {"attempts": 1},
    }
    return still_waiting, change


def _finish(job: Document, outcome: Outcome, token: str, now: datetime) -> tuple[Document, Document]:
    entry: Document = {"at": now, "state": outcome.state, "attempt": job["attempts"] + 1, "run": token}
    entry["took_ms"] = outcome.took_ms
    changed: Document = {"state": outcome.state, "updated": now}
    removed: Document = {"claim": "", "losses": ""}
    if outcome.error is not None:
        entry["error"] = changed["last_error"] = outcome.error
    if outcome.rest is not None:
        waiting = truncate(now + outcome.rest)
        changed |= {"waiting": waiting, "due": waiting}
    if outcome.state is State.SUCCESS:
        removed["singular_key"] = ""
    return _held(job, token), {"$set": changed, "$unset": removed, "$push": pushed(entry)}


def _held(job: Document, token: str) -> Document:
    """Return the condition that this very attempt is still ours: a run has one token for all that it starts."""
    return {"_id": job["_id"], "claim.token": token, "attempts": job["attempts"] + 1}


def renew(job_id: ObjectId, *, token: str, until: datetime) -> bool:
    """Prolong the lease of an executing job; tell whether `token` still holds it."""
    held = {"_id": job_id, "claim.token": token}
    return jobs().update_one(held, {"$max": {"claim.claimed_until": until}}, hint="_id_").matched_count == 1


def expire(*, token: str, now: datetime) -> None:
    """End the lease of the job that `token` executes, whose process died: the next dispatch makes it due again."""
    held = {"state": State.EXECUTING, "claim.token": token}
    jobs().update_one(held, {"$set": {"claim.claimed_until": now}}, hint="executing_by_lease")


def note_progress(job_id: ObjectId, progress: Document, *, token: str) -> None:
    """Show how far an executing job is. Does nothing when `token` does not hold it any more."""
    jobs().update_one({"_id": job_id, "claim.token": token}, {"$set": {"progress": progress}}, hint="_id_")


def reap(lost: Executing, *, waiting: datetime, now: datetime, error: str) -> bool:
    """Make a job due again whose lease ran out; tell whether it still had run out. The attempt stays counted."""
    entry = {"at": now, "state": State.FAILURE, "error": error}
    change = {
        "$set": {"state": State.FAILURE, "updated": now, "waiting": waiting, "due": waiting, "last_error": error},
        "$unset": {"claim": ""},
        "$inc": {"losses": 1},
        "$push": pushed(entry),
    }
    is_lost = {"_id": lost.id, "state": State.EXECUTING, "claim.claimed_until": {"$lte": now}}
    return jobs().update_one(is_lost, change, hint="_id_").modified_count == 1


def losses(job_id: ObjectId) -> int:
    """Return how many workers in a row were lost with this job."""
    return int((jobs().find_one({"_id": job_id}, {"losses": 1}) or {}).get("losses", 0))
