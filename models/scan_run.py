"""What each scan found and did: `scan_runs`, kept for 24 hours.

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
KEPT = hours(24)
ORDER = ("at", "_id")
BY_SCAN, WITH_ERRORS = "last_runs_of_a_scan", "runs_with_errors"
HAS_ERRORS: Document = {"errors": {"$gt": 0}}


def indexes() -> list[IndexModel]:
    return [
        IndexModel([("scan", ASCENDING), *((field, DESCENDING) for field in ORDER)], name=BY_SCAN),
        # Of every run that met errors, and of no other: enough to add them up without reading one.
        IndexModel(
            [("scan", ASCENDING), ("at", ASCENDING), ("errors", ASCENDING)],
            name=WITH_ERRORS,
            partialFilterExpression=HAS_ERRORS,
        ),
        IndexModel([("at", ASCENDING)], name="kept_for_a_day", expireAfterSeconds=int(KEPT.total_seconds())),
    ]


def record(scan: str, figures: Mapping[str, int], *, error: str | None, now: datetime) -> None:
    """Keep what one run of `scan` did."""
    said = {} if error is None else {"error": error}
    collection(NAME).insert_one({"scan": scan, **figures, **said, "at": now})


def last(scan: str) -> Document | None:
    """Return the latest run of `scan`, or `None` when there was none in the last 24 hours."""
    return collection(NAME).find_one({"scan": scan}, {"_id": 0}, sort=[("at", DESCENDING)])


def latest(scan: str, *, limit: int) -> list[Document]:
    """Return the latest runs of `scan`, newest first."""
    return list(collection(NAME).find({"scan": scan}, {"_id": 0}, sort=[("at", DESCENDING)], limit=limit))


def page(scan: str, *, after: Position | None, limit: int) -> list[Document]:
    """Return runs of `scan` with their ids, newest first, from a position on."""
    found = listing.walk(
        collection(NAME), {"scan": scan}, index=BY_SCAN, order=ORDER, after=after, is_descending=True, batch=limit
    )
    return list(islice(found, limit))


def errors(since: datetime) -> dict[str, int]:
    """Add up the errors that runs since then have met, by scan; a scan that met none is left out."""
    groups: Any = collection(NAME).aggregate(
        [
            {"$match": {**HAS_ERRORS, "at": {"$gte": since}}},
            {"$group": {"_id": "$scan", "errors": {"$sum": "$errors"}}},
        ],
        hint=WITH_ERRORS,
    )
    return {group["_id"]: group["errors"] for group in groups}


def collections() -> dict[str, list[IndexModel]]:
    """Return what this module keeps, for `migrate`."""
    return {NAME: indexes()}
