"""Put first on PYTHONPATH: the clock of the process is off by SHIFTED_CLOCK_SECONDS. The monotonic clock is left alone.

The interpreter imports this module before any other, so that all of them see the shifted clock.
"""

from __future__ import annotations

import datetime
import os
import time
from typing import Any

_SHIFT = float(os.environ.get("SHIFTED_CLOCK_SECONDS", "0"))
_DATETIME, _TIME, _TIME_NS = datetime.datetime, time.time, time.time_ns


class _AnyDatetime(type):
    """Makes datetimes that C code created count as instances, too."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, _DATETIME)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, _DATETIME)


class _ShiftedDatetime(_DATETIME, metaclass=_AnyDatetime):
    @classmethod
    def now(cls, tz: Any = None) -> Any:
        return _DATETIME.now(tz) + datetime.timedelta(seconds=_SHIFT)

    @classmethod
    def utcnow(cls) -> Any:
        return _DATETIME.now(datetime.UTC).replace(tzinfo=None) + datetime.timedelta(seconds=_SHIFT)


if _SHIFT:
    time.time = lambda: _TIME() + _SHIFT
    time.time_ns = lambda: _TIME_NS() + round(_SHIFT * 1e9)
    datetime.datetime = _ShiftedDatetime  # type: ignore[misc]
