"""Retry policies: the number of attempts, and the backoff between them."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import timedelta

from queue_manager.core.clock import minutes
from queue_manager.core.errors import ConfigurationError

MAX_BACKOFF = minutes(10)
MAX_DOUBLINGS = 67  # of a microsecond, which then exceeds every timedelta


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """Exponential backoff: `base` before attempt 2, doubled before each further one, never above `cap`.

    Raises ConfigurationError: a value has another type.
    """

    max_attempts: int | None
    """Total number of attempts including the first; `None` means unlimited."""
    base: timedelta
    cap: timedelta = MAX_BACKOFF
    jitter: bool = False
    """Randomize the wait between 50% and 100%, so that items that failed together are not retried together."""

    def __post_init__(self) -> None:
        attempts = self.max_attempts
        if attempts is not None and (not isinstance(attempts, int) or attempts < 1):
            raise ConfigurationError(f"RetryPolicy: max_attempts={attempts!r} must be a number above zero, or None")
        for name in ("base", "cap"):
            if not isinstance(value := getattr(self, name), timedelta) or value < timedelta(0):
                raise ConfigurationError(f"RetryPolicy: {name}={value!r} must be a timedelta that is not negative")

    def allows(self, attempt: int) -> bool:
        """Return True if attempt number `attempt`, counted from 1, is allowed."""
        return self.max_attempts is None or attempt <= self.max_attempts

    def wait_before(self, attempt: int) -> timedelta:
        """Return the wait before `attempt` (2 → base, 3 → 2·base, 4 → 4·base …)."""
        wait = doubling(self.base, attempt - 2, cap=self.cap)
        return wait * random.uniform(0.5, 1.0) if self.jitter else wait


ONCE = RetryPolicy(max_attempts=1, base=timedelta(0))


def doubling(base: timedelta, times: int, *, cap: timedelta) -> timedelta:
    """Return `base` doubled `times` times, at most `cap`."""
    factor = 2 ** min(max(times, 0), MAX_DOUBLINGS)
    return cap if base > cap // factor else base * factor  # compared by a division, because the product may overflow
