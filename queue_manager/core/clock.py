"""UTC moments as MongoDB keeps them, and the one clock: the database server's.

Guarantee: every `datetime` made here is aware, UTC and truncated to whole milliseconds, so that it equals its
stored self. `ServerClock` never runs ahead of the server, whatever the machine's own clock does.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from queue_manager.core.errors import PermanentError

RESAMPLE_AFTER = 5.0  # seconds; a quartz clock drifts by less than 1 ms in that time


def seconds(amount: float) -> timedelta:
    return timedelta(seconds=amount)


def minutes(amount: float) -> timedelta:
    return timedelta(minutes=amount)


def hours(amount: float) -> timedelta:
    return timedelta(hours=amount)


def milliseconds(span: timedelta) -> int:
    """Return `span` in whole milliseconds."""
    return span // timedelta(milliseconds=1)


def truncate(moment: datetime) -> datetime:
    """Cut `moment` to whole milliseconds: what MongoDB stores."""
    return moment.replace(microsecond=moment.microsecond // 1000 * 1000)


def to_iso(moment: datetime) -> str:
    """Write a moment as `2026-01-31T09:30:00.000Z`, the form of JavaScript's `Date`."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def parse_utc(text: str | None, *, field: str) -> datetime | None:
    """Read an ISO 8601 moment with a zone; `None` stays `None`.

    Raises:
        PermanentError: not such a moment; names `field` and the value.
    """
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is not None:
            return truncate(moment.astimezone(UTC))
    except (TypeError, ValueError, OverflowError):
        pass  # said below, as for a moment without a zone
    raise PermanentError(
        f"{field}: {text!r:.100} is not an ISO 8601 moment with a zone, such as 2026-01-31T09:30:00.000Z"
    )


class ServerClock:
    """The database server's time, asked every few seconds and carried on by the monotonic clock.

    A sample is anchored at the moment its answer arrived. The server read its clock before that, so the result
    lags by at most one round trip and is never early: nothing is judged due before it is. A forked child goes on
    with the sample of its parent.
    """

    def __init__(self, sample: Callable[[], datetime]) -> None:
        self._sample = sample
        self._anchor: tuple[datetime, float] | None = None  # replaced as a whole: threads need no lock

    def now(self) -> datetime:
        """Return the server's time. Raises what `sample` raises when the server has to be asked and is away."""
        if self._anchor is None or time.monotonic() - self._anchor[1] > RESAMPLE_AFTER:
            server_time = self._sample()
            self._anchor = (server_time.astimezone(UTC), time.monotonic())
        return self.estimate()

    def estimate(self) -> datetime:
        """Return the server's time by the latest sample, without asking; before the first, this machine's time."""
        if self._anchor is None:
            return truncate(datetime.now(UTC))
        server_time, sampled_at = self._anchor
        return truncate(server_time + timedelta(seconds=time.monotonic() - sampled_at))
