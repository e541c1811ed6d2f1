"""Put first on PYTHONPATH: the clock of the process is off by SHIFTED_CLOCK_SECONDS. The monotonic clock is left alone.

With SHIFTED_CLOCK_FILE, the seconds are in this file, as a C double, and may change at any time.

The interpreter imports this module before any other, so that all of them see the shifted clock.
"""

from __future__ import annotations

import copyreg
import datetime
import mmap
import os
import struct
import time
from collections.abc import Callable
from typing import Any

_DATETIME, _TIME, _TIME_NS = datetime.datetime, time.time, time.time_ns


def _shift_of() -> Callable[[], float]:
    """Return the function that returns by how many seconds the clock is off."""
    if path := os.environ.get("SHIFTED_CLOCK_FILE"):
        with open(path, "rb") as file:
            seconds = mmap.mmap(file.fileno(), 8, access=mmap.ACCESS_READ)
        return lambda: float(struct.unpack_from("d", seconds)[0])
    fixed = float(os.environ.get("SHIFTED_CLOCK_SECONDS", "0"))
    return lambda: fixed


_shift = _shift_of()


class _AnyDatetime(type):
    """Makes datetimes that C code created count as instances, too."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, _DATETIME)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, _DATETIME)


class _ShiftedDatetime(datetime.datetime, metaclass=_AnyDatetime):
    @classmethod
    def now(cls, tz: Any = None) -> Any:
        return _DATETIME.now(tz) + datetime.timedelta(seconds=_shift())

    @classmethod
    def utcnow(cls) -> Any:
        return _DATETIME.now(datetime.UTC).replace(tzinfo=None) + datetime.timedelta(seconds=_shift())


def _rebuilt(*state: Any) -> datetime.datetime:
    return _DATETIME(*state)


if {"SHIFTED_CLOCK_FILE", "SHIFTED_CLOCK_SECONDS"} & {*os.environ}:
    time.time = lambda: _TIME() + _shift()
    time.time_ns = lambda: _TIME_NS() + round(_shift() * 1e9)
    datetime.datetime = _ShiftedDatetime  # type: ignore[misc]
    # Instances of the original class could not be pickled: its name leads to the other class.
    copyreg.pickle(_DATETIME, lambda one: (_rebuilt, one.__reduce_ex__(4)[1]))  # type: ignore[arg-type, return-value]
