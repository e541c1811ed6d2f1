"""Due work whose items are documents under a claim: found, held, renewed and given back, alike in every system."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from models import database
from models.claimable import Selection
from models.claims import Batch, Claimed, Claims
from queue_manager.core.clock import to_iso
from queue_manager.core.errors import PermanentError
from services.due_work import DueBatch, DueItem, DueWork, Limits


@dataclass(frozen=True, kw_only=True)
class ClaimedWork(DueWork):
    """Work whose items are claimed documents; the arguments of an item are `(id, due time)`, as texts."""

    claims: Claims
    clock: Callable[[], datetime]
    limits: Limits
    ahead_by: timedelta
    """What falls due within this time is sent with its time."""

    def claim_due(self, waiting: int) -> Iterator[DueBatch]:
        """Claim what is due, oldest first, and a bounded number of what falls due before the next scan.

        What waits in the broker is not lost. New claims fill the queue up to `limits.max_queue`; of the leases that
        ran out, at most as many are taken again as there are more of them than messages waiting, so that a slow
        backlog is never published twice.
        """
        now = self.clock()
        self.claims.tidy(now)
        due, capacity = self.claims.of, self.limits.max_queue - waiting
        lost = self.claims.count(due.lost(now), limit=self.limits.max_queue + waiting) - waiting
        plan: list[tuple[Selection, int]] = [
            (due.lost(now), lost),
            (due.void(now), self.limits.max_queue),
            (due.returned(now), self.limits.max_queue),
            (due.unclaimed(now), self.limits.max_queue),
            (due.unclaimed(now + self.ahead_by, after=now), self.limits.ahead),
        ]
        for selection, most in plan:
            for batch in self._batches(selection, min(most, capacity)):
                capacity -= len(batch.won)
                sent_at = self.clock()
                yield DueBatch(found=batch.found, items=[self._item(claimed, sent_at) for claimed in batch.won])

    def _batches(self, selection: Selection, budget: int) -> Iterator[Batch]:
        while budget > 0:
            batch = self.claims.claim(selection, limit=min(budget, self.limits.batch), now=self.clock())
            if not batch.found:
                return
            budget -= len(batch.won)
            yield batch

    def release(self, items: Sequence[DueItem]) -> None:
        self.claims.release(self._tokens(items), now=self.clock())

    def renew(self, items: Sequence[DueItem]) -> None:
        self.claims.renew(self._tokens(items), until=self.clock() + self.claims.lease)

    def postpone(self, item: DueItem, *, wait: timedelta) -> None:
        self.claims.renew(self._tokens([item]), until=self.clock() + wait + self.claims.lease)

    def rest(self, item: DueItem, *, pause: timedelta) -> None:
        """Give the item back as of later: until then no scan takes it."""
        self.claims.release(self._tokens([item]), now=self.clock() + pause)

    def arguments(self, claimed: Claimed) -> tuple[Any, ...]:
        """Return the arguments of the item's task; the first names the document."""
        return str(claimed.id), to_iso(claimed.due_at)

    def read_id(self, argument: Any) -> Any:
        """Return the document's id. Raises PermanentError when the argument names none."""
        return database.object_id(argument, field="id")

    def _item(self, claimed: Claimed, now: datetime) -> DueItem:
        eta = claimed.due_at if claimed.due_at > now else None
        return DueItem(token=claimed.token, args=self.arguments(claimed), eta=eta)

    def _tokens(self, items: Sequence[DueItem]) -> dict[Any, str]:
        """Return the tokens by document; a call by hand with a malformed id holds nothing."""
        tokens = {}
        for item in items:
            with suppress(PermanentError):
                tokens[self.read_id(next(iter(item.args), None))] = item.token
        return tokens
