"""The shape that every system has: what is due is found in batches, held, given back, or given up.

A scan hands `DueItem`s to `tasks.base.fan_out`; the item task of the same system acts on one of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import islice
from typing import Any, TypeVar

from queue_manager.core.settings import settings
from queue_manager.items import DueItem as DueItem
from queue_manager.leases import Attempts

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class DueBatch:
    """`found` items looked due; `items` are the ones to send; `noted` is what else was seen, counted by name."""

    found: int
    items: list[DueItem]
    noted: Mapping[str, int] = field(default_factory=dict)
    lease_ends_ms: int = 0
    """When the leases end that were taken for the time of sending."""


class Backlog:
    """The messages of one queue: how many wait for a worker, and how many more may be sent.

    Args:
        waiting: messages as the scan begins, those included that a worker took only just now.
    """

    def __init__(self, waiting: int = 0) -> None:
        self.waiting = waiting
        self._length = waiting

    def room(self, limit: int, *, at_least: int = 1) -> int:
        """Return how many more messages may be sent so that at most `limit` wait; 0 ends the scan.

        While there is room for `at_least`, what was known before is the answer.
        """
        wanted = min(at_least, limit // 2 or 1)
        if limit - self._length < wanted:
            self._length = self.length(limit - wanted)
        return max(limit - self._length, 0)

    def add(self, count: int) -> None:
        """Count messages that are sent now."""
        self._length += count

    def length(self, wanted: int) -> int:
        """Return how many messages wait now. It may take its time until at most `wanted` do."""
        return self._length


class DueWork(ABC):
    """What a system offers to the Celery edge. One without leases only has to find what is due."""

    @abstractmethod
    def claim_due(self, backlog: Backlog) -> Iterator[DueBatch]:
        """Find what is due, batch by batch, and claim it, as far as the backlog has room."""

    @property
    def many(self) -> Callable[[Sequence[DueItem]], Sequence[Any]] | None:
        """The function that executes a batch of items, if the system has one.

        It returns, item by item, the result of the item's task, or `None` for an item that its own task executes. It
        may raise `NotYetDue`, to be called again after the wait; any other error leaves all items to their tasks.
        """
        return None

    def lease_of(self, args: Sequence[Any]) -> str:
        """Return the name of the lease of an item with these arguments."""
        return ""

    def sent(self, batch: DueBatch) -> None:
        """Say that the items of a batch were sent."""

    def attempts(self, items: Sequence[DueItem]) -> AbstractContextManager[Attempts]:
        """Record that attempts at these items run within, as one batch."""
        return nullcontext(Attempts())

    def attempt(self, item: DueItem) -> AbstractContextManager[Attempts]:
        """Record that one attempt runs within. Raises `leases.MustPause`."""
        return nullcontext(Attempts())

    def release(self, items: Sequence[DueItem]) -> None:
        """Give back items that could not be sent."""

    def renew(self, items: Sequence[DueItem]) -> None:
        """Renew the leases of items that this process holds. Some may be no items of a scan, and hold nothing."""

    def postpone(self, item: DueItem, *, wait: timedelta) -> None:
        """Keep the lease until one lease after the next attempt, which comes in `wait`."""

    def lost(self, item: DueItem) -> None:
        """The process that worked on this item died: make it due again at once."""
        self.release([item])

    def rest(self, item: DueItem, *, pause: timedelta) -> None:
        """Give the item back as of later: until then no scan takes it."""

    def give_up(self, item: DueItem, *, error: str) -> None:
        """Record that the last attempt failed."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How much one scan takes, in items."""

    batch: int
    max_queue: int
    """Items are claimed only while fewer messages than this wait in the broker."""
    ahead: int
    """Items not due yet that may be sent with their time."""

    def batches(self, found: Iterator[T], backlog: Backlog) -> Iterator[list[T]]:
        """Yield what is found in batches, as far as the backlog has room; the caller adds what it sends."""
        while some := list(islice(found, min(self.batch, backlog.room(self.max_queue, at_least=self.batch)))):
            yield some

    @classmethod
    def from_settings(cls) -> Limits:
        chosen = settings()
        return cls(batch=chosen.qm_claim_batch, max_queue=chosen.qm_max_queue, ahead=chosen.qm_ahead_limit)
