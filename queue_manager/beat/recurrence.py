"""Recurrence rules (RedBeat's `rrule`) that find their next occurrence without iterating from their start.

Guarantee: the next occurrence is the one that dateutil finds. dateutil iterates from the start of the rule, which takes
longer every day: after some days, a rule of every second needs more time than the lease of the leader. Here the
iteration begins at the last whole number of intervals before the requested moment.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from redbeat.schedules import rrule

from queue_manager.core.clock import hours, minutes, seconds

_UNITS = {
    rrule.FREQ_MAP["SECONDLY"]: seconds(1),
    rrule.FREQ_MAP["MINUTELY"]: minutes(1),
    rrule.FREQ_MAP["HOURLY"]: hours(1),
    rrule.FREQ_MAP["DAILY"]: timedelta(days=1),
    rrule.FREQ_MAP["WEEKLY"]: timedelta(weeks=1),
}
"""Units of an interval. Months and years are not: they differ in length, and there are few of them."""
_FILTERS = (
    "bysetpos",
    "bymonth",
    "bymonthday",
    "byyearday",
    "byeaster",
    "byweekno",
    "byweekday",
    "byhour",
    "byminute",
    "bysecond",
)


class NearRule:
    """Replaces dateutil's rule in a schedule whose start has a fixed offset from UTC, as RedBeat stores it."""

    def __init__(self, schedule: rrule) -> None:
        """Raises ValueError if the interval is not positive: dateutil would iterate forever."""
        if schedule.interval < 1:
            raise ValueError(f"its interval is {schedule.interval!r}, but it must be 1 or more")
        self._rule, self._count = schedule.rrule, schedule.count
        self._start = schedule.dtstart.replace(microsecond=0)
        unit = _UNITS.get(schedule.freq)
        is_filtered = any(getattr(schedule, name) is not None for name in _FILTERS)
        # With a count and a filter, nothing but iterating tells how many occurrences are left.
        self._interval = None if unit is None or (self._count and is_filtered) else schedule.interval * unit

    def after(self, moment: datetime) -> Any:
        """Return the first occurrence after `moment`; `None` if there is none."""
        if self._interval is None or moment <= self._start:
            return self._rule.after(moment)
        passed = (moment - self._start) // self._interval
        if self._count and passed >= self._count:
            return None
        left = self._count and self._count - passed
        return self._rule.replace(dtstart=self._start + passed * self._interval, count=left).after(moment)
