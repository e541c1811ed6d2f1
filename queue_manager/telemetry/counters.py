"""Monotonic counters in Redis, shared by all processes, for `/metrics`.

Outcomes of items are also counted per minute for a day, see `telemetry.history`.

Guarantee: counting never raises and waits at most `REDIS_TIMEOUT`. While Redis is away nothing is counted, which is
logged once; every `RETRY_DELAY` it is tried again. If Redis lost its data, counters restart at zero, as Prometheus
expects.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import accumulate, chain
from threading import Lock

import redis

from queue_manager.core.errors import reason
from queue_manager.core.log import get_logger
from queue_manager.core.redis_client import PerProcess, make_client
from queue_manager.core.settings import redact_url, settings
from queue_manager.telemetry import history

Totals = dict[str, int]

BUCKETS_MS = (10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000, 60_000)
"""Upper bounds of the histogram of scan durations; one more bucket has longer ones."""
REDIS_TIMEOUT = 0.5  # seconds that a caller waits for Redis
RETRY_DELAY = 5.0  # seconds after a failure before Redis is tried again

log = get_logger("QM/counters")


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


class _Counters:
    """The counters of this process, with a circuit breaker for Redis."""

    def __init__(self, url: str) -> None:
        self._client = make_client(url, socket_timeout=REDIS_TIMEOUT, socket_connect_timeout=REDIS_TIMEOUT)
        self._count_items = self._client.register_script(history.COUNT)
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
        keys = (_key(name), history.key(name))
        pairs: Iterable[str | int] = chain.from_iterable(outcomes.items())
        self._try(lambda: self._count_items(keys=keys, args=[history.RETENTION_SECONDS, *pairs]))

    def _try(self, count: Callable[[], object]) -> None:
        if time.monotonic() < self._try_again_at:
            return
        try:
            count()
        except redis.RedisError as error:
            self._try_again_at = time.monotonic() + RETRY_DELAY
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
