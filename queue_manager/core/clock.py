"""UTC times as MongoDB stores them, and the clock of the database server.

Guarantee: every `datetime` made here is aware, UTC and truncated to whole milliseconds, so that it equals its
stored value. `ServerClock` never runs ahead of the server, regardless of the clock of this machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import lru_cache

from queue_manager.core.errors import PermanentError

RESAMPLE_AFTER = 5.0  # seconds; a quartz clock drifts by less than 1 ms in that time


def seconds(amount: float) -> timedelta:
    return timedelta(seconds=amount)


def minutes(amount: float) -> timedelta:
    return timedelta(minutes=amount)


def hours(amount: float) -> timedelta:
    return timedelta(hours=amount)


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LAST_DATE = datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC)
"""The driver of MongoDB reads later dates as this one."""
MAX_CLOCK_SKEW = seconds(2)  # a larger difference between two machines is reported
MIN_MILLISECONDS = 1e11  # a number of time from here on is in milliseconds; as seconds it would be the year 5138
MILLISECOND = timedelta(milliseconds=1)


def local_now() -> datetime:
    """Return the time of this machine, for what must go on while no database answers."""
    return datetime.now(UTC)


def milliseconds(span: timedelta) -> int:
    """Return `span` in whole milliseconds."""
    return span // MILLISECOND


def unix_ms(moment: datetime) -> int:
    """Return a time in milliseconds since 1970."""
    return milliseconds(moment - EPOCH)


def from_unix_ms(amount: float) -> datetime:
    """Return the time of a number of milliseconds since 1970."""
    return EPOCH + amount * MILLISECOND


def from_unix_seconds(amount: float) -> datetime:
    """Return the time of a number of seconds since 1970. Raises OverflowError or ValueError if there is none."""
    return truncate(EPOCH + seconds(amount))


def capped_sum(moment: datetime, span: timedelta) -> datetime:
    """Return the time `span` after `moment`, at most `LAST_DATE`."""
    return moment + span if span <= LAST_DATE - moment else LAST_DATE


def truncate(moment: datetime) -> datetime:
    """Truncate a time to whole milliseconds, as MongoDB stores it."""
    rest = moment.microsecond % 1000
    return moment.replace(microsecond=moment.microsecond - rest) if rest else moment


@lru_cache(maxsize=128)  # the items of a batch share their time
def to_iso(moment: datetime) -> str:
    """Format a time as `2026-01-31T09:30:00.000Z`, the form of JavaScript's `Date`."""
    utc = moment if moment.tzinfo is UTC else moment.astimezone(UTC)
    return f"{utc.isoformat(timespec='milliseconds')[:-6]}Z"


def parse_utc(text: str | datetime | None, *, field: str) -> datetime | None:
    """Parse an ISO 8601 time with a time zone; return `None` for `None`. Messages of Celery may contain a datetime.

    Raises:
        PermanentError: the text is not valid; names `field` and the value.
    """
    if text is None:
        return None
    try:
        moment = text if isinstance(text, datetime) else datetime.fromisoformat(text)
        if moment.tzinfo is not None:
            return truncate(moment if moment.tzinfo is UTC else moment.astimezone(UTC))
    except (TypeError, ValueError, OverflowError):
        pass  # raised below, as for a time without a time zone
    raise PermanentError(
        f"{field}: {text!r:.100} must be an ISO 8601 time with a time zone, such as 2026-01-31T09:30:00.000Z"
    )


class Pace:
    """Lets this process do something once per interval."""

    def __init__(self, interval: timedelta) -> None:
        self._interval = interval.total_seconds()
        self._next_at = 0.0

    def allows(self) -> bool:
        """Return True if the interval is over since the last call that did."""
        now = time.monotonic()
        if now < self._next_at:
            return False
        self._next_at = now + self._interval
        return True


class ServerClock:
    """The database server's time, sampled every few seconds and extrapolated by the monotonic clock.

    A sample is anchored at the arrival of its reply. The server read its clock before that, so the result lags by at
    most one round trip and is never early: nothing becomes due too soon. A later sample that took longer does not put
    it back. A forked child continues with the sample of its parent.
    """

    def __init__(self, sample: Callable[[], datetime]) -> None:
        self._sample = sample
        self._anchor: tuple[datetime, float] | None = None  # replaced atomically, so that threads need no lock

    def now(self) -> datetime:
        """Return the server's time. Raises the errors of `sample`."""
        if self._anchor is None or time.monotonic() - self._anchor[1] > RESAMPLE_AFTER:
            before, asked_at = self._anchor, time.monotonic()
            server_time, arrived_at = self._sample().astimezone(UTC), time.monotonic()
            if before is not None:  # it may be anywhere within the round trip
                expected = before[0] + timedelta(seconds=arrived_at - before[1])
                latest = server_time + timedelta(seconds=arrived_at - asked_at)
                server_time = min(max(expected, server_time), latest)
            self._anchor = (server_time, arrived_at)
        return self.estimate()

    def estimate(self) -> datetime:
        """Return the server's time by the latest sample; before the first one, the time of this machine."""
        if self._anchor is None:
            return truncate(datetime.now(UTC))
        server_time, sampled_at = self._anchor
        return truncate(server_time + timedelta(seconds=time.monotonic() - sampled_at))
