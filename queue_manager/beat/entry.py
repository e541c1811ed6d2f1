"""Entries of the schedule, as RedBeat stores them in Redis.

Guarantee: periods of at most `MAX_ALIGNED_PERIOD` end at their multiples since 1970, as `*/5` in a crontab does, so
that entries are due at the same time and none drifts.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any, Self

from celery.schedules import schedstate, schedule
from redbeat.decoder import RedBeatJSONEncoder
from redbeat.schedulers import RedBeatSchedulerEntry, get_redis
from redbeat.schedules import rrule

from queue_manager.core.clock import EPOCH, hours, minutes, seconds

MAX_ALIGNED_PERIOD = minutes(1)
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
    """Replaces dateutil's rule in a schedule whose start has a fixed offset from UTC, as RedBeat stores it.

    Guarantee: the next occurrence is the one that dateutil finds. dateutil iterates from the start of the rule, which
    takes longer every day: after some days, a rule of every second needs more time than the lease of the leader. Here
    the iteration begins at the last whole number of intervals before the requested moment.
    """

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


class EntryMissing(KeyError):
    """The schedule names an entry that does not exist."""


class StoredEntry(RedBeatSchedulerEntry):
    """A schedule entry stored in Redis."""

    @classmethod
    def from_key(cls, key: str, app: Any = None) -> Self:
        """Load the entry. An entry whose last run is in the future beyond its next run is due now.

        It was written while the clock of Redis, or of a beat of an older release, ran ahead; waiting for that time
        could take hours.
        """
        definition, meta = get_redis(app).hmget(key, "definition", "meta")
        if not definition:
            raise EntryMissing(key)
        fields = {**cls.decode_definition(definition), **cls.decode_meta(meta)}
        entry = cls(app=app, **fields)
        if (period := entry._period()) is not None and period <= timedelta(0):
            raise ValueError(f"its interval is {period}, but it must be longer than 0")
        if isinstance(entry.schedule, rrule):
            entry.schedule.rrule = NearRule(entry.schedule)
        entry.last_run_at = fields["last_run_at"]  # Celery replaces `None` by the current time
        if entry.last_run_at is not None:
            now = entry.default_now()
            until_next: timedelta | None = entry.schedule.remaining_estimate(now)
            if until_next is not None and entry.last_run_at - now > until_next:
                entry.last_run_at = None
        return entry

    @property
    def score(self) -> float:
        """The next run in Unix seconds, or -1. RedBeat rounds it down, so that an entry is loaded before it is due."""
        next_run = self.due_at
        return -1.0 if next_run is None else max(next_run.timestamp(), 0.0)

    @property
    def due_at(self) -> datetime | None:
        """The next run; `None` if there is none. RedBeat's is early by the time since the last run."""
        if self.last_run_at is None:
            return self._now()
        period = self._period()
        if period is None:
            left: timedelta | None = self.schedule.remaining_estimate(self.last_run_at)
            return None if left is None else self._now() + left
        # In UTC: between two times of one zone, Python ignores the changes to and from summer time.
        last_run: datetime = self.schedule.maybe_make_aware(self.last_run_at).astimezone(UTC)
        return last_run + period - ((last_run - EPOCH) % period if period <= MAX_ALIGNED_PERIOD else timedelta(0))

    def is_due(self) -> schedstate:
        period, due_at = self._period(), self.due_at
        if period is None or due_at is None or not self.enabled:
            return super().is_due()
        left = (due_at - self._now()).total_seconds()
        return schedstate(left <= 0, left if left > 0 else period.total_seconds())

    def _period(self) -> timedelta | None:
        """Return the period of an entry that runs at intervals."""
        is_interval = type(self.schedule) is schedule and not self.schedule.relative
        return self.schedule.run_every if is_interval else None

    def _now(self) -> datetime:
        now: datetime = self.default_now()
        return now.astimezone(UTC)

    def _next_instance(self) -> Self:
        """Record a run and the next one, like RedBeat, but without a transaction: half of it leaves the entry due."""
        # The clock may go back by the time of a round trip. The run would then count as one of the period before.
        run_at = max(self._now(), self.due_at or EPOCH)
        entry: Self = super(RedBeatSchedulerEntry, self)._next_instance(last_run_at=run_at)
        meta = {"last_run_at": entry.last_run_at, "total_run_count": entry.total_run_count}
        with get_redis(self.app).pipeline(transaction=False) as pipe:
            pipe.hset(self.key, "meta", json.dumps(meta, cls=RedBeatJSONEncoder))
            pipe.zadd(self.app.redbeat_conf.schedule_key, {entry.key: entry.score})
            pipe.execute()
        return entry

    __next__ = next = _next_instance
