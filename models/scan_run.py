"""Results of scans: collection `scan_runs`, retained for 24 hours.

{scan, found, claimed, enqueued, errors, duration_ms, at, error?}
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from itertools import islice
from typing import Any

from pymongo import ASCENDING, DESCENDING, IndexModel

from models import listing
from models.database import Document, collection
from models.listing import Position
from queue_manager.core.clock import hours

NAME = "scan_runs"
RETENTION = hours(24)
ORDER = ("at", "_id")
BY_SCAN, WITH_ERRORS = "last_runs_of_a_scan", "runs_with_errors"
HAS_ERRORS: Document = {"errors": {"$gt": 0}}


def indexes() -> list[IndexModel]:
    return [
        IndexModel([("scan", ASCENDING), *((field, DESCENDING) for field in ORDER)], name=BY_SCAN),
        # Covers the sum of errors; contains only runs with errors.
        IndexModel(
            [("scan", ASCENDING), ("at", ASCENDING), ("errors", ASCENDING)],
            name=WITH_ERRORS,
            partialFilterExpression=HAS_ERRORS,
        ),
        IndexModel([("at", ASCENDING)], name="kept_for_a_day", expireAfterSeconds=int(RETENTION.total_seconds())),
    ]


def record(scan: str, stats: Mapping[str, int], *, error: str | None, now: datetime) -> None:
    """Store the result of a run of `scan`."""
    error_field = {} if error is None else {"error": error}
    collection(NAME).insert_one({"scan": scan, **stats, **error_field, "at": now})


def last(scan: str) -> Document | None:
    """Return the latest run of `scan`, or `None` if there was none in the last 24 hours."""
    return collection(NAME).find_one({"scan": scan}, {"_id": 0}, sort=[("at", DESCENDING)])


def latest(scan: str, *, limit: int) -> list[Document]:
    """Return the latest runs of `scan`, newest first."""
    return list(collection(NAME).find({"scan": scan}, {"_id": 0}, sort=[("at", DESCENDING)], limit=limit))


def page(scan: str, *, after: Position | None, limit: int) -> list[Document]:
    """Return runs of `scan` with their ids, newest first, after a position."""
    found = listing.walk(
        collection(NAME), {"scan": scan}, index=BY_SCAN, order=ORDER, after=after, is_descending=True, batch=limit
    )
    return list(islice(found, limit))


def errors(since: datetime) -> dict[str, int]:
    """Return the number of errors by scan since a time; scans without errors are omitted."""
    groups: Any = collection(NAME).aggregate(
        [
            {"$match": {**HAS_ERRORS, "at": {"$gte": since}}},
            {"$group": {"_id": "$scan", "errors": {"$sum": "$errors"}}},
        ],
        hint=WITH_ERRORS,
    )
    return {group["_id"]: group["errors"] for group in groups}


def collections() -> dict[str, list[IndexModel]]:
    """Return the collections of this module with their indexes, for `migrate`."""
    return {NAME: indexes()}
