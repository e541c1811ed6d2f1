"""Due work under leases: a scan walks once through what is due, oldest first, and dispatches what nobody holds."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from typing import Any
from uuid import uuid4

from queue_manager import leases
from queue_manager.core.clock import parse_utc, seconds
from queue_manager.core.errors import PermanentError
from queue_manager.core.settings import settings
from queue_manager.leases import Attempts, Leases
from services.due_work import Backlog, DueBatch, DueItem, DueWork, Limits


@dataclass(frozen=True, kw_only=True)
class Due:
    """One item that a scan found."""

    id: str
    """As text, without spaces: with the due time it names the lease."""
    due_at: datetime
    args: tuple[Any, ...]
    """Of the item's task."""
    is_flagged: bool = False
    """Another program may be working on it."""
    noted: str | None = None
    """Under which name the scan counts it, besides."""
    is_left_out: bool = False
    """It cannot be dispatched."""

    @property
    def lease(self) -> str:
        return leases.name(self.id, self.due_at)


@dataclass(frozen=True, kw_only=True)
class LeasedWork(DueWork):
    """Work whose items are dispatched under leases. The arguments of an item are, by default, `(id, due time)`."""

    leases: Leases
    clock: Callable[[], datetime]
    limits: Limits
    ahead: timedelta = timedelta(0)
    """What falls due within this time is dispatched with its exact time."""

    @abstractmethod
    def find_due(self, until: datetime, *, after: datetime | None = None) -> Iterator[Due]:
        """Yield what is due in (`after`, `until`], oldest first."""

    def mark(self, dispatched: Sequence[Due]) -> None:
        """Show others that these are dispatched, before they are."""

    # Dispatch

    def claim_due(self, backlog: Backlog) -> Iterator[DueBatch]:
        """Take what is due and nobody holds, then a bounded number of what falls due before the next scan.

        A message that waits in the broker is never sent twice: of what waits, only as much is dispatched again as there
        is more of it than there are messages.
        """
        with self.leases.scan() as goes_on:
            if not goes_on():
                yield DueBatch(found=0, items=[], noted={"already_running": 1})
                return
            self.leases.free_lost(backlog.waiting)
            now = self.clock()
            yield from self._dispatch(self.find_due(now), backlog, goes_on)
            if self.ahead and self.limits.ahead:
                coming = self.find_due(now + self.ahead, after=now)
                yield from self._dispatch(coming, backlog, goes_on, budget=self.limits.ahead)

    def _dispatch(
        self, found: Iterator[Due], backlog: Backlog, goes_on: Callable[[], bool], budget: int | None = None
    ) -> Iterator[DueBatch]:
        while goes_on() and (budget is None or budget > 0):
            room = backlog.room(self.limits.max_queue, at_least=self.limits.batch)
            some = list(islice(found, min(self.limits.batch, room, room if budget is None else budget)))
            if not some:
                return
            batch = self._take(some)
            budget = None if budget is None else budget - len(batch.items)
            backlog.add(len(batch.items))
            yield batch

    def take_by_hand(self, some: Sequence[Due]) -> list[DueItem]:
        """Take what nobody holds, whether or not it is cooling or another program may be working on it."""
        return self._take(some, is_by_hand=True).items

    def _take(self, some: Sequence[Due], *, is_by_hand: bool = False) -> DueBatch:
        fit = [one for one in some if not one.is_left_out]
        flagged = [] if is_by_hand else [one.lease for one in fit if one.is_flagged]
        if flagged:
            self.leases.hold_unknown(flagged)
        taken = self.leases.take([one.lease for one in fit], is_forced=is_by_hand)
        ours = [fit[position] for position in taken.positions]
        if ours:
            self.mark(ours)
        now, batch = self.clock(), uuid4().hex
        items = [
            DueItem(
                token=self.token(one, batch=batch, number=number),
                args=one.args,
                eta=one.due_at if one.due_at > now else None,
                lease=one.lease,
            )
            for number, one in enumerate(ours)
        ]
        noted = Counter(one.noted for one in some if one.noted is not None)
        found = len(ours) + len(some) - len(fit)  # what is in flight was found before
        return DueBatch(found=found, items=items, noted=noted, lease_ends_ms=taken.ends_ms)

    def sent(self, batch: DueBatch) -> None:
        now = self.clock()
        self.leases.dispatched([item.lease for item in batch.items if item.eta is None], ends_ms=batch.lease_ends_ms)
        if ahead := [item for item in batch.items if item.eta is not None]:
            longest = max(item.eta for item in ahead if item.eta is not None)
            self.leases.renew([item.lease for item in ahead], wait=max(longest - now, seconds(0)))

    def token(self, due: Due, *, batch: str, number: int) -> str:
        """Return the id of the task of an item: one random part for a batch, and the number in it."""
        return f"{batch}-{number}"

    # Holding

    def lease_of(self, args: Sequence[Any]) -> str:
        """Return the name of the lease of an item with these arguments."""
        *id, due_at = args
        try:
            return leases.name(" ".join(map(str, id)), parse_utc(due_at, field="due_at"))
        except PermanentError:
            return leases.name(" ".join(map(str, args)), None)  # the item itself refuses the argument

    def release(self, items: Sequence[DueItem]) -> None:
        self.leases.release([item.lease for item in items])

    def renew(self, items: Sequence[DueItem]) -> None:
        self.leases.renew([item.lease for item in items])

    def postpone(self, item: DueItem, *, wait: timedelta) -> None:
        self.leases.renew([item.lease], wait=wait)

    def rest(self, item: DueItem, *, pause: timedelta) -> None:
        self.leases.release([item.lease], pause=pause)

    def attempts(self, items: Sequence[DueItem]) -> AbstractContextManager[Attempts]:
        return self.leases.batch([item.lease for item in items])

    def attempt(self, item: DueItem) -> AbstractContextManager[Attempts]:
        return self.leases.alone(item.lease)


def leases_of(system: str) -> Leases:
    return Leases(system, seconds(settings().qm_lease_seconds))
