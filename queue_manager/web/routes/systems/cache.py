"""Answers that cost too much to be asked for every second."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")
SHARE = 20  # an answer that took so long is kept for so many times as long


class Remembered(Generic[T]):
    """Asks again only when its answer has been kept for `SHARE` times as long as it took to get.

    What `ask` raises is passed on, and not asked for again either until then: `None` is the answer meanwhile.
    """

    def __init__(self, ask: Callable[[], T]) -> None:
        self._ask = ask
        self._answer: T | None = None
        self._ask_at = 0.0

    def __call__(self) -> T | None:
        began = time.monotonic()
        if began >= self._ask_at:
            self._answer = None
            try:
                self._answer = self._ask()
            finally:
                ended = time.monotonic()
                self._ask_at = ended + SHARE * (ended - began)
        return self._answer
