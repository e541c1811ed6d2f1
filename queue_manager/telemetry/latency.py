"""The latency of items, messages and jobs: three durations of each that was done, counted in histograms (`counters`).

`due_to_done` is the latency as people know it; `wait` is the part in which nobody worked on it, `run` the rest. All are
by the clock of the server that judges what is due.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, get_args

from queue_manager.core.clock import EPOCH, parse_utc, unix_ms
from queue_manager.core.errors import PermanentError
from queue_manager.core.histogram import BUCKETS, Histogram, bucket

Measure = Literal["due_to_done", "wait", "run"]
"""`due_to_done`: from the due time to the result. `wait`: from the due time or the dispatch, whichever was later, to
the start. `run`: from the start to the result; an item of a batch takes as long as its batch."""
MEASURES: tuple[Measure, ...] = get_args(Measure)
SENT_HEADER = "qm_sent_ms"
"""The header of an item's message that has the time of its dispatch, in Unix ms."""


def count(counts: Counter[str], *, due_ms: int | None, ready_ms: int | None, began_ms: int, ended_ms: int) -> None:
    """Add the durations of what was done to counts, like `count_all`."""
    count_all(counts, [(due_ms, ready_ms)], began_ms=began_ms, ended_ms=ended_ms)


def count_all(
    counts: Counter[str], times: Sequence[tuple[int | None, int | None]], *, began_ms: int, ended_ms: int
) -> None:
    """Add the durations of what was done together to counts, as `counters.items` takes them. Times are in Unix ms.

    Args:
        times: of each, when it was due, and the later of that and its dispatch.
    """
    # A worker that was early has waited.
    started = [began_ms if ready is None or ready < began_ms else ready for _, ready in times]
    _add(counts, "due_to_done", [ended_ms - due for due, _ in times if due is not None])
    _add(counts, "wait", [at - ready for at, (_, ready) in zip(started, times, strict=True) if ready is not None])
    _add(counts, "run", [ended_ms - at for at in started])


def _add(counts: Counter[str], measure: Measure, durations_ms: Sequence[int]) -> None:
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
    return {
        measure: Histogram.of(
            {one: counts.get(f"{measure}.{one}", 0) for one in BUCKETS}, sum_ms=counts.get(f"{measure}.sum", math.inf)
        )
        for measure in MEASURES
    }


def sum_seconds(counts: Mapping[str, int], measure: Measure) -> float:
    """Return the sum of the durations that were counted."""
    return counts.get(f"{measure}.sum", 0) / 1000
