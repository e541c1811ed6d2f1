"""Time limits for a busy machine: each grows with how much longer work takes there, and how long it stood still.

They allow for contention for processors and for stalls of this process, and not for a server that waits for a disk: a
Valkey of the tests never does.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event

from queue_manager.core.background import in_thread

PROBE = 0.01  # seconds of CPU time
PROBE_EVERY = 0.1  # seconds


class Pace:
    """How many times longer than on an idle machine a computation takes."""

    def __init__(self) -> None:
        self.slowdown = 1.0
        """The worst so far. What exceeds 1 counts twice, since several processes wait for each other."""
        self.stalled = 0.0
        """Seconds, between its probes, in which this process did not run although it wanted to."""

    def allowed(self, limit: float) -> float:
        """Return how long something may have taken here that takes at most `limit` seconds on an idle machine."""
        return limit * self.slowdown + self.stalled

    def probe(self) -> None:
        began, cpu = time.monotonic(), time.thread_time()
        while time.thread_time() - cpu < PROBE:
            pass
        self.slowdown = max(self.slowdown, 2 * (time.monotonic() - began) / PROBE - 1)


@contextmanager
def paced() -> Iterator[Pace]:
    """Measure the pace of the machine while the block runs."""
    pace = Pace()

    def watch(is_over: Event) -> None:
        began = time.monotonic()
        while not is_over.wait(PROBE_EVERY):
            pace.stalled += max(0.0, time.monotonic() - began - PROBE_EVERY)
            pace.probe()
            began = time.monotonic()

    pace.probe()
    try:
        with in_thread(watch, name="pace"):
            yield pace
    finally:
        pace.probe()


@contextmanager
def promptly(limit: float) -> Iterator[None]:
    """Fail if the block takes longer than `limit` seconds; on a busy machine, than `Pace.allowed`."""
    with paced() as pace:
        began = time.monotonic()
        yield
        took = time.monotonic() - began
    allowed = pace.allowed(limit)
    assert took < allowed, f"took {took:.2f} s of {allowed:.2f} s, at {pace.slowdown:.1f} times the usual {limit} s"
