"""The latency of items, messages and jobs: three durations of each that was done, in histograms.

`due_to_done` is the whole latency; `wait` is the part before the start of the work, and `run` is the rest. All are by
the clock of the server that judges what is due. Redis, the scripts of the message queue, MongoDB and `/metrics` have
the same buckets.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal, Self, get_args

from queue_manager.core.clock import EPOCH, parse_utc, unix_ms
from queue_manager.core.errors import PermanentError

BOUNDS_MS = (
    *(1, 2, 4, 8, 15, 30, 60, 125, 250, 500),
    *(1_000, 2_000, 4_000, 8_000, 15_000, 30_000, 60_000, 120_000, 240_000, 480_000),
    *(900_000, 1_800_000, 3_600_000, 7_200_000, 14_400_000),
)
"""Upper bounds of the buckets in ms, up to four hours; one more bucket has longer durations.

Each bound is about twice the one before. So a percentile, which is interpolated within its bucket, is wrong by less
than a factor of two, for items that take milliseconds and for items that are hours late, with 26 numbers. The bounds
are round and never change: counts of different releases can be added.
"""
LONGER = "longer"
BUCKETS = (*map(str, BOUNDS_MS), LONGER)
"""The buckets' names in Redis and MongoDB."""


def bucket(duration_ms: float) -> str:
    """Return the name of the bucket that a duration belongs to."""
    return BUCKETS[bisect_left(BOUNDS_MS, duration_ms)]


@dataclass(frozen=True)
class Histogram:
    """Numbers of durations, one for each of `BUCKETS`."""

    counts: tuple[int, ...] = (0,) * len(BUCKETS)
    sum_ms: float = math.inf
    """The sum of the durations, if it is known."""

    @classmethod
    def of(cls, counts: Mapping[str, int], measure: Measure) -> Self:
        """Make the histogram of one measure of counts, as `count_all` adds to them."""
        return cls(tuple(counts.get(f"{measure}.{one}", 0) for one in BUCKETS), counts.get(f"{measure}.sum", math.inf))

    @property
    def total(self) -> int:
        return sum(self.counts)

    def percentile(self, share: float) -> float | None:
        """Return the duration in ms that `share` (0 to 1) of all do not exceed; `None` if there are none.

        It is interpolated within its bucket, as Prometheus does; of the last bucket it is the lower bound. It does not
        exceed the longest duration that the sum allows, which of a single one is that duration.
        """
        rank, below = share * self.total, 0
        for count, lower, upper in zip(self.counts, (0, *BOUNDS_MS), BOUNDS_MS, strict=False):
            if count and below + count >= rank:
                return min(lower + (upper - lower) * max(rank - below, 0) / count, self._longest_possible())
            below += count
        return float(BOUNDS_MS[-1]) if self.total else None

    def _longest_possible(self) -> float:
        """Return how long the longest duration is if all others are as short as their buckets allow."""
        buckets = [(count, lower) for count, lower in zip(self.counts, (0, *BOUNDS_MS), strict=True) if count]
        # The sum is too small if Redis lost that of some durations.
        return max(self.sum_ms - sum(count * lower for count, lower in buckets), 0) + buckets[-1][1]

    def count_within(self, bound_ms: int) -> int:
        """Return the number of durations up to `bound_ms`, which must be one of `BOUNDS_MS`."""
        return sum(self.counts[: BOUNDS_MS.index(bound_ms) + 1])

    def share_within(self, bound_ms: int) -> float | None:
        """Return the share of durations up to `bound_ms`, one of `BOUNDS_MS`; `None` if there are none."""
        return self.count_within(bound_ms) / self.total if self.total else None

    def cumulative(self) -> list[tuple[str, int]]:
        """Return the buckets for Prometheus: (upper bound in s, number of durations up to it)."""
        bounds = (*(str(bound / 1000) for bound in BOUNDS_MS), "+Inf")
        return list(zip(bounds, accumulate(self.counts), strict=True))


Measure = Literal["due_to_done", "wait", "run"]
"""`due_to_done`: from the due time to the result. `wait`: from the due time or the dispatch, whichever was later, to
the start. `run`: from the start to the result; an item of a batch takes as long as its batch."""
MEASURES: tuple[Measure, ...] = get_args(Measure)
SENT_HEADER = "qm_sent_ms"
"""The header of an item's message that has the time of its dispatch, in Unix ms."""


def count_all(
    counts: Counter[str], times: Sequence[tuple[int | None, int | None]], *, began_ms: int, ended_ms: int
) -> None:
    """Add the durations of what was done together to counts, as `counters.items` takes them. Times are in Unix ms.

    Args:
        times: of each, when it was due, and the later of that and its dispatch.
    """
    # A worker that was early has waited.
    started = [began_ms if ready is None or ready < began_ms else ready for _, ready in times]
    count(counts, "due_to_done", [ended_ms - due for due, _ in times if due is not None])
    count(counts, "wait", [at - ready for at, (_, ready) in zip(started, times, strict=True) if ready is not None])
    count(counts, "run", [ended_ms - at for at in started])


def count(counts: Counter[str], measure: Measure, durations_ms: Sequence[int]) -> None:
    """Add durations of one measure to counts."""
    if durations_ms:
        for name, number in Counter(map(bucket, durations_ms)).items():
            counts[f"{measure}.{name}"] += number
        counts[f"{measure}.sum"] += sum(one for one in durations_ms if one > 0)


def ready_ms(due_ms: int | None, headers: Any) -> int | None:
    """Return when a worker could start an item, in Unix ms: the latest of its due time, its dispatch and its ETA.

    Args:
        headers: of its message, or Celery's request.
    """
    sent_ms, eta = headers.get(SENT_HEADER), headers.get("eta")
    latest = due_ms
    if isinstance(sent_ms, int) and (latest is None or sent_ms > latest):
        latest = sent_ms
    if isinstance(eta, str):
        with suppress(PermanentError):  # Celery accepts more forms
            eta_ms = unix_ms(parse_utc(eta, field="eta") or EPOCH)
            latest = eta_ms if latest is None else max(latest, eta_ms)
    return latest


def histograms(counts: Mapping[str, int]) -> dict[Measure, Histogram]:
    """Return the histograms that counts have."""
    return {measure: Histogram.of(counts, measure) for measure in MEASURES}


def sum_seconds(counts: Mapping[str, int], measure: Measure) -> float:
    """Return the sum of the durations that were counted."""
    return counts.get(f"{measure}.sum", 0) / 1000
