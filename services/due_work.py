"""The work of a system, for its scan: leases due items that are not in flight, oldest first.

`tasks.scan.fan_out` publishes the items that a scan took. What workers do with them is in `item_work.py`.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import chain, islice
from math import ceil
from typing import Any, TypeVar
from uuid import uuid4

from queue_manager import leases, pauses
from queue_manager.broker.backlog import Backlog
from queue_manager.core.clock import seconds, to_iso
from queue_manager.core.errors import ConfigurationError, Unavailable
from queue_manager.core.settings import settings
from queue_manager.items import DueItem
from queue_manager.leases import Leases
from services.item_work import ItemWork

FIRST_BATCH_SIZE = 125  # items; the next batches double, so that workers soon begin and the last ones cost less
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Due:
    """One item that a scan found."""

    id: str
    """As text."""
    due_at: datetime
    args: tuple[Any, ...] = ()
    """The arguments of the item's task; by default the id and the due time."""
    is_flagged: bool = False
    """Whether another program may be working on it."""
    counted_as: str | None = None
    """An additional count of the scan that includes it."""
    is_excluded: bool = False
    """Whether it is counted but cannot be dispatched."""
    lease: str = ""
    """The name of its lease; by default the id and the due time."""

    def __post_init__(self) -> None:
        if not isinstance(self.id, str):
            raise ConfigurationError(f"Due: id={self.id!r:.100} must be a string, such as that of `id_text`")
        if not isinstance(self.due_at, datetime) or self.due_at.tzinfo is None:
            raise ConfigurationError(f"Due: due_at={self.due_at!r:.100} must be a datetime with a time zone")
        if not self.args:
            object.__setattr__(self, "args", (self.id, to_iso(self.due_at)))
        if not self.lease:
            object.__setattr__(self, "lease", leases.name(self.id, self.due_at))


@dataclass(frozen=True, kw_only=True)
class DueBatch:
    """The number of due items that were not in flight; those to send; and further counts of the scan, by name."""

    found: int = 0
    items: list[DueItem] = field(default_factory=list)
    other_counts: Mapping[str, int] = field(default_factory=dict)
    lease_ends_ms: int = 0
    """When the leases end that were taken to send the items."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How much one scan takes, in items."""

    batch: int
    max_queue: int
    """Items are leased only while fewer messages than this wait in the broker."""
    ahead: int
    """Items that may be dispatched ahead of time."""

    @classmethod
    def from_settings(cls) -> Limits:
        chosen = settings()
        return cls(batch=chosen.qm_claim_batch, max_queue=chosen.qm_max_queue, ahead=chosen.qm_ahead_limit)


@dataclass(frozen=True, kw_only=True)
class DueWork(ItemWork, ABC):
    """The work of one system: what its scan takes, and what workers do with it."""

    limits: Limits = field(default_factory=Limits.from_settings)
    ahead: timedelta = timedelta(0)
    """Items that fall due within this time are dispatched ahead of time, with their due time as ETA."""
    max_rate: float | None = None
    """The maximum number of items per second; each gets an ETA of its own."""
    period: timedelta = timedelta(0)
    """The time between two scans, needed with `max_rate`."""

    def __post_init__(self) -> None:
        if self.max_rate is not None and not (self.max_rate > 0 and self.period > timedelta(0)):
            raise ConfigurationError(
                f"System {self.system_name!r}: max_rate={self.max_rate!r} must be a number of items per second, "
                "above zero, and needs `period`, the time between two scans"
            )

    @abstractmethod
    def find_due(self, until: datetime) -> Iterator[Due]:
        """Yield what is due until then, oldest first."""

    @property
    def flags_documents(self) -> bool:
        """Whether `flag` sets a flag in documents."""
        return False

    def flag(self, dispatched: Sequence[Due]) -> None:
        """Set a flag in the documents of items that are about to be dispatched, for other programs."""

    # Dispatch

    def prepare(self) -> Iterator[DueBatch]:
        """Change documents before a scan looks for what is due, unless the system is paused or in a dry run."""
        yield from ()

    def take_due(self, measure: Callable[[], Backlog]) -> Iterator[DueBatch]:
        """Take the items that are due and not in flight, then a bounded number of those due before the next scan.

        A message that waits in the broker is never sent twice: waiting items are dispatched again only as far as they
        outnumber the messages.

        Args:
            measure: reads the backlog of the queue; it is not called if nothing is due and nothing waits.
        """
        if pauses.is_paused(self.system_name):
            yield DueBatch(other_counts={"paused": 1})
            return
        if self.system_name in settings().qm_dry_run:
            yield from self._count_due(measure())
            return
        yield from self.prepare()
        found = self._find_checked(self.clock() + (self.ahead if self.limits.ahead else timedelta(0)))
        first = list(islice(found, 1))
        if not first and not self.leases.are_waiting():
            return
        backlog = measure()
        with self.leases.scan_lock() as holds_lock:
            if not holds_lock():
                yield DueBatch(other_counts={"already_running": 1})
                return
            self.leases.free_lost(backlog.waiting)
            now = self.clock()
            due, coming = split(chain(first, found), lambda one: one.due_at <= now)
            yield from self._dispatch(due, coming, backlog, holds_lock)

    def _find_checked(self, until: datetime) -> Iterator[Due]:
        """Yield what `find_due` yields. Raises ConfigurationError if that is not iterable, or the first is no Due."""
        found: object = self.find_due(until)
        must = f"System {self.system_name!r}: `find_due` must yield `Due(...)`"
        if not isinstance(found, Iterable):
            raise ConfigurationError(f"{must}; it returned {type(found).__name__}")
        rest = iter(found)
        for first in islice(rest, 1):
            if not isinstance(first, Due):
                raise ConfigurationError(f"{must}; it yielded {type(first).__name__}")
            yield first
        yield from rest

    def _count_due(self, backlog: Backlog) -> Iterator[DueBatch]:
        found, limits = self._find_checked(self.clock()), self.limits
        while some := list(islice(found, min(limits.batch, backlog.room(limits.max_queue, at_least=limits.batch)))):
            backlog.add(len(some))  # the scan ends in time, as it would
            yield DueBatch(found=len(some), other_counts={"dry_run": len(some)})

    def _dispatch(
        self, due: Iterator[Due], coming: Iterator[Due], backlog: Backlog, holds_lock: Callable[[], bool]
    ) -> Iterator[DueBatch]:
        for found, limit in ((due, sys.maxsize), (coming, self.limits.ahead)):
            size, budget = min(FIRST_BATCH_SIZE, self.limits.batch), min(limit, self._remaining_dispatches())
            while holds_lock() and budget > 0:
                room = backlog.room(self.limits.max_queue, at_least=size)
                some = list(islice(found, min(size, room, budget)))
                if not some:
                    break
                if pauses.is_paused(self.system_name):
                    return
                size = min(2 * size, self.limits.batch)
                batch = self._take(some)
                budget -= len(batch.items)
                backlog.add(len(batch.items))
                yield batch

    def _remaining_dispatches(self) -> int:
        """Return how many more items `max_rate` allows before the next scan."""
        if self.max_rate is None:
            return sys.maxsize
        now = self.clock()
        left = now + self.period - max(self.leases.next_slot() or now, now)
        return ceil(left.total_seconds() * self.max_rate)

    def take_manually(self, some: Sequence[Due]) -> list[DueItem]:
        """Take items that are not in flight, even if they cool down or another program may be working on them."""
        return self._take(some, is_manual=True).items

    def _take(self, some: Sequence[Due], *, is_manual: bool = False) -> DueBatch:
        fit = [*{one.lease: one for one in some if not one.is_excluded}.values()]  # a join finds one item several times
        flagged = [] if is_manual else [one.lease for one in fit if one.is_flagged]
        if flagged:
            self.leases.hold_unknown(flagged)
        flagged_for = self.ahead + 2 * self.leases.lease if self.flags_documents else seconds(0)
        names = [one.lease for one in fit]
        taken = self.leases.take(names, is_forced=is_manual, flagged_for=flagged_for)
        ours, held = [fit[one] for one in taken.positions], [names[one] for one in taken.positions]
        try:
            if ours:
                self.flag(ours)
            items = self._items(ours, held, is_manual=is_manual)
        except Exception:  # nothing was sent: the next scan may take the items at once
            with suppress(Unavailable):
                self.leases.release(held)
            raise
        other_counts = Counter(one.counted_as for one in some if one.counted_as is not None)
        found = len(ours) + sum(one.is_excluded for one in some)  # items in flight were counted by an earlier scan
        return DueBatch(found=found, items=items, other_counts=other_counts, lease_ends_ms=taken.ends_ms)

    def _items(self, taken: Sequence[Due], held: Sequence[str], *, is_manual: bool) -> list[DueItem]:
        """Return the items to send for what was taken, with the names of their leases."""
        now, batch = self.clock(), uuid4().hex
        times = [one.due_at for one in taken]
        if self.max_rate is not None and taken and not is_manual:
            times = self.leases.reserve(times, interval=seconds(1) / self.max_rate, now=now)
        return [
            DueItem(
                task_id=self.task_id(one, batch=batch, number=number),
                args=one.args,
                eta=at if at > now else None,
                lease=lease,
            )
            for number, (one, at, lease) in enumerate(zip(taken, times, held, strict=True))
        ]

    def mark_dispatched(self, batch: DueBatch) -> None:
        """Record that the items of a batch were sent: their leases last until workers receive them."""
        now = self.clock()
        due = [item.lease for item in batch.items if item.eta is None]
        self.leases.mark_dispatched(due, ends_ms=batch.lease_ends_ms)
        self.record_dispatched(batch.items)
        if waits := {item.lease: max(item.eta - now, seconds(0)) for item in batch.items if item.eta is not None}:
            self.mark_dispatched_ahead(waits)

    def mark_dispatched_ahead(self, waits: Mapping[str, timedelta]) -> None:
        """Record that items were sent with an ETA, which comes after the wait of each lease."""
        self.leases.mark_sent_again(waits)

    def task_id(self, due: Due, *, batch: str, number: int) -> str:
        """Return the id of an item's task: a random part for the batch, and the item's number in it."""
        return f"{batch}-{number}"


def split(found: Iterator[T], is_first: Callable[[T], bool]) -> tuple[Iterator[T], Iterator[T]]:
    """Return the leading items for which `is_first` holds, and the items after them. Read the first part first."""
    next_part: list[T] = []

    def first() -> Iterator[T]:
        for one in found:
            if not is_first(one):
                next_part.append(one)
                return
            yield one

    def rest() -> Iterator[T]:
        yield from next_part
        yield from found

    return first(), rest()


def leases_of(system: str) -> Leases:
    """Return the leases of the items of a system, by its name; they end after `QM_LEASE_SECONDS` unless renewed."""
    return Leases(system, seconds(settings().qm_lease_seconds))
