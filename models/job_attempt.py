"""Attempts of jobs: start, renewal, finish, and recovery after the loss of the worker.

Guarantee: every step is idempotent, and is one conditional write on the token and the attempt, so that a worker that
lost its lease changes nothing.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from datetime import datetime, timedelta

from pymongo import UpdateOne
from pymongo.errors import BulkWriteError, DuplicateKeyError

from models.database import Document
from models.job import ExecutingJob, JobId, JobState, NameBusy, jobs, push_to_history
from queue_manager.core.clock import EPOCH, truncate


@dataclass(frozen=True, kw_only=True)
class JobOutcome:
    """Outcome of an attempt: the new state, and the backoff before a retry; without backoff it is not retried."""

    state: JobState
    backoff: timedelta | None = None
    error: str | None = None
    took_ms: int = 0
    next_due: datetime | None = None
    """Of a repeating job that succeeded: it is pending again, until then."""


def start(job: Document, *, token: str, now: datetime, until: datetime) -> bool:
    """Claim a job for execution; return False if it was not waiting any more. Raises `NameBusy`."""
    try:
        return jobs().update_one(*_start(job, token, now, until), hint="_id_").modified_count == 1
    except DuplicateKeyError:
        raise NameBusy from None


def finish(job: Document, outcome: JobOutcome, *, token: str, now: datetime) -> bool:
    """Write the outcome of an attempt; return True if it is stored. Idempotent.

    Returns False and writes nothing if `token` has lost the claim.
    """
    written = jobs().update_one(*_finish(job, outcome, token, now), hint="_id_").modified_count == 1
    return written or _has_ended(job, token)


def finish_and_start(
    job: Document,
    outcome: JobOutcome,
    next_job: Document,
    *,
    token: str,
    now: datetime,
    until: datetime,
) -> tuple[bool, bool]:
    """Finish a job and start the next in one round trip; return whether each of them succeeded."""
    writes = [
        UpdateOne(*_finish(job, outcome, token, now), hint="_id_"),
        UpdateOne(*_start(next_job, token, now, until), hint="_id_"),
    ]
    try:
        if jobs().bulk_write(writes).modified_count == len(writes):
            return True, True
    except BulkWriteError:
        pass  # the lease was lost and another job executes: read what was written
    return _has_ended(job, token), has_claim(next_job, token)


def has_claim(job: Document, token: str) -> bool:
    """Return True if `token` has the claim of the job."""
    return jobs().find_one(_claim_condition(job, token), {"_id": 1}) is not None


def _has_ended(job: Document, token: str) -> bool:
    entry = {"$elemMatch": {"run": token, "attempt": job["attempts"] + 1}}
    return jobs().find_one({"_id": job["_id"], "history": entry}, {"_id": 1}) is not None


def _start(job: Document, token: str, now: datetime, until: datetime) -> tuple[Document, Document]:
    still_waiting = {"_id": job["_id"], "waiting": {"$gte": EPOCH, "$lte": now}, "attempts": job["attempts"]}
    claim = {"token": token, "claimed_until": until, "worker": _worker()}
    change = {
        "$set": {"state": JobState.EXECUTING, "claim": claim, "updated": now},
        "$unset": {"waiting": "", "first": "", "progress": ""},
        "$inc": {"attempts": 1},
    }
    return still_waiting, change


def _finish(job: Document, outcome: JobOutcome, token: str, now: datetime) -> tuple[Document, Document]:
    entry: Document = {"at": now, "state": outcome.state, "attempt": job["attempts"] + 1, "run": token}
    entry |= {"worker": _worker(), "took_ms": outcome.took_ms}
    changed: Document = {"state": outcome.state, "updated": now}
    removed: Document = {"claim": "", "losses": ""}
    if outcome.error is not None:
        entry["error"] = changed["last_error"] = outcome.error
    if outcome.backoff is not None:
        waiting = truncate(now + outcome.backoff)
        changed |= {"waiting": waiting, "due": waiting}
    if outcome.next_due is not None:
        changed |= {"state": JobState.PENDING, "waiting": outcome.next_due, "due": outcome.next_due}
        changed["settled"] = job["attempts"] + 1
    elif outcome.state is JobState.SUCCESS:
        removed["singular_key"] = ""
    return _claim_condition(job, token), {"$set": changed, "$unset": removed, "$push": push_to_history(entry)}


def _worker() -> str:
    """Return host and process, as `host:pid`."""
    return f"{socket.gethostname()}:{os.getpid()}"


def _claim_condition(job: Document, token: str) -> Document:
    """Return the condition that `token` has the claim of this attempt; a run uses one token for all its jobs."""
    return {"_id": job["_id"], "claim.token": token, "attempts": job["attempts"] + 1}


def renew(job_id: JobId, *, token: str, until: datetime) -> bool:
    """Extend the lease of an executing job; return False if `token` has lost the claim."""
    held = {"_id": job_id, "claim.token": token}
    return jobs().update_one(held, {"$max": {"claim.claimed_until": until}}, hint="_id_").matched_count == 1


def expire(*, token: str, now: datetime) -> None:
    """End the lease of the job that `token` executes, because its process died; the next dispatch requeues it."""
    held = {"state": JobState.EXECUTING, "claim.token": token}
    jobs().update_one(held, {"$set": {"claim.claimed_until": now}}, hint="executing_by_lease")


def set_progress(job_id: JobId, progress: Document, *, token: str) -> None:
    """Store the progress of an executing job. Does nothing if `token` has lost the claim."""
    jobs().update_one({"_id": job_id, "claim.token": token}, {"$set": {"progress": progress}}, hint="_id_")


def reap(lost: ExecutingJob, *, waiting: datetime, now: datetime, error: str) -> bool:
    """Requeue a job whose lease has expired; return False if it was renewed meanwhile. The attempt counts."""
    worker = {} if lost.worker is None else {"worker": lost.worker}
    entry = {"at": now, "state": JobState.FAILURE, "error": error, **worker}
    change = {
        "$set": {"state": JobState.FAILURE, "updated": now, "waiting": waiting, "due": waiting, "last_error": error},
        "$unset": {"claim": ""},
        "$inc": {"losses": 1},
        "$push": push_to_history(entry),
    }
    is_lost = {"_id": lost.id, "state": JobState.EXECUTING, "claim.claimed_until": {"$lte": now}}
    return jobs().update_one(is_lost, change, hint="_id_").modified_count == 1
