"""Runs of scans: those of 24 hours, in collection `scan_runs`; which run now and the last one, in `scan_marks`.

    scan_runs   {scan, found, claimed, enqueued, errors, duration_ms, at, error?, and further counts of the system}
    scan_marks  {_id: the scan's task name, runs: [{token, until}], last?: a document as in `scan_runs`}

`runs` has those that have not ended, so that a manual trigger does not start a second one. They expire at `until`,
which limits the effect of a crash. Of concurrent calls of `try_begin` one succeeds. All this is advisory: a scan that
runs twice is harmless, and the beat ignores it. `last` is kept, because a scan may be rarer than once a day; marks that
release 0.2 wrote do not have it.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from itertools import islice
from typing import Annotated, Any

from bson import ObjectId
from pydantic import Field
from pymongo import DESCENDING, IndexModel
from pymongo.collection import Collection
from pymongo.errors import DuplicateKeyError

from models import listing
from models.database import Document, collection, estimated_now
from models.job import as_count
from models.listing import Position
from models.malformed import readable, readable_one, typed
from queue_manager.core.clock import hours, minutes
from queue_manager.core.json_types import Moment, Number, optional

RUNS_COLLECTION, RUNNING_COLLECTION = "scan_runs", "scan_marks"
RUN_RETENTION = hours(24)
RUN_ORDER = ("at", "_id")
MAX_FUTURE = hours(1)  # by which the time of a run may be in the future, after the server's clock was put back
RUN_LEASE = minutes(5)
"""Longer than any scan; the time for which a crashed scan blocks manual triggers."""
BY_SCAN, WITH_ERRORS = "last_runs_of_a_scan", "runs_with_errors"
HAS_ERRORS: Document = {"errors": {"$gt": 0}}


@dataclass(frozen=True, kw_only=True)
class ScanRun:
    """One run of a scan."""

    at: Annotated[Moment, Field(description="When it ended.")]
    found: Annotated[int, Field(description="Due items that were not in flight.")]
    claimed: Annotated[int, Field(description="Items that were leased.")]
    enqueued: Annotated[int, Field(description="Items that were dispatched.")]
    errors: Annotated[int, Field(description="Steps that failed.")]
    duration_ms: Annotated[Number, Field(description="Its duration in milliseconds.")]
    is_paused: Annotated[bool, Field(description="True if it dispatched nothing, because the system was paused.")]
    error: Annotated[str | None, optional("Why it failed.")] = None


@dataclass(frozen=True, kw_only=True)
class Scan(ScanRun):
    """One run of a scan in a list."""

    id: str
    noted: Annotated[Mapping[str, Any], Field(description="Further numbers that the system reports about the scan.")]


_COUNTS = ("found", "claimed", "enqueued", "errors", "duration_ms")
_FIELDS = {"_id", "scan", *(one.name for one in fields(ScanRun))}


def record(scan: str, stats: Mapping[str, int], *, error: str | None, now: datetime) -> None:
    """Store the result of a run of `scan`."""
    error_field = {} if error is None else {"error": error}
    run = {"_id": ObjectId(), "scan": scan, **stats, **error_field, "at": now}
    collection(RUNS_COLLECTION).insert_one(run)
    _running().update_one({"_id": scan}, {"$set": {"last": run}}, upsert=True)


def last(scan: str) -> Scan | None:
    """Return the latest run of `scan`, however long ago it was; `None` if none is known."""
    return next(iter(latest(scan, limit=1)), None)


def latest(scan: str, *, limit: int) -> list[Scan]:
    """Return the latest runs of `scan` in the last 24 hours, newest first; if there were none, the one before."""
    newest = collection(RUNS_COLLECTION).find({"scan": scan}, sort=[("at", DESCENDING)], batch_size=limit + 1)
    soon = estimated_now() + MAX_FUTURE  # a run with a later time would hide for long that the scan does not run
    with closing(newest):
        runs = (run for run in readable(newest, read_run, of=RUNS_COLLECTION) if run.at <= soon)
        found = list(islice(runs, limit))
    if not found:
        mark = _running().find_one({"_id": scan, "last.at": {"$lte": soon}}, {"last": 1})
        run = readable_one(mark, lambda one: read_run(one["last"]), of=RUNNING_COLLECTION)
        found = [] if run is None else [run]
    return found


def page(scan: str, *, after: Position | None, limit: int) -> tuple[list[Scan], Position | None]:
    """Return runs of `scan` after a position, newest first, and the position of the next page; `None` at the end."""
    runs = collection(RUNS_COLLECTION)
    found, end = listing.newest(runs, {"scan": scan}, index=BY_SCAN, order=RUN_ORDER, after=after, limit=limit)
    return list(readable(found, read_run, of=RUNS_COLLECTION)), end


def slowest(scan: str, *, limit: int) -> list[Scan]:
    """Return the slowest runs of `scan`, slowest first. Reads all runs, which are those of a day."""
    order = [("duration_ms", DESCENDING), *((field, DESCENDING) for field in RUN_ORDER)]
    found = collection(RUNS_COLLECTION).find({"scan": scan}, sort=order, limit=limit, hint=BY_SCAN)
    return list(readable(found, read_run, of=RUNS_COLLECTION))


def read_run(document: Document) -> Scan:
    """Return a run without values of unexpected types. Raises TypeError or KeyError if a field of each run is wrong."""
    typed({"error": "", **document}, "error", str)
    kinds = (int, str, datetime)
    counts = {name: typed({name: 0, **document}, name, int) for name in _COUNTS}
    return Scan(
        id=str(document["_id"]),
        at=typed(document, "at", datetime),
        **counts,
        is_paused=bool(document.get("paused")),
        error=document.get("error"),
        noted={name: one for name, one in document.items() if name not in _FIELDS and isinstance(one, kinds)},
    )


def count_errors(since: datetime) -> dict[str, int]:
    """Return the number of errors by scan since a time; scans without errors are omitted."""
    groups: Any = collection(RUNS_COLLECTION).aggregate(
        [
            {"$match": {**HAS_ERRORS, "at": {"$gte": since}}},
            {"$group": {"_id": "$scan", "errors": {"$sum": "$errors"}}},
        ],
        hint=WITH_ERRORS,
    )
    return {group["_id"]: as_count(group["errors"]) for group in groups if isinstance(group["_id"], str)}


# Which scans run now


def begin(scan: str, token: str, *, now: datetime) -> None:
    """Record that the run `token` of `scan` began, alongside other runs. Repeated calls renew the lease."""
    is_another: Document = {"$and": [{"$gt": ["$$this.until", now]}, {"$ne": ["$$this.token", {"$literal": token}]}]}
    others = {"$filter": {"input": {"$cond": [{"$isArray": "$runs"}, "$runs", []]}, "cond": is_another}}
    mine = {"token": {"$literal": token}, "until": now + RUN_LEASE}
    _running().update_one({"_id": scan}, [{"$set": {"runs": {"$concatArrays": [others, [mine]]}}}], upsert=True)


def try_begin(scan: str, token: str, *, now: datetime, lease: timedelta = RUN_LEASE) -> bool:
    """Record that the run `token` began, if no other run of `scan` is recorded; return True if it was. Atomic."""
    idle = {"_id": scan, "runs": {"$not": _is_live(now)}}
    try:
        _running().update_one(idle, {"$set": {"runs": [{"token": token, "until": now + lease}]}}, upsert=True)
    except DuplicateKeyError:
        return False  # the document exists and did not match: another run is recorded
    return True


def end(scan: str, token: str) -> None:
    """Record that the run `token` has ended."""
    _running().update_one({"_id": scan}, {"$pull": {"runs": {"token": token}}})


def running(*, now: datetime) -> set[str]:
    """Return the scans that run."""
    return {id for one in _running().find({"runs": _is_live(now)}, {"_id": 1}) if isinstance(id := one["_id"], str)}


def _running() -> Collection[dict[str, Any]]:
    return collection(RUNNING_COLLECTION)


def _is_live(now: datetime) -> Document:
    return {"$elemMatch": {"until": {"$gt": now}}}


RUN_INDEXES = {
    RUNS_COLLECTION: [
        IndexModel(["scan", *((field, DESCENDING) for field in RUN_ORDER)], name=BY_SCAN),
        # Covers the sum of errors; contains only runs with errors.
        IndexModel(["scan", "at", "errors"], name=WITH_ERRORS, partialFilterExpression=HAS_ERRORS),
        IndexModel("at", name="kept_for_a_day", expireAfterSeconds=int(RUN_RETENTION.total_seconds())),
    ]
}
