"""An answer that is too expensive to compute each time, cached in proportion to what it costs."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Lock
from typing import Generic, TypeVar

AnswerT = TypeVar("AnswerT")

CACHE_FACTOR = 20  # a slow answer is kept for this many times as long as it took


class CachedAnswer(Generic[AnswerT]):
    """An answer that is too expensive to compute every second, cached for `CACHE_FACTOR` times its computation time.

    An error is raised once; until the next attempt, after the same time, the answer is `None`. While one thread
    computes it, the others get the previous one.
    """

    def __init__(self, compute: Callable[[], AnswerT]) -> None:
        self._compute = compute
        self._answer: AnswerT | None = None
        self._due_at = 0.0
        self._lock = Lock()

    def __call__(self) -> AnswerT | None:
        began = time.monotonic()
        if began >= self._due_at and self._lock.acquire(blocking=False):
            answer = None
            try:
                answer = self._compute()
            finally:
                ended = time.monotonic()
                self._answer, self._due_at = answer, ended + CACHE_FACTOR * (ended - began)
                self._lock.release()
        return self._answer
