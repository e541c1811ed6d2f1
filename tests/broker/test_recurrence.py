"""Recurrence rules have the occurrences that dateutil finds, and find them quickly for old rules too."""

from __future__ import annotations

import random
import time
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from redbeat.schedules import rrule

from queue_manager.beat.entry import NearRule
from queue_manager.core.clock import seconds

START = datetime(2026, 1, 28, 22, 58, 57, 250_000, tzinfo=timezone(timedelta(hours=5, minutes=30)))
UNITS = {
    "SECONDLY": seconds(1),
    "MINUTELY": timedelta(minutes=1),
    "HOURLY": timedelta(hours=1),
    "DAILY": timedelta(days=1),
    "WEEKLY": timedelta(weeks=1),
    "MONTHLY": timedelta(days=30),
    "YEARLY": timedelta(days=365),
}
FILTERS: list[dict[str, Any]] = [
    {},
    {"bymonth": [2, 11]},
    {"byweekday": [0, 3]},
    {"byhour": [3, 22], "byminute": [0, 59]},
    {"bysecond": [1, 57]},
    {"byhour": [1, 5, 23], "bysetpos": [1, -1]},
    {"byweekday": [1, 6], "wkst": 3},
    {"byweekno": [20]},
    {"bymonthday": [-1]},
]


@pytest.mark.parametrize("freq", UNITS)
def test_next_occurrence_equals_that_of_dateutil(freq: str) -> None:
    chance = random.Random(freq)
    for options in FILTERS:
        for interval in (1, 2, 5):  # of which each filter matches some
            most = 30 if freq in ("MONTHLY", "YEARLY") else 400
            limits: list[dict[str, Any]] = [{"until": START + most * UNITS[freq]}] if options else []
            if not options or freq not in ("SECONDLY", "MINUTELY"):  # of which a filter may skip millions
                limits.append({"count": chance.randrange(1, 9 if options else most)})
            for ends in limits:
                try:
                    schedule = rrule(freq, dtstart=START, interval=interval, **ends, **options)
                except ValueError:  # a filter that this interval never meets
                    continue
                near = NearRule(schedule)
                for _ in range(5):
                    moment = START + chance.uniform(-5, most + 5) * UNITS[freq]
                    assert near.after(moment) == schedule.rrule.after(moment), (options, interval, moment)
                    if (occurrence := schedule.rrule.after(moment)) is not None:
                        assert near.after(occurrence) == schedule.rrule.after(occurrence)


@pytest.mark.parametrize(
    "options",
    [{}, {"interval": 7}, {"count": 10**9}, {"bysecond": [0, 30]}, {"until": datetime(2099, 1, 1, tzinfo=UTC)}],
)
def test_next_occurrence_is_as_fast_for_a_rule_that_began_ten_years_ago(options: dict[str, Any]) -> None:
    now = datetime(2026, 6, 1, tzinfo=UTC)
    near = NearRule(rrule("SECONDLY", dtstart=now - timedelta(days=3650), **options))
    began = time.thread_time()
    assert now < near.after(now) <= now + seconds(60)
    assert time.thread_time() - began < 1  # dateutil needs minutes


@pytest.mark.parametrize("interval", [0, -1])
def test_an_interval_that_never_ends_is_refused(interval: int) -> None:
    with pytest.raises(ValueError, match=f"its interval is {interval}, but it must be 1 or more"):
        NearRule(rrule("DAILY", dtstart=START, interval=interval))
