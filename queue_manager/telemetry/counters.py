"""Counters in Redis, shared by all processes: totals for `/metrics`, and outcomes of items per minute for a day.

A key of the history has ten minutes of one name, with one field per minute and outcome, and expires soon after a day.
Writers and readers use the clock of Redis.

Guarantee: counting never raises and waits at most `COUNT_TIMEOUT`. While Redis is unavailable nothing is counted; that
is logged once, and Redis is tried again every `COUNT_RETRY_DELAY`. If Redis lost its data, counters restart at zero, as
Prometheus expects.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import accumulate, chain
from threading import Lock

import redis

from queue_manager.core.errors import reason
from queue_manager.core.log import get_logger
from queue_manager.core.redis_client import PerProcess, make_client
from queue_manager.core.settings import redact_url, settings

Totals = dict[str, int]

BUCKETS_MS = (10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000, 60_000)
"""Upper bounds of the histogram of scan durations; one more bucket has longer ones."""
COUNT_TIMEOUT = 0.5  # seconds that a caller waits for Redis
COUNT_RETRY_DELAY = 5.0  # seconds after a failure before Redis is tried again

OUTCOMES = ("done", "failed", "retried")
BUCKET_SECONDS = 600
HISTORY_BUCKETS = 144
HISTORY_RETENTION_SECONDS = (HISTORY_BUCKETS + 2) * BUCKET_SECONDS

# Counts outcomes in the totals and in the current minute.
#
# KEYS[1]  totals: hash {outcome: count}
# KEYS[2]  prefix of the history's keys; the script appends the number of the ten minutes
# ARGV     retention in seconds, then any number of outcomes and amounts
# Returns  nothing
#
# A script, because it needs the clock of Redis. Atomic, so that totals and history agree. Never retried.
COUNT_OUTCOMES = """
local minute = math.floor(redis.call('TIME')[1] / 60)
local ten = KEYS[2] .. math.floor(minute / 10)
for i = 2, #ARGV, 2 do
    redis.call('HINCRBY', KEYS[1], ARGV[i], ARGV[i + 1])
    redis.call('HINCRBY', ten, ARGV[i] .. ':' .. minute % 10, ARGV[i + 1])
end
redis.call('EXPIRE', ten, ARGV[1])
"""

log = get_logger("QM/counters")


@dataclass(frozen=True, kw_only=True)
class History:
    """The last 24 hours in buckets of ten minutes, oldest first; the last one is incomplete."""

    begins_at: datetime
    counts: dict[str, dict[str, list[int]]]
    """By name and outcome."""


def add(name: str, amounts: Mapping[str, int]) -> None:
    """Add `amounts` to the totals of `name`, in one round trip. Best effort: never raises an error of Redis."""
    _counters().add(name, amounts)


def items(name: str, outcomes: Mapping[str, int]) -> None:
    """Count outcomes of items, `{done, failed, retried}`, in the totals and the history of `name`. Like `add`."""
    _counters().items(name, outcomes)


@contextmanager
def batched() -> Iterator[None]:
    """Collect the item counts of the block and write them at its end: one round trip per name."""
    with _counters().batched():
        yield


def scan(name: str, run: Mapping[str, int]) -> None:
    """Count one run of the scan `name`: `run` is `{found, claimed, enqueued, errors, duration_ms}`."""
    add(name, {"runs": 1, **run, _bucket(run["duration_ms"]): 1})


def read(client: redis.Redis, names: Iterable[str]) -> dict[str, Totals]:
    """Return the totals of each of `names`, empty if nothing was counted; `client` must decode its replies.

    Raises the errors of redis-py.
    """
    wanted = list(names)
    with client.pipeline(transaction=False) as pipe:
        for name in wanted:
            pipe.hgetall(_key(name))
        found = pipe.execute()
    return {
        name: {field: int(total) for field, total in totals.items()} for name, totals in zip(wanted, found, strict=True)
    }


def durations(totals: Totals) -> list[tuple[str, int]]:
    """Return the cumulative histogram of scan durations for Prometheus: (upper bound in s, number of runs)."""
    counts = accumulate(totals.get(field, 0) for field in (*map(_field, BUCKETS_MS), _LONGER))
    bounds = (*(str(bound / 1000) for bound in BUCKETS_MS), "+Inf")
    return list(zip(bounds, counts, strict=True))


def last_day(client: redis.Redis, names: Iterable[str]) -> History:
    """Return the last 24 hours of `names`; `client` must decode its replies. Raises the errors of redis-py."""
    wanted, first = list(names), _now(client) // BUCKET_SECONDS - HISTORY_BUCKETS + 1
    with client.pipeline(transaction=False) as pipe:
        for name in wanted:
            for number in range(first, first + HISTORY_BUCKETS):
                pipe.hgetall(f"{history_key(name)}{number}")
        buckets = iter(pipe.execute())
    counts = dict[str, dict[str, list[int]]]()
    for name in wanted:
        of_name = [_sums(next(buckets)) for _ in range(HISTORY_BUCKETS)]
        counts[name] = {outcome: [sums[outcome] for sums in of_name] for outcome in OUTCOMES}
    return History(begins_at=datetime.fromtimestamp(first * BUCKET_SECONDS, UTC), counts=counts)


def last_minute(client: redis.Redis, names: Iterable[str]) -> dict[str, dict[str, int]]:
    """Return the number of items by name and outcome in the last full minute. Raises like `last_day`."""
    wanted, minute = list(names), _now(client) // 60 - 1
    with client.pipeline(transaction=False) as pipe:
        for name in wanted:
            pipe.hmget(f"{history_key(name)}{minute // 10}", [f"{outcome}:{minute % 10}" for outcome in OUTCOMES])
        found = pipe.execute()
    return {
        name: {outcome: int(count or 0) for outcome, count in zip(OUTCOMES, counts, strict=True)}
        for name, counts in zip(wanted, found, strict=True)
    }


def history_key(name: str) -> str:
    """Return the prefix of the keys that have the history of a name."""
    return f"qm:minutes:{name}:"


class _Counters:
    """The counters of this process, with a circuit breaker for Redis."""

    def __init__(self, url: str) -> None:
        self._client = make_client(url, socket_timeout=COUNT_TIMEOUT, socket_connect_timeout=COUNT_TIMEOUT)
        self._count_items = self._client.register_script(COUNT_OUTCOMES)
        self._url = url
        self._is_away = False
        self._try_again_at = 0.0
        self._lock = Lock()
        self._collected: dict[str, Counter[str]] | None = None

    def add(self, name: str, amounts: Mapping[str, int]) -> None:
        def count() -> None:
            with self._client.pipeline(transaction=False) as pipe:
                for field, amount in amounts.items():
                    pipe.hincrby(_key(name), field, amount)
                pipe.execute()

        self._try(count)

    @contextmanager
    def batched(self) -> Iterator[None]:
        collected: dict[str, Counter[str]] = defaultdict(Counter)
        self._collected = collected
        try:
            yield
        finally:
            self._collected = None
            for name, outcomes in collected.items():
                self.items(name, outcomes)

    def items(self, name: str, outcomes: Mapping[str, int]) -> None:
        if self._collected is not None:
            self._collected[name].update(outcomes)
            return
        keys = (_key(name), history_key(name))
        pairs: Iterable[str | int] = chain.from_iterable(outcomes.items())
        self._try(lambda: self._count_items(keys=keys, args=[HISTORY_RETENTION_SECONDS, *pairs]))

    def _try(self, count: Callable[[], object]) -> None:
        if time.monotonic() < self._try_again_at:
            return
        try:
            count()
        except redis.RedisError as error:
            self._try_again_at = time.monotonic() + COUNT_RETRY_DELAY
            self._log_change(is_away=True, error=error)
        else:
            self._log_change(is_away=False)

    def _log_change(self, *, is_away: bool, error: Exception | None = None) -> None:
        """Log a change of availability once."""
        with self._lock:
            has_changed, self._is_away = is_away != self._is_away, is_away
        if has_changed and error is not None:
            log.warning(f"Nothing is counted: Redis at {redact_url(self._url)} does not answer ({reason(error)})")
        elif has_changed:
            log.info(f"Counting again: Redis at {redact_url(self._url)} is back")


_counters = PerProcess(lambda: _Counters(settings().redis_url))
_LONGER = "ms_longer"


def _bucket(duration_ms: int) -> str:
    return next((_field(bound) for bound in BUCKETS_MS if duration_ms <= bound), _LONGER)


def _field(bound_ms: int) -> str:
    return f"ms_{bound_ms}"


def _key(name: str) -> str:
    return f"qm:totals:{name}"


def _now(client: redis.Redis) -> int:
    now: tuple[int, int] = client.time()
    return int(now[0])


def _sums(bucket: dict[str, str]) -> dict[str, int]:
    sums = dict.fromkeys(OUTCOMES, 0)
    for field, count in bucket.items():
        outcome = field.partition(":")[0]
        sums[outcome] = sums.get(outcome, 0) + int(count)
    return sums
