"""Histograms of durations: their buckets, and the percentiles that are read from them."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from queue_manager.telemetry.latency import BOUNDS_MS, BUCKETS, Histogram, bucket

durations = st.lists(st.integers(0, 3 * BOUNDS_MS[-1]), min_size=1, max_size=200)
shares = st.floats(0.001, 1)


def histogram(values: list[int]) -> Histogram:
    return Histogram.of(Counter(map(bucket, values)), sum_ms=sum(values))


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
    assert Histogram.of({"125": 1, "250": 1}).percentile(1) == 250
    assert histogram([100, 150]).percentile(1) == 190  # the other one took more than 60


@given(durations, st.sampled_from(BOUNDS_MS))
def test_the_share_within_a_bound_is_exact(values: list[int], bound: int) -> None:
    assert histogram(values).share_within(bound) == sum(one <= bound for one in values) / len(values)


def test_a_percentile_is_interpolated_and_undefined_without_data() -> None:
    assert Histogram.of({"500": 4}).percentile(0.5) == 375
    assert (Histogram().percentile(0.5), Histogram().share_within(250)) == (None, None)


def test_prometheus_gets_cumulative_buckets_in_seconds() -> None:
    found = Histogram.of({"1": 2, "250": 3, "longer": 1}).cumulative()
    assert len(found) == len(BUCKETS)
    assert (found[0], found[8], found[-1]) == (("0.001", 2), ("0.25", 5), ("+Inf", 6))
