"""One thing per process: made at its first use, and never used by a child that was forked meanwhile."""

from __future__ import annotations

import os
from collections.abc import Callable
from threading import Lock
from typing import Generic, TypeVar

T = TypeVar("T")


class PerProcess(Generic[T]):
    """Makes its thing once in every process, also when several threads ask at once."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._made: list[T] = []
        self._lock = Lock()
        # A child forked while another thread made the thing would wait for a lock that nobody holds.
        os.register_at_fork(after_in_child=self._forget)

    def __call__(self) -> T:
        with self._lock:
            if not self._made:
                self._made.append(self._make())
            return self._made[0]

    def take(self) -> T | None:
        """Return the thing, if there is one, and forget it: the next use makes another."""
        with self._lock:
            return self._made.pop() if self._made else None

    def _forget(self) -> None:
        self._made, self._lock = [], Lock()
