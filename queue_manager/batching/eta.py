"""Starts tasks at their ETA by the database server's clock, even if that clock is set while they wait.

Each task has one timer for its exact time. Timers that poll would delay the others: kombu's event loop fires ten per
turn, and then waits up to a second for another event.
"""

from __future__ import annotations

from datetime import datetime
from time import monotonic
from typing import Any

from celery import bootsteps
from celery.worker import state

from models.database import estimated_now

CLOCK_CHECK_INTERVAL = 5.0  # seconds
PRECISION = 0.05  # seconds by which the clock may have been set without an effect


class _Offsets:
    """How many seconds the server's clock was ahead of the timers' clock when the waiting timers were set."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self._lowest, self._highest = float("inf"), float("-inf")

    def now(self) -> float:
        """Return the offset of a timer that is set now."""
        offset = estimated_now().timestamp() - monotonic()
        self._lowest, self._highest = min(self._lowest, offset), max(self._highest, offset)
        return offset

    def have_changed(self) -> bool:
        offset = self.now()
        return max(offset - self._lowest, self._highest - offset) > PRECISION


_offsets = _Offsets()


def timer_time(eta: datetime, _: Any = None) -> float:
    """Convert an ETA to the monotonic clock of the worker's timer."""
    return eta.timestamp() - _offsets.now()


class EtaTimers(bootsteps.StartStopStep):
    """Sets the timers again after the server's clock was set, so that its error does not become a delay."""

    requires = ("celery.worker.consumer.tasks:Tasks",)
    _timer: Any = None

    def start(self, parent: Any) -> None:
        self._timer = parent.timer.call_repeatedly(CLOCK_CHECK_INTERVAL, check, (parent.timer,))

    def stop(self, parent: Any) -> None:
        if self._timer is not None:  # Celery also stops steps that have not started
            self._timer.cancel()


def check(timer: Any) -> None:
    """Set all timers again if the server's clock was set since one of them was."""
    if not _offsets.have_changed():
        return
    _offsets.forget()
    for request in tuple(state.scheduled_requests):
        if request not in state.scheduled_requests:
            continue  # started by its timer meanwhile: eventlet runs other timers while one is canceled
        timer_or_greenlet = request._eta_timer_entry
        entry = getattr(timer_or_greenlet, "entry", timer_or_greenlet)
        timer_or_greenlet.cancel()
        request._eta_timer_entry = timer.call_at(timer_time(request.eta), entry.fun, entry.args, priority=6)
