"""The server's clock, moments as MongoDB keeps them, and the waits of a retry policy."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from queue_manager.core import clock as clock_module
from queue_manager.core.clock import (
    LAST_DATE,
    ServerClock,
    capped_sum,
    from_unix_seconds,
    hours,
    minutes,
    parse_utc,
    seconds,
    to_iso,
    truncate,
)
from queue_manager.core.errors import PermanentError
from queue_manager.core.retry import ONCE, RetryPolicy, doubling

SERVER_TIME = datetime(2026, 1, 31, 9, 30, 0, 123456, tzinfo=UTC)


class Monotonic:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def monotonic(monkeypatch: pytest.MonkeyPatch) -> Monotonic:
    fake = Monotonic()
    monkeypatch.setattr(clock_module, "time", fake)
    return fake


def test_server_time_is_queried_once_and_extrapolated(monotonic: Monotonic) -> None:
    samples = []

    def sample() -> datetime:
        samples.append(SERVER_TIME)
        return SERVER_TIME

    clock = ServerClock(sample)
    assert clock.now() == truncate(SERVER_TIME)
    monotonic.now += 4
    assert clock.now() == truncate(SERVER_TIME + seconds(4))
    assert len(samples) == 1
    monotonic.now += 2
    clock.now()
    assert len(samples) == 2


def test_estimate_extrapolates_from_the_latest_sample_without_a_query(monotonic: Monotonic) -> None:
    samples = iter([SERVER_TIME])
    clock = ServerClock(lambda: next(samples))
    assert abs(clock.estimate() - datetime.now(UTC)) < seconds(5)  # nothing is known yet
    clock.now()
    monotonic.now += 3600
    assert clock.estimate() == truncate(SERVER_TIME + seconds(3600))


def test_clock_never_runs_ahead_of_a_server_that_answers_slowly(monotonic: Monotonic) -> None:
    def slow() -> datetime:
        monotonic.now += 3
        return SERVER_TIME

    assert ServerClock(slow).now() == truncate(SERVER_TIME)


@pytest.mark.parametrize(
    ("took", "server", "expected"),
    [
        (3, 13, 13),  # its clock was read when the reply began
        (3, 10, 13),  # when it was asked: the time goes on
        (3, 11.5, 13),
        (3, 9, 12),  # the server's clock was put back
        (3, 14, 14),  # or forward
        (0, 9, 9),
    ],
)
def test_a_slow_sample_does_not_set_the_time_back(
    monotonic: Monotonic, took: float, server: float, expected: float
) -> None:
    samples = iter([(0.0, 0.0), (took, server)])

    def sample() -> datetime:
        takes, at = next(samples)
        monotonic.now += takes
        return SERVER_TIME + seconds(at)

    clock = ServerClock(sample)
    assert clock.now() == truncate(SERVER_TIME)
    monotonic.now += 10
    assert clock.now() == truncate(SERVER_TIME + seconds(expected))


def test_datetime_survives_formatting_and_parsing() -> None:
    moment = truncate(SERVER_TIME)
    assert to_iso(moment) == "2026-01-31T09:30:00.123Z"
    assert parse_utc(to_iso(moment), field="at") == moment


def test_datetime_of_another_zone_is_converted_to_utc() -> None:
    moment = parse_utc("2026-01-31T10:30:00+01:00", field="at")
    assert moment == SERVER_TIME.replace(microsecond=0)
    assert moment is not None
    assert moment.tzinfo is UTC
    assert to_iso(datetime(2026, 1, 31, 10, 30, tzinfo=timezone(timedelta(hours=1)))) == "2026-01-31T09:30:00.000Z"


def test_datetime_is_truncated_like_text_and_also_needs_a_time_zone() -> None:
    assert parse_utc(SERVER_TIME, field="at") == truncate(SERVER_TIME)
    with pytest.raises(PermanentError, match=r"at: datetime.datetime\(.*\) must be an ISO 8601 time with a time zone"):
        parse_utc(SERVER_TIME.replace(tzinfo=None), field="at")


def test_each_millisecond_in_unix_seconds_is_the_same_datetime() -> None:
    for ms in range(1000):
        assert from_unix_seconds(float(f"1769851800.{ms:03}")) == SERVER_TIME.replace(microsecond=ms * 1000)


@pytest.mark.parametrize("amount", [1e12, float("inf"), float("nan")])
def test_unix_seconds_without_a_datetime_are_refused(amount: float) -> None:
    with pytest.raises((OverflowError, ValueError)):
        from_unix_seconds(amount)


@pytest.mark.parametrize(
    ("span", "left"),
    [(hours(0), hours(2)), (hours(1), hours(1)), (hours(2), hours(0)), (hours(3), hours(0)), (timedelta.max, hours(0))],
)
def test_a_sum_ends_at_the_last_date(span: timedelta, left: timedelta) -> None:
    assert capped_sum(LAST_DATE - hours(2), span) == LAST_DATE - left


@pytest.mark.parametrize("text", ["0001-01-01T00:00:00+01:00", "9999-12-31T23:59:59-01:00"])
def test_a_datetime_beyond_the_calendar_in_utc_is_refused_like_a_malformed_one(text: str) -> None:
    with pytest.raises(PermanentError, match=r"at: .* must be an ISO 8601 time with a time zone"):
        parse_utc(text, field="at")


def test_none_is_parsed_as_none() -> None:
    assert parse_utc(None, field="at") is None


def test_time_without_a_zone_is_refused_with_the_accepted_form() -> None:
    with pytest.raises(PermanentError, match="at: '2026-01-31T09:30:00' must be an ISO 8601 time with a time zone"):
        parse_utc("2026-01-31T09:30:00", field="at")


def test_backoff_doubles_from_the_base_up_to_the_cap() -> None:
    policy = RetryPolicy(max_attempts=None, base=seconds(5), cap=minutes(1))
    assert [policy.wait_before(attempt).total_seconds() for attempt in range(2, 8)] == [5, 10, 20, 40, 60, 60]
    assert policy.allows(10**6)


def test_attempts_are_counted_from_one() -> None:
    assert (ONCE.allows(1), ONCE.allows(2)) == (True, False)


def test_jitter_stays_within_the_upper_half() -> None:
    policy = RetryPolicy(max_attempts=None, base=seconds(8), jitter=True)
    waits = {policy.wait_before(2).total_seconds() for _ in range(100)}
    assert all(4 <= wait <= 8 for wait in waits)
    assert len(waits) > 1


def test_long_history_does_not_overflow() -> None:
    assert doubling(seconds(1), 10**9, cap=minutes(10)) == minutes(10)


@given(
    base=st.timedeltas(min_value=timedelta(0)),
    cap=st.timedeltas(min_value=timedelta(0)),
    attempt=st.integers(1, 100),
)
@example(base=timedelta.max, cap=timedelta.max, attempt=100)
def test_backoff_of_any_policy_doubles_up_to_the_cap(base: timedelta, cap: timedelta, attempt: int) -> None:
    policy = RetryPolicy(max_attempts=None, base=base, cap=cap)
    assert policy.wait_before(2) == min(base, cap)
    wait, next_wait = policy.wait_before(attempt), policy.wait_before(attempt + 1)
    assert wait <= next_wait <= cap
    assert attempt == 1 or next_wait == cap or next_wait == 2 * wait
