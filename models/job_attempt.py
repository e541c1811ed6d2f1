"""Attempts of jobs: start, renewal, finish, and recovery after the loss of the worker.

A run that executes short jobs starts a batch of them with one write: the first is claimed and `executing`, the others
are reserved for a second. Reserved jobs are still `pending` or `failure`, and only this run may start or change them.

Guarantee: every step is idempotent, and is one conditional write on the token, the process and the attempt, so that a
worker that lost its lease changes nothing. The process, because a task that is delivered twice may run in two of them
with one token. At most one run has jobs of a name claimed or reserved, because one job is `executing`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from pymongo import ReturnDocument, UpdateMany, UpdateOne
from pymongo.client_session import ClientSession
from pymongo.errors import BulkWriteError, DuplicateKeyError

from models import executing_job
from models.database import Document, is_outage
from models.executing_job import ExecutingJob
from models.job import (
    FINISHED_STATES,
    JobId,
    JobState,
    NameBusy,
    adding_to_history,
    as_count,
    jobs,
    push_to_history,
)
from models.transaction import transact
from queue_manager.core.clock import EPOCH, seconds, truncate
from queue_manager.core.process import process_name

RENEWALS_PER_LEASE = 3  # of a claim, so that two renewals may fail
RESERVATION = seconds(1)
"""Time for which jobs are reserved. A run starts them within a fraction of it, because clocks may differ."""


@dataclass(frozen=True, kw_only=True)
class JobOutcome:
    """Outcome of an attempt: the new state, and the backoff before a retry; without backoff it is not retried."""

    state: JobState
    backoff: timedelta | None = None
    error: str | None = None
    took_ms: int = 0
    next_due: datetime | None = None
    """The due time at which a repeating job that succeeded is pending again."""
    is_counted: bool = True
    """False if its worker ended the attempt or lacks the function. Without backoff, the job is due as before."""

    @property
    def may_run_again(self) -> bool:
        """True also after a final failure: a new leader makes failed jobs due."""
        return self.state not in FINISHED_STATES or self.next_due is not None


@dataclass(frozen=True, kw_only=True)
class TimeLimit:
    """How long an attempt may run, and how long it then has to stop before its process is killed."""

    timeout: timedelta
    grace: timedelta

    def ends_at(self, start: datetime) -> datetime:
        """Return when the process of an attempt that starts at `start` is killed."""
        return truncate(start + self.timeout + self.grace)


@dataclass(frozen=True, kw_only=True)
class EndedAttempt:
    """An attempt whose function has ended."""

    job: Document
    outcome: JobOutcome
    is_reserved: bool = False
    """True if the job was reserved, not claimed."""


class _NotHeld(Exception):
    """A claim or a reservation was lost."""


def start(job: Document, *, token: str, now: datetime, until: datetime, limit: TimeLimit | None = None) -> bool:
    """Claim a job for execution; return False if it was not waiting any more. Raises `NameBusy`."""
    try:
        claim = _start(job, token, now, until, limit=limit)
        return adding_to_history(job["_id"], lambda: jobs().update_one(*claim, hint="_id_")).modified_count == 1
    except DuplicateKeyError:
        raise NameBusy from None


def finish(job: Document, outcome: JobOutcome, *, token: str, now: datetime) -> bool:
    """Write the outcome of an attempt; return True if it is stored. Idempotent.

    Returns False and writes nothing if `token` has lost the claim or the reservation.
    """
    for is_reserved in (False, True):
        ended = EndedAttempt(job=job, outcome=outcome, is_reserved=is_reserved)
        end = partial(jobs().update_one, *_finish(ended, token, now), hint="_id_")
        if adding_to_history(job["_id"], end).modified_count == 1:
            return True
    (instead,) = _as_canceled([EndedAttempt(job=job, outcome=outcome)], token)
    if instead.outcome is not outcome:
        return finish(job, instead.outcome, token=token, now=now)
    return _has_ended(job, token)


def finish_and_start(
    ended: Sequence[EndedAttempt],
    batch: Sequence[Document],
    *,
    token: str,
    now: datetime,
    until: datetime,
    limit: TimeLimit | None = None,
) -> tuple[list[bool], list[Document]]:
    """Write outcomes, start the first job of a batch, and reserve the others, in one round trip.

    Returns:
        Whether each outcome is stored, and the jobs that were started or reserved.
    """
    writes: list[UpdateOne | UpdateMany] = _finish_all(ended, token, now)
    if batch:
        first, *others = batch
        writes.append(UpdateOne(*_start(first, token, now, until, batch=others, limit=limit), hint="_id_"))
        writes += [UpdateMany(*_reserve(some, token, now), hint="_id_") for some in _with_equal_attempts(others)]
    try:
        if jobs().bulk_write(writes).modified_count == len(ended) + len(batch):
            return [True] * len(ended), list(batch)
    except BulkWriteError as error:
        if is_outage(error):  # writes that no majority has confirmed may be rolled back
            raise
        # The lease was lost and another job executes: read which outcomes were written.
    stored = [finish(one.job, one.outcome, token=token, now=now) for one in ended]
    return stored, _started(batch, token, now) if batch else []


def may_share_batch(job: Document) -> bool:
    """Return True if a job may share a batch: it does not repeat, no worker was lost with it, and it has a history."""
    is_alone = "repetition" in job or job.get("losses") or job.get("alone")
    return not is_alone and isinstance(job.get("history"), list)


def hand_over(
    ended: Sequence[EndedAttempt],
    job: Document,
    *,
    token: str,
    now: datetime,
    until: datetime,
    batch: Sequence[Document] = (),
) -> bool:
    """Write outcomes and start a reserved job that runs already; return False, and write nothing, if it was lost.

    A transaction, because no other run may start a job of this name in between.
    """
    writes = _finish_all(ended, token, now)
    is_waiting, change = _start(job, token, now, until, batch=batch)
    writes.append(UpdateOne({**is_waiting, **_held_by("reserved", token)}, change, hint="_id_"))

    def write(session: ClientSession) -> None:
        if jobs().bulk_write(writes, session=session).modified_count != len(ended) + 1:
            raise _NotHeld

    try:
        transact(write)
    except (_NotHeld, BulkWriteError):
        instead = _as_canceled(ended, token)
        if instead != [*ended]:
            return hand_over(instead, job, token=token, now=now, until=until, batch=batch)
        return read_claim(job, token=token) is not None
    return True


def _as_canceled(ended: Sequence[EndedAttempt], token: str) -> list[EndedAttempt]:
    """Return the attempts. Those that may run again but were canceled after their function ended are canceled."""
    return [
        replace(one, outcome=JobOutcome(state=JobState.CANCELED, took_ms=one.outcome.took_ms))
        if one.outcome.may_run_again and (found := read_claim(one.job, token=token)) and "canceled_at" in found["claim"]
        else one
        for one in ended
    ]


def _has_ended(job: Document, token: str) -> bool:
    entry = {"$elemMatch": {"run": token, "worker": process_name(), "attempt": as_count(job["attempts"]) + 1}}
    return jobs().find_one({"_id": job["_id"], "history": entry}, {"_id": 1}) is not None


def _started(batch: Sequence[Document], token: str, now: datetime) -> list[Document]:
    """Return the jobs of a batch that were started or reserved; none if the first was not started."""
    first, *others = batch
    if read_claim(first, token=token) is None:
        return []
    reserved = {"_id": {"$in": [job["_id"] for job in others]}, "reserved": _reservation(token, now)}
    ids = {job["_id"] for job in jobs().find(reserved, {"_id": 1}, hint="_id_")}
    return [first, *(job for job in others if job["_id"] in ids)]


def renew(job_id: JobId, *, token: str, until: datetime) -> bool:
    """Extend the lease of an executing job; return False if `token` has lost the claim."""
    held = {"_id": job_id, **_held_by("claim", token)}
    return jobs().update_one(held, {"$max": {"claim.claimed_until": until}}, hint="_id_").matched_count == 1


def renew_start(job_id: JobId, *, token: str, now: datetime, until: datetime, limit: TimeLimit | None) -> bool:
    """Extend the lease of a job whose start took long, and let its time limit begin; return False like `renew`.

    The process of a job that was canceled since the start is killed at the time that `job_operations.cancel` has set.
    """
    if limit is not None:
        held = {"_id": job_id, **_held_by("claim", token), "claim.canceled_at": {"$exists": False}}
        jobs().update_one(held, {"$max": {"claim.ends_at": limit.ends_at(now)}}, hint="_id_")
    return renew(job_id, token=token, until=until)


def renew_claims(running: Mapping[str, int], *, until: datetime) -> None:
    """Extend the leases of jobs that processes of this machine execute: process ids by token."""
    held = {"state": JobState.EXECUTING, **_claimed_by(running)}
    jobs().update_many(held, {"$max": {"claim.claimed_until": until}}, hint="executing_by_lease")


def over_limit(running: Mapping[str, int], now: datetime) -> list[ExecutingJob]:
    """Return the jobs of these processes that are past their time limit and its grace time."""
    return executing_job.find({**_claimed_by(running), "claim.ends_at": {"$lte": now}})


def _claimed_by(running: Mapping[str, int]) -> Document:
    """Return the condition of a claim that these processes hold. A task that is delivered twice has one token."""
    workers = [process_name(pid) for pid in running.values()]
    return {"claim.token": {"$in": [*running]}, "claim.worker": {"$in": workers}}


def read_claim(job: Document, *, token: str) -> Document | None:
    """Return `{claim, fence}` of an attempt; `None` if `token` has lost the claim."""
    return jobs().find_one(_claim_condition(job, token), {"_id": 0, "claim": 1, "fence": 1}, hint="_id_")


def set_progress(job: Document, progress: Document, *, token: str) -> Document | None:
    """Store the progress of an attempt; return the same as `read_claim`."""
    return jobs().find_one_and_update(
        _claim_condition(job, token),
        {"$set": {"progress": progress}},
        {"_id": 0, "claim": 1, "fence": 1},
        return_document=ReturnDocument.AFTER,
        hint="_id_",
    )


def reap(lost: ExecutingJob, outcome: JobOutcome, *, now: datetime, is_loss: bool = True) -> bool:
    """Record the outcome of an attempt whose process died; return False if it was renewed or canceled meanwhile.

    The process may have been lost by a job of the same batch: each of them runs alone the next time.
    """
    change = _end(outcome, {} if lost.worker is None else {"worker": lost.worker}, now)
    if is_loss:
        change["$set"]["losses"] = lost.losses + 1
    not_renewed = {"claim.claimed_until": {"$lte": max(now, lost.claimed_until)}}
    as_read = {"claim.canceled_at": {"$exists": lost.is_canceled}}  # a job that was canceled since then ends canceled
    is_lost: Document = {"_id": lost.id, "state": JobState.EXECUTING, **not_renewed, **as_read}
    recorded = adding_to_history(lost.id, lambda: jobs().update_one(is_lost, change, hint="_id_"))
    if recorded.modified_count == 0:
        return False
    if lost.batch:
        suspects = {"_id": {"$in": lost.batch}, "reserved.token": lost.token}
        jobs().update_many(suspects, {"$set": {"alone": True}, "$unset": {"reserved": ""}}, hint="_id_")
    return True


def _start(
    job: Document,
    token: str,
    now: datetime,
    until: datetime,
    *,
    batch: Sequence[Document] = (),
    limit: TimeLimit | None = None,
) -> tuple[Document, Document]:
    still_waiting = {"_id": job["_id"], "waiting": {"$gte": EPOCH, "$lte": now}, "attempts": job["attempts"]}
    if "repetition" in job:  # for the next due time after a success
        still_waiting["repetition"] = {"$eq": job["repetition"]}
    claim: Document = {"token": token, "claimed_until": until, "worker": process_name()}
    if limit is not None:
        claim["timeout_seconds"] = limit.timeout.total_seconds()
        claim["ends_at"] = limit.ends_at(now)
    changed: Document = {"state": JobState.EXECUTING, "claim": claim, "updated": now}
    removed = {"waiting": "", "first": "", "progress": "", "reserved": ""}
    if batch:
        changed["page"] = [one["_id"] for one in batch]
    # The server's timestamps increase with every write of the replica set, even after an election.
    fence = {"fence": {"$type": "timestamp"}}
    return still_waiting, {"$set": changed, "$unset": removed, "$inc": {"attempts": 1}, "$currentDate": fence}


def _reserve(batch: Sequence[Document], token: str, now: datetime) -> tuple[Document, Document]:
    """Return the update that reserves jobs with equal attempts, unless they were changed since they were read."""
    still_waiting = {
        "_id": {"$in": [job["_id"] for job in batch]},
        "waiting": {"$gte": EPOCH, "$lte": now},
        "attempts": batch[0]["attempts"],
        "alone": {"$exists": False},
    }
    # If this run found its first job started, another run may have reserved these jobs in its batch.
    not_of_another = {"$or": [not_reserved(now), _held_by("reserved", token)]}
    return {**still_waiting, **not_of_another}, {"$set": {"reserved": _reservation(token, now)}}


def _with_equal_attempts(batch: Sequence[Document]) -> Iterable[list[Document]]:
    """Group the jobs by their number of attempts."""
    alike: dict[Any, list[Document]] = {}
    for job in batch:
        alike.setdefault(job["attempts"], []).append(job)
    return alike.values()


def _finish_all(ended: Sequence[EndedAttempt], token: str, now: datetime) -> list[UpdateOne | UpdateMany]:
    """Return the writes of outcomes: one for all reserved jobs whose change is the same, which costs half as much."""
    alike: dict[Any, list[EndedAttempt]] = {}
    for one in ended:
        alike.setdefault((one.is_reserved, one.job["attempts"], one.outcome), []).append(one)
    writes: list[UpdateOne | UpdateMany] = []
    for some in alike.values():
        condition, change = _finish(some[0], token, now)
        condition["_id"] = {"$in": [one.job["_id"] for one in some]}
        writes.append(UpdateMany(condition, change, hint="_id_"))
    return writes


def _finish(ended: EndedAttempt, token: str, now: datetime) -> tuple[Document, Document]:
    job, outcome = ended.job, ended.outcome
    entry: Document = {
        "attempt": as_count(job["attempts"]) + 1,
        "run": token,
        "worker": process_name(),
        "took_ms": outcome.took_ms,
    }
    change = _end(outcome, entry, now)
    changed, removed = change["$set"], change["$unset"]
    removed |= {"losses": "", "alone": ""}
    if outcome.next_due is not None:
        changed["settled"] = job["attempts"] + 1
    if not outcome.is_counted:
        changed.setdefault("waiting", job["waiting"])
        changed["settled"] = as_count(job.get("settled")) + 1
    if not ended.is_reserved:
        not_canceled = {"claim.canceled_at": {"$exists": False}} if outcome.may_run_again else {}
        return {**_claim_condition(job, token), **not_canceled}, change
    removed |= {name: "" for name in ("waiting", "first", "progress", "reserved") if name not in changed}
    change["$inc"] = {"attempts": 1}
    return {"_id": job["_id"], **_held_by("reserved", token), "attempts": job["attempts"]}, change


def _end(outcome: JobOutcome, entry: Document, now: datetime) -> Document:
    """Return the update for an attempt that ended; `entry` is added to the history."""
    entry = {"at": now, "state": outcome.state, **entry}
    changed: Document = {"state": outcome.state, "updated": now}
    removed: Document = {"claim": "", "page": ""}
    if outcome.error is not None:
        entry["error"] = changed["last_error"] = outcome.error
    if outcome.backoff is not None:
        waiting = truncate(now + outcome.backoff)
        changed |= {"waiting": waiting, "due": waiting}
    if outcome.next_due is not None:
        changed |= {"state": JobState.PENDING, "waiting": outcome.next_due, "due": outcome.next_due}
    elif outcome.state in FINISHED_STATES:
        changed["uncounted"] = True
        removed["singular_key"] = ""
    return {"$set": changed, "$unset": removed, "$push": push_to_history(entry)}


def not_reserved(now: datetime) -> Document:
    """Return the condition that no run may start a job without a further write."""
    return {"reserved.until": {"$not": {"$gt": now}}}


def _reservation(token: str, now: datetime) -> Document:
    return {"token": token, "worker": process_name(), "until": truncate(now + RESERVATION)}


def _claim_condition(job: Document, token: str) -> Document:
    """Return the condition that this run has the claim of this attempt; it uses one token for all its jobs."""
    return {"_id": job["_id"], **_held_by("claim", token), "attempts": job["attempts"] + 1}


def _held_by(hold: str, token: str) -> Document:
    """Return the condition that a claim or a reservation is that of `token` in this process."""
    return {f"{hold}.token": token, f"{hold}.worker": process_name()}
