"""Counters in Redis, shared by all processes: totals for `/metrics`, and counts of items per minute for a day.

What is counted of items are their outcomes, and their durations in the buckets of `latency`. A key of the history has
ten minutes of one name, with one field per minute and count, and expires soon after a day. Writers and readers use the
clock of Redis.

Guarantee: counting never raises and waits at most 0.5 s (`BestEffortClient`). While Redis is unavailable nothing is
counted. If Redis lost its data, counters restart at zero, as Prometheus expects. Functions that read take a client of
the server at `REDIS_URL` that decodes its replies, and raise the errors of redis-py.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import chain, islice
from threading import local
from typing import TypeVar

import redis

from queue_manager.core.process import PerProcess
from queue_manager.core.redis_client import BestEffortClient, Script, connect
from queue_manager.core.settings import settings
from queue_manager.telemetry import latency

Totals = dict[str, int]
CountedT = TypeVar("CountedT")

OUTCOMES = ("done", "failed", "retried")
HISTORY_RETENTION_SECONDS = 24 * 3600 + 2 * 600  # a day, and the keys of ten minutes at its ends

# Counts in the totals and in the current minute.
#
# KEYS[1]  totals: hash {name: count}
# KEYS[2]  prefix of the history's keys; the script appends the number of the ten minutes
# ARGV     retention in seconds, then any number of names and amounts
# Returns  nothing
#
# A script, because it needs the clock of Redis. Atomic, so that totals and history agree. Never retried.
COUNT_OUTCOMES = Script("""
local minute = math.floor(redis.call('TIME')[1] / 60)
local ten = KEYS[2] .. math.floor(minute / 10)
for i = 2, #ARGV, 2 do
    redis.call('HINCRBY', KEYS[1], ARGV[i], ARGV[i + 1])
    redis.call('HINCRBY', ten, ARGV[i] .. ':' .. minute % 10, ARGV[i + 1])
end
redis.call('EXPIRE', ten, ARGV[1])
""")

# Counts in the current hour.
#
# KEYS[1]  prefix of the keys; the script appends the number of the hour
# ARGV     retention in seconds, then any number of names and amounts
# Returns  nothing
COUNT_HOUR = Script("""
local hour = KEYS[1] .. math.floor(redis.call('TIME')[1] / 3600)
for i = 2, #ARGV, 2 do
    redis.call('HINCRBY', hour, ARGV[i], ARGV[i + 1])
end
redis.call('EXPIRE', hour, ARGV[1])
""")


@dataclass(frozen=True, kw_only=True)
class Source:
    """The keys of the counts of one name, and their server."""

    totals: str
    minutes: str
    """The prefix of the keys of the history."""
    url: str | None = None
    """Of another server than that of `REDIS_URL`."""


def add(name: str, amounts: Mapping[str, int]) -> None:
    """Add `amounts` to the totals of `name`, in one round trip. Best effort: never raises an error of Redis."""

    def count(client: redis.Redis) -> None:
        with client.pipeline(transaction=False) as pipe:
            for field, amount in amounts.items():
                if amount:
                    pipe.hincrby(_key(name), field, amount)
            pipe.execute()

    _counters().attempt(count)


def items(name: str, outcomes: Mapping[str, int]) -> None:
    """Count outcomes of items, `{done, failed, retried}`, and durations in the totals and the history. Like `add`."""
    if (collected := _collected.counts) is not None:
        collected[name].update(outcomes)
        return
    keys = (_key(name), history_key(name))
    _counters().attempt(lambda client: COUNT_OUTCOMES(client, keys, _arguments(outcomes)))


def items_by_hour(name: str, outcomes: Mapping[str, int]) -> None:
    """Count like `items` for one of many names, which has no totals, and a history by the hour."""
    _counters().attempt(lambda client: COUNT_HOUR(client, [hours_key(name)], _arguments(outcomes)))


def _arguments(outcomes: Mapping[str, int]) -> list[str | int]:
    pairs: Iterable[str | int] = chain.from_iterable(outcomes.items())
    return [HISTORY_RETENTION_SECONDS, *pairs]


@contextmanager
def batched() -> Iterator[None]:
    """Collect the item counts of this thread in the block and write them at its end: one round trip per name."""
    _collected.counts = collected = defaultdict[str, Counter[str]](Counter)
    try:
        yield
    finally:
        _collected.counts = None
        for name, outcomes in collected.items():
            if outcomes:
                items(name, outcomes)


def scan(name: str, run: Mapping[str, int]) -> None:
    """Count one run of the scan `name`: `run` is `{found, claimed, enqueued, errors, duration_ms}`."""
    counts = Counter({"runs": 1, **run})
    latency.count(counts, "run", [counts.pop("duration_ms")])
    add(name, counts)


def totals(client: redis.Redis, sources: Iterable[Source]) -> list[Totals]:
    """Return the totals of each source, empty if nothing was counted; `client` must decode its replies.

    Raises the errors of redis-py.
    """
    return _read(client, [one.totals for one in sources])


def _read(client: redis.Redis, keys: Iterable[str]) -> list[Totals]:
    with client.pipeline(transaction=False) as pipe:
        for key in keys:
            pipe.hgetall(key)
        return [{field: int(count) for field, count in fields.items()} for fields in pipe.execute()]


def source(name: str) -> Source:
    """Return where the counts of a name are."""
    return Source(totals=_key(name), minutes=history_key(name))


def history_key(name: str) -> str:
    """Return the prefix of the keys that have the history of a name."""
    return f"qm:minutes:{name}:"


class _Collected(local):
    """The counts of the block of `batched` in which this thread is."""

    counts: dict[str, Counter[str]] | None = None


_collected = _Collected()


_counters = PerProcess(lambda: BestEffortClient(settings().redis_url, records="Counts"))
_other_servers = PerProcess(lambda: cache(connect))


def _key(name: str) -> str:
    return f"qm:totals:{name}"


def hours_key(name: str) -> str:
    return f"qm:hours:{name}:"


# The history

_settled: dict[Source, tuple[int, Totals]] = {}
"""By source: the first minute of an hour, and what was counted from it on in the keys that `recent` reads seldom."""


@dataclass(frozen=True, kw_only=True)
class Recent:
    """The counts of one name in the last full minute, and in the last 60 minutes."""

    minute: Totals
    hour: Totals


def by_minute(client: redis.Redis, sources: Sequence[Source], *, first: int, last: int) -> list[dict[int, Totals]]:
    """Return what was counted from one minute to another, both included, by the number of the minute since 1970.

    `client` must decode its replies. Raises the errors of redis-py.
    """
    tens = range(first // 10, last // 10 + 1)
    found = iter(_read(client, [f"{one.minutes}{ten}" for one in sources for ten in tens]))
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
        try:
            server = client if url is None else _other_servers()(url)
            found |= zip(some, read(server, [*some.values()]), strict=True)
        except redis.RedisError:
            if url is None:
                raise
    return found


def recent(client: redis.Redis, sources: Sequence[Source]) -> list[Recent]:
    """Return what was counted in the last minute and in the last hour. Raises like `by_minute`.

    Those before the previous ten minutes seldom change: they are read once a minute, so they may be a minute old.
    """
    now = _now(client) // 60
    first, changing = now - 59, (now // 10 - 1) * 10
    # A copy, because another thread may read the next minute.
    settled = {one: kept for one in sources if (kept := _settled.get(one)) is not None and kept[0] == first}
    unread = [one for one in sources if one not in settled]
    for one, minutes in zip(unread, by_minute(client, unread, first=first, last=changing - 1), strict=True):
        settled[one] = first, added(minutes.values())
    _settled.update(settled)
    return [
        Recent(minute=minutes.get(now - 1, {}), hour=added([settled[one][1], *minutes.values()]))
        for one, minutes in zip(sources, by_minute(client, sources, first=changing, last=now), strict=True)
    ]


def last_hours(client: redis.Redis, names: Sequence[str]) -> list[Totals]:
    """Return what `items_by_hour` counted for each name in the last 24 hours, and in the hour that began before them.

    Raises like `by_minute`.
    """
    now = _now(client) // 3600
    hours = range(now - 24, now + 1)
    found = iter(_read(client, [f"{hours_key(name)}{hour}" for name in names for hour in hours]))
    return [added(islice(found, len(hours))) for _ in names]


def added(counts: Iterable[Mapping[str, int]]) -> Totals:
    """Return the sum of counts, by name."""
    total = Counter[str]()
    for one in counts:
        total.update(one)
    return dict(total)


def _minutes(tens: Mapping[int, Totals], first: int, last: int) -> dict[int, Totals]:
    minutes: dict[int, Totals] = {}
    for ten, fields in tens.items():
        for field, count in fields.items():
            name, _, digit = field.partition(":")
            minute = ten * 10 + int(digit)
            if first <= minute <= last:
                minutes.setdefault(minute, {})[name] = count
    return minutes


def _now(client: redis.Redis) -> int:
    now: tuple[int, int] = client.time()
    return int(now[0])
