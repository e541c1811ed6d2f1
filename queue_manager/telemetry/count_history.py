"""The counts of systems by time, as Redis has them: by the minute for a day.

Functions take a client of the server at `REDIS_URL` that decodes its replies, and raise the errors of redis-py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar

import redis

from queue_manager.core.redis_client import connect
from queue_manager.telemetry.counters import (
    BUCKET_SECONDS,
    HISTORY_BUCKETS,
    OUTCOMES,
    Source,
    Totals,
    hours_key,
)

CountedT = TypeVar("CountedT")


@dataclass(frozen=True, kw_only=True)
class Recent:
    """The counts of one name in the last full minute, and in the last 60 minutes."""

    minute: Totals
    hour: Totals


@dataclass(frozen=True, kw_only=True)
class History:
    """The last 24 hours in buckets of ten minutes, oldest first; the last one is incomplete."""

    begins_at: datetime
    counts: dict[str, dict[str, list[int]]]
    """By name and outcome."""


def last_day(client: redis.Redis, sources: Mapping[str, Source]) -> History:
    """Return the outcomes of the last 24 hours; sources whose server is unavailable are left out."""
    first = _now(client) // BUCKET_SECONDS - HISTORY_BUCKETS + 1
    counts = from_each_server(client, sources, lambda server, some: _outcomes(server, some, first=first))
    return History(begins_at=datetime.fromtimestamp(first * BUCKET_SECONDS, UTC), counts=counts)


def by_minute(client: redis.Redis, sources: Sequence[Source], *, first: int, last: int) -> list[dict[int, Totals]]:
    """Return what was counted from one minute to another, both included, by the number of the minute since 1970.

    `client` must decode its replies. Raises the errors of redis-py.
    """
    tens = range(first // 10, last // 10 + 1)
    with client.pipeline(transaction=False) as pipe:
        for one in sources:
            for ten in tens:
                pipe.hgetall(f"{one.minutes}{ten}")
        found = iter(pipe.execute())
    return [_minutes({ten: next(found) for ten in tens}, first, last) for _ in sources]


def from_each_server(
    client: redis.Redis,
    sources: Mapping[str, Source],
    read: Callable[[redis.Redis, Sequence[Source]], Iterable[CountedT]],
) -> dict[str, CountedT]:
    """Call `read` for the sources of each server; return its answers by name.

    A server other than that of `client` is left out while it is unavailable: the statistics of its system say so.
    """
    found = dict[str, CountedT]()
    for url in {one.url for one in sources.values()}:
        some = {name: one for name, one in sources.items() if one.url == url}
        with nullcontext(client) if url is None else _passing_over_outages(url) as server:
            found |= zip(some, read(server, [*some.values()]), strict=True)
    return found


@contextmanager
def _passing_over_outages(url: str) -> Iterator[redis.Redis]:
    with suppress(redis.RedisError), connect(url) as server:
        yield server


def recent(client: redis.Redis, sources: Sequence[Source]) -> list[Recent]:
    """Return what was counted in the last minute and in the last hour. Raises like `by_minute`."""
    now = _now(client) // 60
    return [
        Recent(minute=minutes.get(now - 1, {}), hour=added(minutes.values()))
        for minutes in by_minute(client, sources, first=now - 59, last=now)
    ]


def last_hours(client: redis.Redis, names: Sequence[str]) -> list[Totals]:
    """Return what `items_by_hour` counted for each name in the last 24 hours, and in the hour that began before them.

    Raises like `by_minute`.
    """
    now = _now(client) // 3600
    with client.pipeline(transaction=False) as pipe:
        for name in names:
            for hour in range(now - 24, now + 1):
                pipe.hgetall(f"{hours_key(name)}{hour}")
        found = iter(pipe.execute())
    return [
        added({field: int(count) for field, count in next(found).items()} for _ in range(now - 24, now + 1))
        for _ in names
    ]


def added(counts: Iterable[Mapping[str, int]]) -> Totals:
    """Return the sum of counts, by name."""
    total = Counter[str]()
    for one in counts:
        total.update(one)
    return dict(total)


def _minutes(tens: Mapping[int, Mapping[str, str]], first: int, last: int) -> dict[int, Totals]:
    minutes: dict[int, Totals] = {}
    for ten, fields in tens.items():
        for field, count in fields.items():
            name, _, digit = field.partition(":")
            minute = ten * 10 + int(digit)
            if first <= minute <= last:
                minutes.setdefault(minute, {})[name] = int(count)
    return minutes


def _outcomes(client: redis.Redis, sources: Sequence[Source], *, first: int) -> list[dict[str, list[int]]]:
    """Return the outcomes of a day of ten minutes each; the durations in the same keys are not read."""
    fields = {outcome: [f"{outcome}:{digit}" for digit in range(10)] for outcome in OUTCOMES}
    with client.pipeline(transaction=False) as pipe:
        for one in sources:
            for names in fields.values():
                for ten in range(first, first + HISTORY_BUCKETS):
                    pipe.hmget(f"{one.minutes}{ten}", names)
        sums = (sum(int(count) for count in counts if count) for counts in pipe.execute())
        return [{outcome: [next(sums) for _ in range(HISTORY_BUCKETS)] for outcome in fields} for _ in sources]


def _now(client: redis.Redis) -> int:
    now: tuple[int, int] = client.time()
    return int(now[0])
