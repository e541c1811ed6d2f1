"""Outcomes of items per minute for the last 24 hours: written by `telemetry.counters`, read here.

A key has ten minutes of one name, with one field per minute and outcome, and expires soon after a day. Writers and
readers use the clock of Redis.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

import redis

OUTCOMES = ("done", "failed", "retried")
BUCKET_SECONDS = 600
BUCKETS = 144
RETENTION_SECONDS = (BUCKETS + 2) * BUCKET_SECONDS

# Counts outcomes in the totals and in the current minute.
#
# KEYS[1]  totals: hash {outcome: count}
# KEYS[2]  prefix of the history's keys; the script appends the number of the ten minutes
# ARGV     retention in seconds, then any number of outcomes and amounts
# Returns  nothing
#
# A script, because it needs the clock of Redis. Atomic, so that totals and history agree. Never retried.
COUNT = """
local minute = math.floor(redis.call('TIME')[1] / 60)
local ten = KEYS[2] .. math.floor(minute / 10)
for i = 2, #ARGV, 2 do
    redis.call('HINCRBY', KEYS[1], ARGV[i], ARGV[i + 1])
    redis.call('HINCRBY', ten, ARGV[i] .. ':' .. minute % 10, ARGV[i + 1])
end
redis.call('EXPIRE', ten, ARGV[1])
"""

Counts = dict[str, dict[str, list[int]]]


@dataclass(frozen=True, kw_only=True)
class Day:
    """The last 24 hours in buckets of ten minutes, oldest first; the last one is incomplete."""

    begins_at: datetime
    counts: Counts
    """By name and outcome."""


def key(name: str) -> str:
    """Return the prefix of the history keys of a name."""
    return f"qm:minutes:{name}:"


def day(client: redis.Redis, names: Iterable[str]) -> Day:
    """Return the last 24 hours of `names`; `client` must decode its replies. Raises the errors of redis-py."""
    wanted, first = list(names), _now(client) // BUCKET_SECONDS - BUCKETS + 1
    with client.pipeline(transaction=False) as pipe:
        for name in wanted:
            for number in range(first, first + BUCKETS):
                pipe.hgetall(f"{key(name)}{number}")
        buckets = iter(pipe.execute())
    counts: Counts = {}
    for name in wanted:
        of_name = [_sums(next(buckets)) for _ in range(BUCKETS)]
        counts[name] = {outcome: [sums[outcome] for sums in of_name] for outcome in OUTCOMES}
    return Day(begins_at=datetime.fromtimestamp(first * BUCKET_SECONDS, UTC), counts=counts)


def last_minute(client: redis.Redis, names: Iterable[str]) -> dict[str, dict[str, int]]:
    """Return the number of items by name and outcome in the last full minute. Raises like `day`."""
    wanted, minute = list(names), _now(client) // 60 - 1
    with client.pipeline(transaction=False) as pipe:
        for name in wanted:
            pipe.hmget(f"{key(name)}{minute // 10}", [f"{outcome}:{minute % 10}" for outcome in OUTCOMES])
        found = pipe.execute()
    return {
        name: {outcome: int(count or 0) for outcome, count in zip(OUTCOMES, counts, strict=True)}
        for name, counts in zip(wanted, found, strict=True)
    }


def _now(client: redis.Redis) -> int:
    now: tuple[int, int] = client.time()
    return int(now[0])


def _sums(bucket: dict[str, str]) -> dict[str, int]:
    sums = dict.fromkeys(OUTCOMES, 0)
    for field, count in bucket.items():
        outcome = field.partition(":")[0]
        sums[outcome] = sums.get(outcome, 0) + int(count)
    return sums
