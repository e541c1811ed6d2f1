"""The history of the systems: what was done, what failed and how long it took, for 90 days.

Guarantee: what was counted in Redis in the last 24 hours is copied to MongoDB, about once a minute while any scan runs,
and stays there when Redis loses its data. What was counted while no scan ran for longer is missing. What was counted
since the last copy is read from Redis, if it answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Literal

import redis

from models import history, mark
from models.history import HOUR, TEN_MINUTES, Bucket
from models.mark import ChartMark
from queue_manager.beat.status import leadership
from queue_manager.core.clock import EPOCH, hours, milliseconds, minutes, seconds
from queue_manager.core.process import PerProcess
from queue_manager.core.redis_client import connect
from queue_manager.core.settings import settings
from queue_manager.health_rules import MISSED_RUNS
from queue_manager.system import System, sources
from queue_manager.telemetry import counters, latency
from queue_manager.telemetry.counters import Totals
from queue_manager.telemetry.latency import Histogram, Measure

COPY_INTERVAL = minutes(1)  # between two attempts of a process
COPY_LOCK_TIME = seconds(50)  # shorter, so that the process that copied last finds the lock free
COPY_LOCK = "qm:history:copied"
MIN_OUTAGE = minutes(3)
MINUTES_KEPT = 24 * 60  # in Redis
Range = Literal["1h", "24h", "7d", "30d", "90d"]
LENGTHS: Mapping[Range, tuple[timedelta, timedelta]] = {
    "1h": (hours(1), minutes(1)),
    "24h": (hours(24), TEN_MINUTES),
    "7d": (hours(7 * 24), HOUR),
    "30d": (hours(30 * 24), hours(6)),
    "90d": (hours(90 * 24), hours(24)),
}
"""By range: its length, and the length of its steps."""

_redis = PerProcess(lambda: connect(settings().redis_url))


@dataclass(frozen=True, kw_only=True)
class RangeHistory:
    """What a system counted in a range, in steps of equal length, oldest first."""

    begins_at: datetime
    step: timedelta
    steps: Sequence[Totals | None]
    """`None` for a time of which nothing is known."""
    marks: Sequence[ChartMark] = ()

    @property
    def total(self) -> Totals:
        return counters.added(one for one in self.steps if one is not None)

    def numbers(self, outcome: str) -> list[int | None]:
        """Return how often an outcome was counted in each step."""
        return [None if one is None else one.get(outcome, 0) for one in self.steps]

    def histograms(self, measure: Measure) -> list[Histogram]:
        """Return the durations of each step."""
        return [latency.histograms(one or {})[measure] for one in self.steps]


def copy(systems: Iterable[System], *, now: datetime) -> None:
    """Copy what was counted to MongoDB, and mark leaders and outages, unless another process did within the interval.

    Raises the errors of the drivers.
    """
    client = _redis()
    if not client.set(COPY_LOCK, 1, nx=True, px=milliseconds(COPY_LOCK_TIME)):
        return
    known = [system for system in systems if system.is_on(settings())]
    if outage := mark.current_outage(now, gap=_gap(known)):
        mark.add(outage)
    mark.record_scan(now)  # after that, because it ends the outage
    if leader := leadership(client):
        text = f"{leader.host}:{leader.pid} leads, epoch {leader.epoch}"
        mark.add(ChartMark(kind="leader", at=leader.since, text=text))
    last = _last_minute(client)
    # The clocks of the servers may differ.
    copied = history.newest(_moment(last - MINUTES_KEPT), until=_moment(last + 10))
    history.store(_counted(client, known, since=copied, last=last))


def _counted(
    client: redis.Redis, systems: Iterable[System], *, since: Mapping[str, datetime], last: int
) -> list[Bucket]:
    """Return what was counted of each system since a time, or in 24 hours, in buckets of ten minutes."""
    counted = sources(systems)
    begins = {name: _minute(at) for name, at in since.items()}
    firsts = {name: begins.get(name, last - MINUTES_KEPT) for name in counted}
    found: dict[str, dict[int, Totals]] = {}
    for first in {*firsts.values()}:  # one, and another if some systems are off
        some = {name: source for name, source in counted.items() if firsts[name] == first}
        found |= counters.from_each_server(client, some, partial(counters.by_minute, first=first, last=last))
    return [
        Bucket(system=name, at=_moment(ten * 10), length=TEN_MINUTES, counts=counts)
        for name, by_minute in found.items()
        for ten, counts in _tens(by_minute, first=begins.get(name), last=last)
    ]


def _tens(by_minute: Mapping[int, Totals], *, first: int | None, last: int) -> Iterator[tuple[int, Totals]]:
    """Yield the counts of each ten minutes from the minute `first` on, by default from the first that was counted."""
    tens: dict[int, list[Totals]] = {}
    for minute, counts in by_minute.items():
        tens.setdefault(minute // 10, []).append(counts)
    begin = min([*tens, last // 10]) if first is None else first // 10
    for ten in range(begin, last // 10 + 1):
        yield ten, counters.added(tens.get(ten, []))


def read(system: System, chosen: Range, *, systems: Iterable[System], now: datetime) -> RangeHistory:
    """Return the history of a system, with the marks of all. Raises the errors of the drivers."""
    marks = mark.read(beginning(chosen, now))
    if outage := mark.current_outage(now, gap=_gap(systems)):
        marks.append(outage)
    return replace(read_many([system], chosen, now=now)[system.name], marks=marks)


def read_many(systems: Sequence[System], chosen: Range, *, now: datetime) -> dict[str, RangeHistory]:
    """Return the histories of systems by name, without marks. Raises the errors of the drivers."""
    length, step = LENGTHS[chosen]
    begins_at = beginning(chosen, now)
    # Redis is read last: while it hangs, the time that the caller gives MongoDB passes.
    found = _last_minutes(systems, begins_at) if chosen == "1h" else _stored(systems, begins_at, step, now=now)
    times = [begins_at + number * step for number in range(length // step)]
    return {
        system.name: RangeHistory(
            begins_at=begins_at, step=step, steps=[found.get(system.name, {}).get(at) for at in times]
        )
        for system in systems
    }


def beginning(chosen: Range, now: datetime) -> datetime:
    """Return when the first step of a range begins."""
    length, step = LENGTHS[chosen]
    return EPOCH + (now - length - EPOCH) // step * step + step


def _stored(
    systems: Sequence[System], begins_at: datetime, step: timedelta, *, now: datetime
) -> dict[str, dict[datetime, Totals]]:
    read = partial(history.read, systems=[system.name for system in systems])
    stored = [*read(min(step, HOUR), since=begins_at)]
    tens = stored if step == TEN_MINUTES else [*read(TEN_MINUTES, since=beginning("24h", now))]
    found: dict[str, dict[datetime, list[Mapping[str, int]]]] = {system.name: {} for system in systems}
    for bucket in [*stored, *_not_copied(systems, tens, now)]:
        at = begins_at + (bucket.at - begins_at) // step * step
        found[bucket.system].setdefault(at, []).append(bucket.counts)
    return {name: {at: counters.added(counts) for at, counts in by_time.items()} for name, by_time in found.items()}


def _not_copied(systems: Sequence[System], stored: Sequence[Bucket], now: datetime) -> Iterator[Bucket]:
    """Yield the counts of 24 hours that are not in `stored`, the ten minutes stored of that time, oldest first."""
    copied = {(bucket.system, bucket.at): bucket.counts for bucket in stored}
    since = dict.fromkeys((system.name for system in systems), beginning("24h", now))
    since |= {bucket.system: bucket.at for bucket in stored if bucket.at <= now}  # the newest of each
    client = _redis()
    try:
        counted = _counted(client, systems, since=since, last=_last_minute(client))
    except redis.RedisError:  # the history outlives Redis
        return
    for bucket in counted:
        known = copied.get((bucket.system, bucket.at), {})
        new = {name: more for name, count in bucket.counts.items() if (more := count - known.get(name, 0)) > 0}
        if new:
            yield replace(bucket, counts=new)


def _last_minutes(systems: Iterable[System], begins_at: datetime) -> dict[str, dict[datetime, Totals]]:
    counted = sources(systems)
    client, first = _redis(), _minute(begins_at)
    last = _last_minute(client)
    found = counters.from_each_server(client, counted, partial(counters.by_minute, first=first, last=last))
    return {
        name: {_moment(minute): by_minute.get(minute, {}) for minute in range(first, last + 1)}
        for name, by_minute in found.items()
    }


def _last_minute(client: redis.Redis) -> int:
    return int(client.time()[0]) // 60


def _gap(systems: Iterable[System]) -> timedelta:
    """Return how long no scan may run before that is an outage."""
    periods = [system.period(settings()) for system in systems if system.is_on(settings())]
    return max(MIN_OUTAGE, MISSED_RUNS * min(periods, default=MIN_OUTAGE)) + COPY_INTERVAL


def _minute(moment: datetime) -> int:
    return (moment - EPOCH) // minutes(1)


def _moment(minute: int) -> datetime:
    return EPOCH + minutes(minute)
