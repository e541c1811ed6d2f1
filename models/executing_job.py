"""Executing jobs: those of `jobs_data` that a worker has claimed; see `models/job.py` for their fields."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from models.database import Document, update_all
from models.job import COUNTED_ATTEMPTS, IS_JOB, JobId, JobState, as_count, attempt_of, jobs
from queue_manager.core.clock import EPOCH

MALFORMED_CLAIM_ERROR = "The claim of the executing job was malformed: `claim.claimed_until` must be a date"
_IS_CLAIMED: Document = {
    "claim": {"$not": {"$type": "array"}},
    "claim.claimed_until": {"$gte": EPOCH, "$not": {"$type": "array"}},
}


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
    attempt: int
    """Counted from 1, also after each success of a repeating job."""
    token: str
    timeout_seconds: float | None
    ends_at: datetime | None
    """When its process is killed, because of its time limit or because it was canceled."""
    is_canceled: bool
    batch: list[JobId]
    """Jobs that were reserved together with it."""


def find(where: Document | None = None) -> list[ExecutingJob]:
    """Return the executing jobs, or those that meet a further condition, ordered by the end of their lease."""
    found = jobs().find(
        {"state": JobState.EXECUTING, **_IS_CLAIMED, **COUNTED_ATTEMPTS, **(where or {})},
        {"name": 1, "claim": 1, "updated": 1, "losses": 1, "page": 1, "attempts": 1, "settled": 1},
        sort=["claim.claimed_until"],
        hint="executing_by_lease",
    )
    return [
        ExecutingJob(
            id=job["_id"],
            name=job["name"],
            claimed_until=job["claim"]["claimed_until"],
            since=job["updated"] if isinstance(job.get("updated"), datetime) else job["claim"]["claimed_until"],
            worker=job["claim"].get("worker"),
            losses=as_count(job.get("losses")),
            attempt=attempt_of(job),
            token=job["claim"].get("token", ""),
            timeout_seconds=job["claim"].get("timeout_seconds"),
            ends_at=job["claim"].get("ends_at"),
            is_canceled="canceled_at" in job["claim"],
            batch=job["page"] if isinstance(job.get("page"), list) else [],
        )
        for job in found
        if isinstance(job.get("name"), str)
    ]


def fail_unclaimed(now: datetime) -> int:
    """Fail executing jobs with a malformed claim, whose lease would never end; return their number."""
    unclaimed: Document = {"state": JobState.EXECUTING, **IS_JOB, "$nor": [_IS_CLAIMED]}
    failed = {"state": JobState.FAILURE, "last_error": MALFORMED_CLAIM_ERROR, "updated": now}
    change = {"$set": failed, "$unset": {"claim": "", "page": ""}}
    return update_all(jobs(), unclaimed, change, hint="executing_by_lease")
