"""How many items ended how, by the minute, for the last 24 hours: counted by `transport.counters`, read here.

A key holds ten minutes of one name, each minute a field of its own, and expires a little after a day. The clock is that
of Redis, for those who count and those who read.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

import redis

OUTCOMES = ("done", "failed", "retried")
BUCKET_SECONDS = 600
BUCKETS = 144
KEPT_SECONDS = (BUCKETS + 2) * BUCKET_SECONDS

# Count outcomes in totals and in the minute that it is.
#
# KEYS[1]  totals: hash {outcome: count}
# KEYS[2]  beginning of the history's keys; the number of the ten minutes is added here
# ARGV     seconds that ten minutes are kept, then outcome and amount, any number of times
# Returns  nothing
#
# A script for its clock: those who count may disagree about the time. A reply that was lost is not asked for again.
COUNT = """
local minute = math.floor(redis.call('TIME')[1] / 60)
local ten = KEYS[2] .. math.floor(minute / 10)
for i = 2, #ARGV, 2 do
    redis.call('HINCRBY', KEYS[1], ARGV[i], ARGV[i + 1])
    redis.call('HINCRBY', ten, ARGV[i] .. ':' .. minute % 10, ARGV[i + 1])
end
redis.call('EXPIRE', ten, ARGV[1])
"""

Counted = dict[str, dict[str, list[int]]]


@dataclass(frozen=True, kw_only=True)
class Day:
    """The last 24 hours in buckets of ten minutes, oldest first; the last one still fills."""

    begins_at: datetime
    counts: Counted
    """By name and outcome."""


def key(name: str) -> str:
    """Return what the keys of a name's history begin with."""
    return f"qm:minutes:{name}:"


def day(client: redis.Redis, names: Iterable[str]) -> Day:
    """Return the last 24 hours of `names`; `client` decodes its replies. Raises what redis-py raises."""
    wanted, first = list(names), _now(client) // BUCKET_SECONDS - BUCKETS + 1
    with client.pipeline(transaction=False) as pipe:
        for name in wanted:
            for number in range(first, first + BUCKETS):
                pipe.hgetall(f"{key(name)}{number}")
        buckets = iter(pipe.execute())
    counts: Counted = {}
    for name in wanted:
        of_name = [_sums(next(buckets)) for _ in range(BUCKETS)]
        counts[name] = {outcome: [sums[outcome] for sums in of_name] for outcome in OUTCOMES}
    return Day(begins_at=datetime.fromtimestamp(first * BUCKET_SECONDS, UTC), counts=counts)


def last_minute(client: redis.Redis, names: Iterable[str]) -> dict[str, dict[str, int]]:
    """Return how many items of each of `names` ended how in the last full minute. Raises like `day`."""
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
