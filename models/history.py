"""What systems did, by time, for the charts: collection `qm_history`, one document per system and ten minutes or hour.

    {_id, system, seconds: 600 or 3600, at, counts: {done, failed, retried, wait: {"250": 3, ...}, ...}, expires_at}

The documents of an hour are the sums of its ten minutes, so that a chart of months reads few documents.
Guarantee: a count is stored with its absolute value and never lowered. Storing it again, late, by several processes, or
after Redis lost its data changes nothing that is stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from pymongo import IndexModel, UpdateOne
from pymongo.errors import BulkWriteError

from models.database import Document, collection, is_outage
from models.malformed import readable, typed
from queue_manager.core.clock import hours, minutes
from queue_manager.core.errors import reason
from queue_manager.core.log import get_logger

HISTORY_COLLECTION = "qm_history"
TEN_MINUTES, HOUR = minutes(10), hours(1)
HISTORY_RETENTION = {TEN_MINUTES: hours(3 * 24), HOUR: hours(92 * 24)}
BY_LENGTH = "by_length_and_time"

log = get_logger("QM/history")


@dataclass(frozen=True, kw_only=True)
class Bucket:
    """The counts of a system in the period that begins at `at`."""

    system: str
    at: datetime
    length: timedelta
    counts: Mapping[str, int]
    """By name, as in `queue_manager.telemetry.counters`."""


def store(buckets: Iterable[Bucket]) -> None:
    """Store buckets of ten minutes, and the sums of their hours.

    The sums are stored first: if that fails, a repetition begins at the same `newest` buckets, and stores them again.
    """
    tens = list(buckets)
    if not tens:
        return
    first = min(one.at for one in tens).replace(minute=0)
    counts = {(one.system, one.at): one.counts for one in read(TEN_MINUTES, since=first)}
    for one in tens:
        known = counts.get((one.system, one.at), {})
        highest = {name: max(count, known.get(name, 0)) for name, count in one.counts.items()}
        counts[one.system, one.at] = {**known, **highest}
    sums: dict[tuple[str, datetime], dict[str, int]] = {(one.system, one.at.replace(minute=0)): {} for one in tens}
    for (system, at), of_ten in counts.items():
        if (of_hour := sums.get((system, at.replace(minute=0)))) is not None:
            for name, count in of_ten.items():
                of_hour[name] = of_hour.get(name, 0) + count
    _write_all([Bucket(system=system, at=at, length=HOUR, counts=of_hour) for (system, at), of_hour in sums.items()])
    _write_all(tens)


def read(length: timedelta, *, since: datetime, systems: Sequence[str] | None = None) -> Iterator[Bucket]:
    """Yield the buckets of a length since a time, oldest first; of all systems unless `systems` is given."""
    wanted: Document = {"seconds": int(length.total_seconds()), "at": {"$gte": since}}
    if systems is not None:
        wanted["system"] = {"$in": [*systems]}
    found = collection(HISTORY_COLLECTION).find(wanted, hint=BY_LENGTH, sort=["at"])
    yield from readable(found, read_bucket, of=HISTORY_COLLECTION)


def read_bucket(found: Document) -> Bucket:
    return Bucket(
        system=typed(found, "system", str),
        at=typed(found, "at", datetime),
        length=timedelta(seconds=typed(found, "seconds", int, float)),
        counts=dict(_flat(found.get("counts", {}))),
    )


def newest(since: datetime, *, until: datetime) -> dict[str, datetime]:
    """Return, by system, the beginning of the newest ten minutes that are stored, if they began between two times."""
    groups: Any = collection(HISTORY_COLLECTION).aggregate(
        [
            {"$match": {"seconds": int(TEN_MINUTES.total_seconds()), "at": {"$gte": since, "$lte": until}}},
            {"$group": {"_id": "$system", "at": {"$max": "$at"}}},
        ],
        hint=BY_LENGTH,
    )
    return dict(
        readable(groups, lambda one: (typed(one, "_id", str), typed(one, "at", datetime)), of=HISTORY_COLLECTION)
    )


def _write_all(buckets: Sequence[Bucket]) -> None:
    """Write buckets. A malformed document in their place does not prevent the writes of the others."""
    try:
        collection(HISTORY_COLLECTION).bulk_write([_write(one) for one in buckets], ordered=False)
    except BulkWriteError as error:
        if is_outage(error):
            raise
        log.warning("Numbers for the charts could not be stored: a document is malformed", error=reason(error))


def _write(bucket: Bucket) -> UpdateOne:
    seconds = int(bucket.length.total_seconds())
    about = {"system": bucket.system, "seconds": seconds, "at": bucket.at}
    ends_at = bucket.at + bucket.length + HISTORY_RETENTION[bucket.length]
    change: Document = {"$setOnInsert": {**about, "expires_at": ends_at}}
    if bucket.counts:
        change["$max"] = {f"counts.{name}": count for name, count in bucket.counts.items()}
    # Its own id, so that two processes never insert the same bucket twice.
    return UpdateOne({"_id": f"{bucket.system}/{seconds}/{int(bucket.at.timestamp())}"}, change, upsert=True)


def _flat(counts: Document) -> Iterator[tuple[str, int]]:
    for name, value in counts.items():
        if isinstance(value, dict):
            yield from ((f"{name}.{bucket}", int(count)) for bucket, count in value.items())
        else:
            yield name, int(value)


HISTORY_INDEXES = {
    HISTORY_COLLECTION: [
        IndexModel(["seconds", "at"], name=BY_LENGTH),
        IndexModel("expires_at", name="kept_until", expireAfterSeconds=0),
    ]
}
