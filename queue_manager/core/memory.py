"""How often Python looks for garbage that only its collector finds.

A worker keeps thousands of messages alive while it handles them. By Python's default each 700 more objects start a
collection, and many of those look at everything there is: a fifth of a busy worker's time.
"""

from __future__ import annotations

import gc

OBJECTS = 50_000  # made and not freed, until they are looked at; what outlives that waits ten times as long


def collect_seldom() -> None:
    """Leave what is there by now out of all collections. For a process that has started, and is to stay."""
    gc.freeze()
    gc.set_threshold(OBJECTS, 10, 10)
