"""The shape that every system has: what is due is found in batches, held, given back, or given up.

A scan hands `DueItem`s to `tasks.base.fan_out`; the item task of the same system acts on one of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from queue_manager.core.settings import settings


@dataclass(frozen=True, kw_only=True)
class DueItem:
    """One item to be sent: the token it is held with, the arguments of its task, its time if that is to come."""

    token: str
    args: tuple[Any, ...]
    eta: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class DueBatch:
    """`found` items looked due; `items` are the ones to send; `noted` is what else was seen, counted by name."""

    found: int
    items: list[DueItem]
    noted: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Figures:
    """The state of one system: `numbers` by name, `details`, and `problems` that somebody should look at.

    `queue-manager health` exits with 1 while there are problems, and the dashboard shows them. Each is one sentence:
    what is wrong, how many, which ids (five at most), what to do. `services.problems` has the words.
    """

    numbers: dict[str, float]
    details: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    late: list[str] = field(default_factory=list)
    """Ids of items that have been due for too long, a few of them."""
    states: dict[str, str] = field(default_factory=dict)
    """By problem: the state under which the system's page lists the items that it is about."""

    def add_problem(self, text: str, *, state: str | None = None) -> None:
        self.problems.append(text)
        if state is not None:
            self.states[text] = state


class DueWork(ABC):
    """What a system offers to the Celery edge. One without leases only has to find what is due."""

    @abstractmethod
    def claim_due(self, waiting: int) -> Iterator[DueBatch]:
        """Find what is due, batch by batch, and claim it; `waiting` messages are in the broker already."""

    @property
    def many(self) -> Callable[[Sequence[DueItem]], Sequence[Any]] | None:
        """What does many items at once, if the system has that: its one method named `…_many`.

        It returns, item by item, what the item's task returns, or `None` for one that its task shall do by itself. It
        may raise `NotYetDue`, to be called again after the wait; whatever else it raises leaves all to their tasks.
        """
        name = next((name for name in dir(type(self)) if name.endswith("_many")), None)
        return getattr(self, name) if name else None

    def release(self, items: Sequence[DueItem]) -> None:
        """Give back items that could not be sent."""

    def renew(self, items: Sequence[DueItem]) -> None:
        """Renew the leases of items that this process holds. Some may be no items of a scan, and hold nothing."""

    def postpone(self, item: DueItem, *, wait: timedelta) -> None:
        """Keep the lease until one lease after the next attempt, which comes in `wait`."""

    def give_up(self, item: DueItem, *, error: str) -> None:
        """Record that the last attempt failed."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How much one scan takes, in items."""

    batch: int
    max_queue: int
    """New items are claimed only while fewer than this wait in the broker."""
    ahead: int
    """Items not due yet that may be sent with their time."""

    @classmethod
    def from_settings(cls) -> Limits:
        chosen = settings()
        return cls(batch=chosen.qm_claim_batch, max_queue=chosen.qm_max_queue, ahead=chosen.qm_ahead_limit)
