"""Answers that are too expensive to be computed every second."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")
KEEP_FACTOR = 20  # an answer is kept for this many times as long as it took


class CachedAnswer(Generic[T]):
    """An answer, computed again only after `KEEP_FACTOR` times as long as it took.

    An error is raised once; until the next attempt, after the same time, the answer is `None`.
    """

    def __init__(self, compute: Callable[[], T]) -> None:
        self._compute = compute
        self._answer: T | None = None
        self._due_at = 0.0

    def __call__(self) -> T | None:
        began = time.monotonic()
        if began >= self._due_at:
            self._answer = None
            try:
                self._answer = self._compute()
            finally:
                ended = time.monotonic()
                self._due_at = ended + KEEP_FACTOR * (ended - began)
        return self._answer
