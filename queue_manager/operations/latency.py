"""The latency of systems and jobs, as percentiles, for the overview, the history and the jobs."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import BaseModel, Field

from queue_manager.core.clock import milliseconds
from queue_manager.system import System
from queue_manager.telemetry import latency
from queue_manager.telemetry.latency import MEASURES, Histogram, Measure


class Percentiles(BaseModel):
    """Percentiles of durations, in milliseconds, interpolated within the buckets of a histogram.

    Each bucket ends at about twice its beginning. More than four hours count as four hours.
    """

    count: int = Field(description="How many durations there were.")
    p50_ms: float
    p95_ms: float
    p99_ms: float


class OnTime(BaseModel):
    """How many items were on time."""

    of: Measure = Field(description="The duration that is compared.")
    within_ms: int = Field(description="How long it may be, as the system's declaration says.")
    share: float = Field(ge=0, le=1)


class Latency(BaseModel):
    """How long items took that were done; null where there were none, or the system does not measure it."""

    due_to_done: Percentiles | None = Field(description="From the due time to the result.")
    wait: Percentiles | None = Field(description="From the due time or the dispatch, whichever is later, to the start.")
    run: Percentiles | None = Field(description="From the start to the result.")
    on_time: OnTime | None


def latency_of(system: System, counts: Mapping[str, int]) -> Latency:
    """Return the latency of a system by the durations that were counted."""
    histograms = latency.histograms(counts)
    return Latency(
        **{measure: percentiles_of(histograms[measure]) for measure in MEASURES},
        on_time=_on_time(system, histograms[system.on_time_of]),
    )


def percentiles_of(durations: Histogram) -> Percentiles | None:
    """Return the percentiles of durations; `None` if there are none."""
    found = [durations.percentile(share) for share in (0.5, 0.95, 0.99)]
    p50, p95, p99 = (None if one is None else round(one, 1) for one in found)
    if p50 is None or p95 is None or p99 is None:
        return None
    return Percentiles(count=durations.total, p50_ms=p50, p95_ms=p95, p99_ms=p99)


def _on_time(system: System, durations: Histogram) -> OnTime | None:
    within_ms = milliseconds(system.on_time_within)
    share = durations.share_within(within_ms)
    return None if share is None else OnTime(of=system.on_time_of, within_ms=within_ms, share=share)
