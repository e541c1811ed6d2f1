"""What each scan found and did: `scan_runs`, kept for 24 hours.

{scan, found, claimed, enqueued, errors, duration_ms, at, error?}
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from pymongo import ASCENDING, DESCENDING, IndexModel

from models.database import Document, collection
from queue_manager.core.clock import hours

NAME = "scan_runs"
KEPT = hours(24)


def indexes() -> list[IndexModel]:
    return [
        IndexModel([("scan", ASCENDING), ("at", DESCENDING)], name="last_runs_of_a_scan"),
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


def collections() -> dict[str, list[IndexModel]]:
    """Return what this module keeps, for `migrate`."""
    return {NAME: indexes()}
