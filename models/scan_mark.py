"""Which scans run at this moment: `scan_marks`, so that a scan started by hand does not join one that runs.

    {_id: the scan's task name, runs: [{token, until}]}

Guarantee: a mark ends by itself at `until`, so that a crash blocks nobody for longer; of any number of `try_begin`
at the same time, one succeeds. Marks only inform: a scan that runs twice does no harm, and beat asks nobody.
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
"""Longer than scans take; what the mark of a crashed one costs."""


def begin(scan: str, token: str, *, now: datetime, lease: timedelta = LEASE) -> None:
    """Mark that the run `token` of `scan` works from `now` on, beside any other. Repeating it renews its lease."""
    is_another: Document = {"$and": [{"$gt": ["$$this.until", now]}, {"$ne": ["$$this.token", {"$literal": token}]}]}
    others = {"$filter": {"input": {"$ifNull": ["$runs", []]}, "cond": is_another}}
    mine = {"token": {"$literal": token}, "until": now + lease}
    _marks().update_one({"_id": scan}, [{"$set": {"runs": {"$concatArrays": [others, [mine]]}}}], upsert=True)


def try_begin(scan: str, token: str, *, now: datetime, lease: timedelta = LEASE) -> bool:
    """Mark the run `token` if no run of `scan` is marked; tell whether it did. Look and write are one."""
    idle = {"_id": scan, "runs": {"$not": _running(now)}}
    try:
        _marks().update_one(idle, {"$set": {"runs": [{"token": token, "until": now + lease}]}}, upsert=True)
    except DuplicateKeyError:
        return False  # the document is there and did not match: something runs
    return True


def end(scan: str, token: str) -> None:
    """Take the mark of the run `token` away. Does nothing when there is none."""
    _marks().update_one({"_id": scan}, {"$pull": {"runs": {"token": token}}})


def is_running(scan: str, *, now: datetime) -> bool:
    """Tell whether any run of `scan` is marked."""
    return _marks().find_one({"_id": scan, "runs": _running(now)}, {"_id": 1}) is not None


def running(*, now: datetime) -> set[str]:
    """Return the scans of which any run is marked."""
    return {mark["_id"] for mark in _marks().find({"runs": _running(now)}, {"_id": 1})}


def _marks() -> Collection[dict[str, Any]]:
    return collection(NAME)


def _running(now: datetime) -> Document:
    return {"$elemMatch": {"until": {"$gt": now}}}
