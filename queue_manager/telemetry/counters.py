"""Totals that only grow, kept in Redis for all processes together: what `/metrics` shows.

How items end is also counted by the minute, by the clock of Redis, for a day: see `transport.history`.

Guarantee: counting never fails and hardly waits. While Redis is away nothing is counted, which is logged once, and
asked again every few seconds. A Redis that lost its data starts from zero, which Prometheus understands.
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
from queue_manager.core.per_process import PerProcess
from queue_manager.core.redis_client import make_client
from queue_manager.core.settings import masked, settings
from queue_manager.telemetry import history

Totals = dict[str, int]

BUCKETS_MS = (10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000, 60_000)
"""Upper bounds of a scan's duration; one more bucket takes what is longer."""
PATIENCE = 0.5  # seconds that one caller waits for a Redis that hangs
PAUSE = 5.0  # seconds after a failure in which nobody waits again

log = get_logger("QM/counters")


def add(name: str, amounts: Mapping[str, int]) -> None:
    """Add `amounts` to the totals of `name`, in one round trip. Best effort: never raises an error of Redis."""
    _counters().add(name, amounts)


def items(name: str, outcomes: Mapping[str, int]) -> None:
    """Count how items ended, `{done, failed, retried}`: in the totals of `name` and in its history. Like `add`."""
    _counters().items(name, outcomes)


@contextmanager
def together() -> Iterator[None]:
    """Count the items of within at its end: one round trip for each name."""
    with _counters().together():
        yield


def scan(name: str, run: Mapping[str, int]) -> None:
    """Count one run of the scan `name`: `run` is `{found, claimed, enqueued, errors, duration_ms}`."""
    add(name, {"runs": 1, **run, _bucket(run["duration_ms"]): 1})


def read(client: redis.Redis, names: Iterable[str]) -> dict[str, Totals]:
    """Return the totals of each of `names`, empty for one that counted nothing; `client` decodes its replies.

    Raises what redis-py raises.
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
    """Return the histogram of a scan's durations, as Prometheus wants it: (upper bound in s, runs up to it)."""
    counts = accumulate(totals.get(field, 0) for field in (*map(_field, BUCKETS_MS), _LONGER))
    bounds = (*(str(bound / 1000) for bound in BUCKETS_MS), "+Inf")
    return list(zip(bounds, counts, strict=True))


class _Counters:
    """This process's way to the totals, and whether it is worth trying."""

    def __init__(self, url: str) -> None:
        self._client = make_client(url, socket_timeout=PATIENCE, socket_connect_timeout=PATIENCE)
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
    def together(self) -> Iterator[None]:
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
        self._try(lambda: self._count_items(keys=keys, args=[history.KEPT_SECONDS, *pairs]))

    def _try(self, count: Callable[[], object]) -> None:
        if time.monotonic() < self._try_again_at:
            return
        try:
            count()
        except redis.RedisError as error:
            self._try_again_at = time.monotonic() + PAUSE
            self._say(is_away=True, error=error)
        else:
            self._say(is_away=False)

    def _say(self, *, is_away: bool, error: Exception | None = None) -> None:
        """Log a change once, whichever thread saw it first."""
        with self._lock:
            has_changed, self._is_away = is_away != self._is_away, is_away
        if has_changed and error is not None:
            log.warning(f"Nothing is counted: Redis at {masked(self._url)} does not answer ({reason(error)})")
        elif has_changed:
            log.info(f"Counting again: Redis at {masked(self._url)} is back")


_counters = PerProcess(lambda: _Counters(settings().redis_url))
_LONGER = "ms_longer"


def _bucket(duration_ms: int) -> str:
    return next((_field(bound) for bound in BUCKETS_MS if duration_ms <= bound), _LONGER)


def _field(bound_ms: int) -> str:
    return f"ms_{bound_ms}"


def _key(name: str) -> str:
    return f"qm:totals:{name}"
