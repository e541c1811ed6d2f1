"""Runs of scans: which run now, in collection `scan_marks`, and the results of 24 hours, in `scan_runs`.

    scan_runs   {scan, found, claimed, enqueued, errors, duration_ms, at, error?}
    scan_marks  {_id: the scan's task name, runs: [{token, until}]}

A mark shows that a scan runs, so that a manual trigger does not start a second run. It expires at `until`, which limits
the effect of a crash. Of concurrent calls of `try_begin` one succeeds. Marks are advisory: a scan that runs twice is
harmless, and the beat ignores them.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

from pymongo import ASCENDING, DESCENDING, IndexModel
from pymongo.collection import Collection
from pymongo.errors import DuplicateKeyError

from models import listing
from models.database import Document, collection
from models.listing import Position
from queue_manager.core.clock import hours, minutes

RUNS_COLLECTION, MARKS_COLLECTION = "scan_runs", "scan_marks"
RUN_RETENTION = hours(24)
RUN_ORDER = ("at", "_id")
MARK_LEASE = minutes(5)
"""Longer than any scan; the time for which a crashed scan blocks manual triggers."""
BY_SCAN, WITH_ERRORS = "last_runs_of_a_scan", "runs_with_errors"
HAS_ERRORS: Document = {"errors": {"$gt": 0}}


def indexes() -> list[IndexModel]:
    return [
        IndexModel([("scan", ASCENDING), *((field, DESCENDING) for field in RUN_ORDER)], name=BY_SCAN),
        # Covers the sum of errors; contains only runs with errors.
        IndexModel(
            [("scan", ASCENDING), ("at", ASCENDING), ("errors", ASCENDING)],
            name=WITH_ERRORS,
            partialFilterExpression=HAS_ERRORS,
        ),
        IndexModel([("at", ASCENDING)], name="kept_for_a_day", expireAfterSeconds=int(RUN_RETENTION.total_seconds())),
    ]


def record(scan: str, stats: Mapping[str, int], *, error: str | None, now: datetime) -> None:
    """Store the result of a run of `scan`."""
    error_field = {} if error is None else {"error": error}
    collection(RUNS_COLLECTION).insert_one({"scan": scan, **stats, **error_field, "at": now})


def last(scan: str) -> Document | None:
    """Return the latest run of `scan`, or `None` if there was none in the last 24 hours."""
    return collection(RUNS_COLLECTION).find_one({"scan": scan}, {"_id": 0}, sort=[("at", DESCENDING)])


def latest(scan: str, *, limit: int) -> list[Document]:
    """Return the latest runs of `scan`, newest first."""
    return list(collection(RUNS_COLLECTION).find({"scan": scan}, {"_id": 0}, sort=[("at", DESCENDING)], limit=limit))


def page(scan: str, *, after: Position | None, limit: int) -> list[Document]:
    """Return runs of `scan` with their ids, newest first, after a position."""
    found = listing.walk(
        collection(RUNS_COLLECTION),
        {"scan": scan},
        index=BY_SCAN,
        order=RUN_ORDER,
        after=after,
        is_descending=True,
        batch=limit,
    )
    return list(islice(found, limit))


def slowest(scan: str, *, limit: int) -> list[Document]:
    """Return the slowest runs of `scan` with their ids, slowest first. Reads all of them, which are those of a day."""
    order = [("duration_ms", DESCENDING), *((field, DESCENDING) for field in RUN_ORDER)]
    return list(collection(RUNS_COLLECTION).find({"scan": scan}, sort=order, limit=limit, hint=BY_SCAN))


def errors(since: datetime) -> dict[str, int]:
    """Return the number of errors by scan since a time; scans without errors are omitted."""
    groups: Any = collection(RUNS_COLLECTION).aggregate(
        [
            {"$match": {**HAS_ERRORS, "at": {"$gte": since}}},
            {"$group": {"_id": "$scan", "errors": {"$sum": "$errors"}}},
        ],
        hint=WITH_ERRORS,
    )
    return {group["_id"]: group["errors"] for group in groups}


# Which scans run now


def begin(scan: str, token: str, *, now: datetime) -> None:
    """Mark the run `token` of `scan` as running, alongside other runs. Repeated calls renew the lease."""
    is_another: Document = {"$and": [{"$gt": ["$$this.until", now]}, {"$ne": ["$$this.token", {"$literal": token}]}]}
    others = {"$filter": {"input": {"$ifNull": ["$runs", []]}, "cond": is_another}}
    mine = {"token": {"$literal": token}, "until": now + MARK_LEASE}
    _marks().update_one({"_id": scan}, [{"$set": {"runs": {"$concatArrays": [others, [mine]]}}}], upsert=True)


def try_begin(scan: str, token: str, *, now: datetime, lease: timedelta = MARK_LEASE) -> bool:
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


def running(*, now: datetime) -> set[str]:
    """Return the scans with a marked run."""
    return {mark["_id"] for mark in _marks().find({"runs": _running(now)}, {"_id": 1})}


def _marks() -> Collection[dict[str, Any]]:
    return collection(MARKS_COLLECTION)


def _running(now: datetime) -> Document:
    return {"$elemMatch": {"until": {"$gt": now}}}


def collections() -> dict[str, list[IndexModel]]:
    """Return the collections of this module with their indexes, for `migrate`."""
    return {RUNS_COLLECTION: indexes()}
