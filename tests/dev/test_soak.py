"""The soak test distinguishes a leak from the noise of memory."""

from __future__ import annotations

from benchmarks.soak.memory import MAX_GROWTH, Growth, Sample, growth

SECONDS = [10.0 * number for number in range(120)]
PEAKS = {20: 40.0, 50: 25.0, 119: 60.0}  # MB by sample


def noisy(start: float, per_hour: float) -> list[float]:
    """Return 20 minutes of memory in MB: a trend, a saw-tooth of 2 MB, and three peaks."""
    trend = (start + per_hour * second / 3600 for second in SECONDS)
    return [value + number % 5 / 2 + PEAKS.get(number, 0) for number, value in enumerate(trend)]


def of(proportional: list[float], resident: list[float]) -> Growth:
    return growth("worker", SECONDS, [*map(Sample, proportional, resident)])


def test_peaks_and_a_saw_tooth_are_not_a_leak() -> None:
    found = of(noisy(70, 0), noisy(90, 0))
    assert abs(found.per_hour) < 1
    assert not found.is_leak


def test_a_small_steady_growth_is_a_leak() -> None:
    found = of(noisy(70, 2 * MAX_GROWTH), noisy(90, 2 * MAX_GROWTH))
    assert abs(found.per_hour - 2 * MAX_GROWTH) < 1
    assert found.is_leak


def test_pages_that_are_no_longer_shared_are_not_a_leak() -> None:
    assert not of(noisy(40, 2 * MAX_GROWTH), noisy(90, 0)).is_leak


def test_memory_that_is_released_is_not_a_leak() -> None:
    assert not of(noisy(70, -50), noisy(90, -50)).is_leak


def test_growth_shows_the_first_and_the_last_share() -> None:
    found = of([70.0] * 60 + [75.0] * 60, [90.0] * 120)
    assert (found.first, found.last) == (70.0, 75.0)
