"""The shape that every system has: what is due is claimed in batches, held, given back, or given up.

A scan hands `DueItem`s to `tasks.base.fan_out`; the item task of the same system acts on one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Protocol

from models.claims import Batch, Claims, Selection


@dataclass(frozen=True, kw_only=True)
class DueItem:
    """One item to be sent: the arguments of its task, the token it is held with, and its time if that is to come."""

    id: Any
    token: str
    args: tuple[Any, ...]
    eta: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class DueBatch:
    """`found` items looked due; `items` are the ones that this scan now holds."""

    found: int
    items: list[DueItem]


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How much one scan takes. All are numbers of items."""

    batch: int
    max_queue: int
    """New items are claimed only while fewer than this wait in the broker."""
    ahead: int
    """Items not due yet that may be sent with their time."""


class DueWork(Protocol):
    """What a system offers to the Celery edge. `args` are those of its item task."""

    def claim_due(self, waiting: int) -> Iterator[DueBatch]:
        """Claim what is due, batch by batch; `waiting` messages are in the broker already."""

    def release(self, items: Sequence[DueItem]) -> None:
        """Give back items that could not be sent."""

    def keep(self, tokens: Sequence[str]) -> None:
        """Renew the leases of items that this process holds."""

    @property
    def postpone(self) -> Callable[..., None]:
        """`(*args, token, wait)`: keep the lease until one lease after the next attempt, which comes in `wait`."""

    @property
    def give_up(self) -> Callable[..., None]:
        """`(*args, token, error)`: record that the last attempt failed."""


def claim_in_batches(
    claims: Claims, *, clock: Callable[[], datetime], waiting: int, limits: Limits, ahead_by: timedelta
) -> Iterator[Batch]:
    """Claim what is due, oldest first, and a bounded number of what falls due within `ahead_by`.

    What waits in the broker is not lost. New claims fill the queue up to `limits.max_queue`; of the leases that
    ran out, at most as many are taken again as there are more of them than messages waiting, so that a slow
    backlog is never published twice.
    """
    now = clock()
    claims.tidy(now)
    room = max(limits.max_queue - waiting, 0)
    lost = claims.count(claims.lost(now), limit=waiting + room) - waiting
    plan: list[tuple[Selection, int]] = [
        (claims.lost(now), lost),
        (claims.void(now), room),
        (claims.returned(now), room),
        (claims.unclaimed(None, now), room),
        (claims.unclaimed(now, now + ahead_by), min(limits.ahead, room)),
    ]
    for selection, budget in plan:
        while budget > 0:
            batch = claims.claim(selection, limit=min(budget, limits.batch), now=clock())
            if not batch.found:
                break
            budget -= len(batch.won)
            yield batch
