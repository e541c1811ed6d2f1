"""Words for `SystemStats.problems`: what is wrong, how many, which."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from itertools import islice
from typing import Any

from queue_manager.explanation import many, rounded

MAX_IDS = 5


def stuck(thing: str, found: Sequence[str], *, late: timedelta) -> str:
    """Return what to say of items whose lease ended that long ago without a result."""
    return (
        f"{many(len(found), f'stuck {thing}')}: due, but the worker's lease ended more than {rounded(late)} ago and no "
        f"worker has taken over ({ids(found, len(found))})"
    )


def ids(some: Iterable[Any], count: int) -> str:
    """Return the first few of `count` ids, and how many more there are."""
    shown = [str(one) for one in islice(some, MAX_IDS)]
    more = count - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")
