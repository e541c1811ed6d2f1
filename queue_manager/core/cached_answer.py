"""An answer that is too expensive to compute each time, cached in proportion to what it costs."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Lock
from typing import Any, Generic, TypeVar

AnswerT = TypeVar("AnswerT")
CountT = TypeVar("CountT")

CACHE_FACTOR = 20  # a slow answer is kept for this many times as long as it took
MAX_FRESH_COUNT = 10_000  # documents; counting them takes 10 to 50 ms, once a second
FIRST_ANSWER_TIMEOUT = 1.0  # seconds


class CachedAnswer(Generic[AnswerT]):
    """An answer that is too expensive to compute every second, cached for `CACHE_FACTOR` times its computation time.

    An error is raised once; until the next attempt, after the same time, the previous answer stays. While one thread
    computes an answer, the others get the previous one. If there is none, they wait for it for a second; the answer is
    `None` after this, and after an error.
    """

    def __init__(self, compute: Callable[[], AnswerT]) -> None:
        self._compute = compute
        self._answer: AnswerT | None = None
        self._due_at = 0.0
        self._lock = Lock()

    def __call__(self) -> AnswerT | None:
        began = time.monotonic()
        timeout = FIRST_ANSWER_TIMEOUT if self._answer is None else 0.0
        if began >= self._due_at and self._lock.acquire(timeout=timeout):
            try:
                if began >= self._due_at:  # no other thread computed it in the meantime
                    self._compute_now()
            finally:
                self._lock.release()
        return self._answer

    def _compute_now(self) -> None:
        began = time.monotonic()
        try:
            self._answer = self._compute()
        finally:
            self._due_at = _kept_until(began)


_counts: dict[str, tuple[Any, float]] = {}
"""Counts of many documents by name, each with the time until which it is kept."""


def cached_count(name: str, count: Callable[[], tuple[CountT, int]]) -> CountT:
    """Return a count that is read every second; that of many documents is kept for `CACHE_FACTOR` times its time.

    An error is raised. If an answer was kept before, it stays for `CACHE_FACTOR` times the time until the error.

    Args:
        count: returns the answer and the number of documents that were counted for it. Up to `MAX_FRESH_COUNT`, the
            answer is not kept.
    """
    began = time.monotonic()
    kept: tuple[CountT, float] | None = _counts.get(name)
    if kept is not None and began < kept[1]:
        return kept[0]
    try:
        answer, documents = count()
    except Exception:
        if (last := _counts.get(name)) is not None:
            _counts[name] = last[0], _kept_until(began)
        raise
    if documents > MAX_FRESH_COUNT:
        _counts[name] = answer, _kept_until(began)
    else:
        _counts.pop(name, None)  # an older one
    return answer


def _kept_until(began: float) -> float:
    ended = time.monotonic()
    return ended + CACHE_FACTOR * (ended - began)
