"""Marks of running scans: collection `scan_marks`, so that a manual trigger does not start a second run.

    {_id: the scan's task name, runs: [{token, until}]}

Guarantee: a mark expires at `until`, which limits the effect of a crash. Of concurrent calls of `try_begin` one
succeeds. Marks are advisory: a scan that runs twice is harmless, and the beat ignores them.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from pymongo.collection import Collection
from pymongo.errors import DuplicateKeyError

from models.database import Document, collection
from queue_manager.core.clock import minutes

NAME = "scan_marks"
LEASE = minutes(5)
"""Longer than any scan; the time for which a crashed scan blocks manual triggers."""


def begin(scan: str, token: str, *, now: datetime, lease: timedelta = LEASE) -> None:
    """Mark the run `token` of `scan` as running, alongside other runs. Repeated calls renew the lease."""
    is_another: Document = {"$and": [{"$gt": ["$$this.until", now]}, {"$ne": ["$$this.token", {"$literal": token}]}]}
    others = {"$filter": {"input": {"$ifNull": ["$runs", []]}, "cond": is_another}}
    mine = {"token": {"$literal": token}, "until": now + lease}
    _marks().update_one({"_id": scan}, [{"$set": {"runs": {"$concatArrays": [others, [mine]]}}}], upsert=True)


def try_begin(scan: str, token: str, *, now: datetime, lease: timedelta = LEASE) -> bool:
    """Mark the run `token` if no run of `scan` is marked, atomically; return True if it was marked."""
    idle = {"_id": scan, "runs": {"$not": _running(now)}}
    try:
        _marks().update_one(idle, {"$set": {"runs": [{"token": token, "until": now + lease}]}}, upsert=True)
    except DuplicateKeyError:
        return False  # the document exists and did not match: a run is marked
    return True


def end(scan: str, token: str) -> None:
    """Remove the mark of the run `token`, if there is one."""
    _marks().update_one({"_id": scan}, {"$pull": {"runs": {"token": token}}})


def is_running(scan: str, *, now: datetime) -> bool:
    """Return True if a run of `scan` is marked."""
    return _marks().find_one({"_id": scan, "runs": _running(now)}, {"_id": 1}) is not None


def running(*, now: datetime) -> set[str]:
    """Return the scans with a marked run."""
    return {mark["_id"] for mark in _marks().find({"runs": _running(now)}, {"_id": 1})}


def _marks() -> Collection[dict[str, Any]]:
    return collection(NAME)


def _running(now: datetime) -> Document:
    return {"$elemMatch": {"until": {"$gt": now}}}
