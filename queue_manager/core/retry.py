"""Retry as a value: how often, and how long to wait between two attempts."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import timedelta

from queue_manager.core.clock import minutes

LONGEST_WAIT = minutes(10)


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """Exponential backoff: `base` before attempt 2, doubled before each further one, never above `cap`."""

    max_attempts: int | None
    """Attempts in all, the first included; `None`: for ever."""
    base: timedelta
    cap: timedelta = LONGEST_WAIT
    jitter: bool = False
    """Spread the wait evenly over its upper half, so that what failed together does not return together."""

    def allows(self, attempt: int) -> bool:
        """Tell whether attempt number `attempt` (from 1) may be made."""
        return self.max_attempts is None or attempt <= self.max_attempts

    def wait_before(self, attempt: int) -> timedelta:
        """Return the wait before `attempt` (2 → base, 3 → 2·base, 4 → 4·base …)."""
        return self.spread(doubling(self.base, attempt - 2, cap=self.cap))

    def spread(self, wait: timedelta) -> timedelta:
        return wait * random.uniform(0.5, 1.0) if self.jitter else wait


ONCE = RetryPolicy(max_attempts=1, base=timedelta(0))


def doubling(base: timedelta, times: int, *, cap: timedelta) -> timedelta:
    """Return `base` doubled `times` times, at most `cap`."""
    # 2**64 of anything is above every cap: the bound keeps a long history from overflowing timedelta.
    return min(base * 2.0 ** min(max(times, 0), 32), cap)
