"""Sentences for `SystemStats.problems`: what is wrong, how many, which, and what to do."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

from models.claimable import Selection
from models.claims import COUNTED, Claims
from models.database import shown_id
from queue_manager.system import SystemStats, late_after

MAX_IDS = 5


def add_claim_problems(
    stats: SystemStats, claims: Claims, *, thing: str, period: timedelta, now: datetime, has_page: bool = True
) -> None:
    """Add the problems of claimed documents: stuck ones that no scan took up again, failed ones, and which are late.

    Args:
        thing: what one document is called.
        period: the time between two scans. A lease that ended less than a few periods ago is left to the next scan.
        has_page: whether the system's page lists its stuck and failed documents.
    """
    late = late_after(period)
    if stats.numbers["lag_seconds"] > late.total_seconds():
        for overdue in (claims.of.behind(now - late), claims.of.unclaimed(now - late)):
            stats.late.extend(map(shown_id, claims.find_ids(overdue, limit=MAX_IDS)))
    stuck, failed = claims.of.lost(now - late), claims.of.cooling_off(now)
    if count := claims.count(stuck, limit=COUNTED):
        stats.add_problem(
            f"{counted(count, f'stuck {thing}')}: due, but the worker's lease ended more than {span(late)} ago and no "
            f"worker has taken over; look at the workers and their log ({_ids_of(claims, stuck, count)})",
            state="stuck" if has_page else None,
        )
    if count := claims.count(failed, limit=COUNTED):
        stats.add_problem(
            f"{counted(count, f'failed {thing}')}: every attempt failed and the next one comes after a pause; see the "
            f"error in the dashboard or the workers' log, then retry ({_ids_of(claims, failed, count)})",
            state="failed" if has_page else None,
        )


def _ids_of(claims: Claims, selection: Selection, count: int) -> str:
    return ids(map(shown_id, claims.find_ids(selection, limit=MAX_IDS)), count)


def counted(count: int, thing: str) -> str:
    """Return `1 room`, `2 rooms`. A count that has reached `COUNTED` stands for that many or more."""
    return f"{count}{' or more' if count >= COUNTED else ''} {thing}{'' if count == 1 else 's'}"


def ids(some: Iterable[Any], count: int) -> str:
    """Return the first few of `count` ids, and how many more there are."""
    shown = [str(one) for one in islice(some, MAX_IDS)]
    more = count - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")


def span(time: timedelta) -> str:
    """Return a time in the largest unit that it has two of."""
    left = time.total_seconds()
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if left >= 2 * size:
            return f"{left / size:.0f} {unit}"
    return f"{left:.0f} s"
