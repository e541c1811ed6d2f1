"""One instance per process, created on first use and never shared with a forked child."""

from __future__ import annotations

import os
from collections.abc import Callable
from threading import Lock
from typing import Generic, TypeVar

T = TypeVar("T")


class PerProcess(Generic[T]):
    """Creates one instance per process. Thread-safe."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._made: list[T] = []
        self._lock = Lock()
        # A child forked while another thread holds the lock would wait for it forever.
        os.register_at_fork(after_in_child=self._forget)

    def __call__(self) -> T:
        with self._lock:
            if not self._made:
                self._made.append(self._make())
            return self._made[0]

    def take(self) -> T | None:
        """Return the instance, if there is one, and remove it; the next use creates another."""
        with self._lock:
            return self._made.pop() if self._made else None

    def _forget(self) -> None:
        self._made, self._lock = [], Lock()
