"""The work of a system: its scan leases due items that are not in flight, oldest first; workers execute them.

`tasks.scan.fan_out` publishes the items that a scan took. Their tasks (`tasks/item.py`) hold, retry and give them up.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import chain, islice
from math import ceil
from typing import Any, TypeVar
from uuid import uuid4

from models import item_events
from models.database import server_now
from queue_manager import leases, pauses
from queue_manager.broker.backlog import Backlog
from queue_manager.core.clock import parse_utc, seconds, to_iso
from queue_manager.core.errors import ConfigurationError, PermanentError, Unavailable
from queue_manager.core.settings import settings
from queue_manager.core.wording import sentence
from queue_manager.items import DueItem, is_result
from queue_manager.leases import MIN_COOL_DOWN, Attempts, Leases, MustCoolDown

FIRST_BATCH_SIZE = 125  # items; the next batches double, so that workers soon begin and the last ones cost less
ItemResult = dict[str, Any]
"""What the task of an item returns."""
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
class DueWork(ABC):
    """The work of one system: what its scan takes, and what workers do with it.

    The arguments of its items are, by default, `(id, due time)`.
    """

    leases: Leases
    clock: Callable[[], datetime] = server_now
    has_timelines: bool = False
    """Whether what happens to its items is recorded."""
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

    @property
    def system_name(self) -> str:
        """The name of the system, as in pauses and QM_DRY_RUN."""
        return self.leases.system

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

        A message that waits in the broker is not sent twice, unless it was uncertain whether it was sent: waiting
        items are dispatched again only as far as they outnumber the messages.

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

    # Holding

    def lease_of(self, args: Sequence[Any]) -> str:
        """Return the name of the lease of an item with these arguments."""
        *id, due_at = args
        try:
            return leases.name(" ".join(map(str, id)), parse_utc(due_at, field="due_at"))
        except PermanentError:
            return leases.name(" ".join(map(str, args)), None)  # the item's task refuses the argument

    def due_ms(self, item: DueItem) -> int | None:
        """Return when an item fell due, in Unix ms; `None` if its arguments do not contain that."""
        return leases.due_ms(item.lease)

    def mark_dispatched_manually(self, items: Sequence[DueItem]) -> None:
        """Record that items taken manually were sent: they wait for a worker, as long as it takes."""
        self.postpone(items, wait=seconds(0))
        self.record_dispatched(items, is_manual=True)

    def release(self, items: Sequence[DueItem]) -> None:
        """Release items that were not sent, or whose process died: they are due again at once."""
        self.leases.release([item.lease for item in items])

    def renew(self, items: Sequence[DueItem]) -> None:
        """Renew the leases of items that this worker has received and not finished."""
        self.leases.renew([item.lease for item in items])

    def renew_claims(self, running: Mapping[str, int]) -> None:
        """Renew what running tasks hold besides their leases; `running` has their process ids by task id."""

    def over_limit(self, running: Mapping[str, int]) -> Mapping[str, str]:
        """Return the running tasks whose process must be killed, by task id, with the reason for the log."""
        return {}

    def postpone(self, items: Sequence[DueItem], *, wait: timedelta) -> None:
        """Keep the leases of items that are sent again, with an ETA in `wait`, until a worker receives them."""
        self.leases.mark_sent_again({item.lease: wait for item in items})

    def cool_down_lost(self, item: DueItem, lost: MustCoolDown) -> None:
        """Handle an item whose process died several times in a row: no scan takes it for a while."""
        self.leases.release([item.lease], cool_down=lost.cool_down)

    def lost(self, item: DueItem, why: str) -> None:
        """Handle the death of the process that worked on this item; `why` is a clause."""
        self.record_attempt(item, "lost", error=sentence(why))
        self.release([item])

    # Attempts

    @property
    def batch_function(self) -> Callable[[Sequence[DueItem]], Sequence[Any]] | None:
        """The function that executes a batch of items, if the system has one.

        It returns, item by item, the result of the item's task, the error with which that fails, `None` for an item
        that its own task executes, or `Verdict.UNREACHED`. It may raise `NotYetDue`, to be called again after the wait.
        After a timeout of a MongoDB that answers, smaller batches execute the items; any other error leaves all items
        to their tasks.
        """
        return None

    def attempts(self, items: Sequence[DueItem]) -> AbstractContextManager[Attempts]:
        """Record attempts at these items, as one batch, while the block runs."""
        return self.leases.batch([item.lease for item in items])

    def attempt(self, item: DueItem) -> AbstractContextManager[Attempts]:
        """Record one attempt while the block runs. Raises `leases.MustCoolDown`."""
        return self.leases.alone(item.lease)

    def give_up(self, item: DueItem, *, error: str) -> None:
        """Handle the failure of the last attempt: no scan takes the item for a minute; its attempts then start anew."""
        self.leases.release([item.lease], cool_down=MIN_COOL_DOWN)

    # Timelines

    def record_dispatched(self, items: Sequence[DueItem], *, is_manual: bool = False) -> None:
        """Record that items of one batch were dispatched; the ids of their tasks end with the position in it."""
        if self.has_timelines and items:
            task, names = items[0].task_id.rpartition("-")[0], [item.lease for item in items]
            item_events.record_dispatched(self.system_name, task, names, is_manual=is_manual)

    def record_executed(self, items: Sequence[DueItem], results: Sequence[Any], *, took: timedelta) -> None:
        """Record that items were executed together, each with its result; one without a result was not executed."""
        ended = [(item.lease, one) for item, one in zip(items, results, strict=True) if is_result(one)]
        if self.has_timelines and ended:
            skipped = {name: str(one["reason"]) for name, one in ended if isinstance(one, dict) and "skipped" in one}
            names, task = [name for name, _ in ended], items[0].task_id if len(items) == 1 else None
            item_events.record_executed(self.system_name, names, skipped, task=task, took=took)

    def record_attempt(
        self, item: DueItem, event: item_events.AttemptEvent, *, error: str, attempt: int | None = None
    ) -> None:
        """Record an attempt that did not succeed."""
        if self.has_timelines:
            item_events.record_attempt(
                self.system_name, item.lease, event, task=item.task_id, error=error, attempt=attempt
            )


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
