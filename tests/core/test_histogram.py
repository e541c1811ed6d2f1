"""Durations: when they begin, the buckets of their histograms, and the percentiles that are read from them."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queue_manager.telemetry.latency import (
    BOUNDS_MS,
    BUCKETS,
    SENT_HEADER,
    Histogram,
    bucket,
    count_all,
    ready_ms,
    sum_seconds,
)

durations = st.lists(st.integers(0, 3 * BOUNDS_MS[-1]), min_size=1, max_size=200)
shares = st.floats(0.001, 1)


def histogram(values: list[int]) -> Histogram:
    return of_buckets({**Counter(map(bucket, values)), "sum": sum(values)})


def of_buckets(counts: Mapping[str, int]) -> Histogram:
    return Histogram.of({f"run.{name}": count for name, count in counts.items()}, "run")


def test_each_bound_is_about_twice_the_one_before() -> None:
    steps = [later / earlier for earlier, later in pairwise(BOUNDS_MS)]
    assert 1.8 < min(steps) <= max(steps) < 2.1


def test_a_duration_at_a_bound_belongs_to_its_bucket() -> None:
    assert [bucket(ms) for ms in (0, 1, 2, 250, 251, 14_400_000, 14_400_001)] == [
        *("1", "1", "2", "250", "500", "14400000", "longer")
    ]


@given(durations, shares)
def test_a_percentile_is_within_the_bucket_of_the_duration_with_its_rank(values: list[int], share: float) -> None:
    found = histogram(values).percentile(share)
    rank = max(-(-len(values) * share // 1), 1)  # rounded up
    exact = sorted(values)[min(int(rank), len(values)) - 1]
    number = bisect_left(BOUNDS_MS, exact)
    lower, upper = (0, *BOUNDS_MS)[number], (*BOUNDS_MS, BOUNDS_MS[-1])[number]
    assert found is not None
    assert lower <= found <= upper


@given(durations)
def test_percentiles_are_monotonic(values: list[int]) -> None:
    found = [histogram(values).percentile(share / 100) or 0 for share in range(1, 101)]
    assert found == sorted(found)


@given(st.integers(0, 3 * BOUNDS_MS[-1]))
def test_a_percentile_of_one_duration_does_not_exceed_it(value: int) -> None:
    found = histogram([value]).percentile(0.99)
    assert found is not None
    assert found <= value


def test_a_percentile_does_not_exceed_the_limit_implied_by_the_sum() -> None:
    assert of_buckets({"125": 1, "250": 1}).percentile(1) == 250
    assert histogram([100, 150]).percentile(1) == 190  # the other one took more than 60


def test_a_percentile_is_not_negative_if_the_sum_of_some_durations_was_lost() -> None:
    merged = of_buckets({"250": 3, "240000": 2, "sum": 600})  # Redis lost the sum of the long ones
    assert merged.percentile(0.5) == pytest.approx(125 + 125 * 2.5 / 3)
    assert merged.percentile(0.99) == 120_000


@given(durations, st.sampled_from(BOUNDS_MS))
def test_the_share_within_a_bound_is_exact(values: list[int], bound: int) -> None:
    assert histogram(values).share_within(bound) == sum(one <= bound for one in values) / len(values)


def test_a_percentile_is_interpolated_and_undefined_without_data() -> None:
    assert of_buckets({"500": 4}).percentile(0.5) == 375
    assert (Histogram().percentile(0.5), Histogram().share_within(250)) == (None, None)


def test_prometheus_gets_cumulative_buckets_in_seconds() -> None:
    found = of_buckets({"1": 2, "250": 3, "longer": 1}).cumulative()
    assert len(found) == len(BUCKETS)
    assert (found[0], found[8], found[-1]) == (("0.001", 2), ("0.25", 5), ("+Inf", 6))


def test_durations_begin_when_an_item_is_ready_and_none_is_negative_in_the_sum() -> None:
    counts = Counter[str]()
    ready_after_the_begin, without_due_time, early = (1_000, 1_200), (None, None), (5_000, 5_000)
    count_all(counts, [ready_after_the_begin, without_due_time, early], began_ms=1_100, ended_ms=2_000)
    sums = {measure: sum_seconds(counts, measure) for measure in ("due_to_done", "wait", "run")}
    assert sums == {"due_to_done": 1.0, "wait": 0.0, "run": 1.7}


def test_an_item_is_ready_at_the_latest_of_its_due_time_dispatch_and_eta() -> None:
    early, late = (f"1970-01-01T00:00:00.00{ms}Z" for ms in (6, 9))
    assert (ready_ms(None, {}), ready_ms(5, {}), ready_ms(5, {"eta": "soon"})) == (None, 5, 5)
    assert (ready_ms(5, {SENT_HEADER: 7}), ready_ms(7, {SENT_HEADER: 5})) == (7, 7)
    assert [ready_ms(5, {SENT_HEADER: 7, "eta": eta}) for eta in (early, late)] == [7, 9]
