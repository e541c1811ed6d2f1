"""The latency of items, messages and jobs: three durations of each that was done, counted in histograms (`counters`).

`due_to_done` is the latency as people know it; `wait` is the part in which nobody worked on it, `run` the rest. All are
by the clock of the server that judges what is due.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
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
    """Add the durations of what was done to counts, as `counters.items` takes them. Times are in Unix ms.

    Args:
        ready_ms: the later of the due time and the dispatch.
    """
    started_ms = began_ms if ready_ms is None else max(began_ms, ready_ms)  # a worker that was early has waited
    _add(counts, "due_to_done", due_ms, ended_ms)
    _add(counts, "wait", ready_ms, started_ms)
    _add(counts, "run", started_ms, ended_ms)


def _add(counts: Counter[str], measure: Measure, start_ms: int | None, end_ms: int) -> None:
    if start_ms is not None:
        duration_ms = max(end_ms - start_ms, 0)
        counts[f"{measure}.{bucket(duration_ms)}"] += 1
        counts[f"{measure}.sum"] += duration_ms


def ready_ms(due_ms: int | None, headers: Any) -> int | None:
    """Return when a worker could start an item, in Unix ms: the latest of its due time, its dispatch and its ETA.

    Args:
        headers: of its message, or Celery's request.
    """
    sent_ms, eta = headers.get(SENT_HEADER), headers.get("eta")
    times = [due_ms, sent_ms if isinstance(sent_ms, int) else None]
    if isinstance(eta, str):
        with suppress(PermanentError):  # Celery accepts more forms
            times.append(unix_ms(parse_utc(eta, field="eta") or EPOCH))
    return max((one for one in times if one is not None), default=None)


def histograms(counts: Mapping[str, int]) -> dict[Measure, Histogram]:
    """Return the histograms that counts have."""
    return {measure: Histogram.of({one: counts.get(f"{measure}.{one}", 0) for one in BUCKETS}) for measure in MEASURES}


def sum_seconds(counts: Mapping[str, int], measure: Measure) -> float:
    """Return the sum of the durations that were counted."""
    return counts.get(f"{measure}.sum", 0) / 1000
