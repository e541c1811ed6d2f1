"""Due work whose items are documents under a claim: found, held, renewed and given back, alike in every system."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, ClassVar

from models import database, listing
from models.claimable import Selection
from models.claims import Batch, Claimed, Claims
from models.listing import Position
from queue_manager.core.clock import to_iso
from queue_manager.core.errors import PermanentError
from queue_manager.items import Item, Listed, State, merged
from services.due_work import Backlog, DueBatch, DueItem, DueWork, Limits


@dataclass(frozen=True, kw_only=True)
class ClaimedWork(DueWork):
    """Work whose items are claimed documents; the arguments of an item are `(id, due time)`, as texts."""

    claims: Claims
    clock: Callable[[], datetime]
    limits: Limits
    ahead_by: timedelta
    """What falls due within this time is sent with its time."""

    def claim_due(self, backlog: Backlog) -> Iterator[DueBatch]:
        """Claim what is due, oldest first, and a bounded number of what falls due before the next scan.

        What waits in the broker is not lost. Claims keep the queue filled up to `limits.max_queue`; of the leases that
        ran out, at most as many are taken again as there are more of them than messages waiting, so that a slow
        backlog is never published twice.
        """
        now = self.clock()
        self.claims.tidy(now)
        due, no_limit = self.claims.of, sys.maxsize
        lost = self.claims.count(due.lost(now), limit=self.limits.max_queue + backlog.waiting) - backlog.waiting
        plan: list[tuple[Selection, int]] = [
            (due.lost(now), lost),
            (due.void(now), no_limit),
            (due.returned(now), no_limit),
            (due.unclaimed(now), no_limit),
            (due.unclaimed(now + self.ahead_by, after=now), self.limits.ahead),
        ]
        for selection, most in plan:
            for batch in self._batches(selection, most, backlog):
                sent_at = self.clock()
                yield DueBatch(found=batch.found, items=[self._item(claimed, sent_at) for claimed in batch.won])

    def _batches(self, selection: Selection, budget: int, backlog: Backlog) -> Iterator[Batch]:
        while budget > 0 and (room := backlog.room(self.limits.max_queue, at_least=self.limits.batch)):
            batch = self.claims.claim(selection, limit=min(budget, room, self.limits.batch), now=self.clock())
            if not batch.found:
                return
            budget -= len(batch.won)
            backlog.add(len(batch.won))
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
        return database.id_text(claimed.id), to_iso(claimed.due_at)

    def read_id(self, argument: Any) -> Any:
        """Return the document's id. Raises PermanentError when the argument names none."""
        return database.read_id(argument, field="id")

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


@dataclass(frozen=True, kw_only=True)
class ClaimedItems(ClaimedWork, Listed):
    """Claimed work whose documents people look at."""

    shown: ClassVar[Sequence[str]]
    """Fields that `describe` reads beside those of the claim."""

    def items(self, state: State, *, after: Position | None = None, newest_first: bool = True) -> Iterator[Item]:
        """Yield what is in a state. Due ones come by their due time, the others by the end of their claim."""
        lists = [
            self._list(selection, state, after=after, newest_first=newest_first)
            for selection in self._selections(self.clock())[state]
        ]
        return merged(lists, newest_first=newest_first)

    def _list(
        self, selection: Selection, state: State, *, after: Position | None, newest_first: bool
    ) -> Iterator[Item]:
        fields = (*self.shown, "claim", self.claims.of.due_field)
        for document in self.claims.walk(selection, fields, after=after, is_descending=newest_first):
            yield self.describe(document, state, listing.position(document, selection.order))

    def describe(self, document: dict[str, Any], state: State, position: Position) -> Item:
        """Return the item that a document is, by its claim alone."""
        due_at = database.value_at(document, self.claims.of.due_field)
        claim = document.get("claim", {}) if state != "due" else {}
        ends_at = claim.get("claimed_until")
        return Item(
            id=database.id_text(document["_id"]),
            title="",
            state=state,
            position=position,
            due_at=due_at,
            since={"due": due_at, "stuck": ends_at}.get(state),
            attempts=claim.get("losses", 0),
            next_at=ends_at if state in ("in-progress", "failed") else None,
        )

    def take(self, ids: Sequence[str]) -> list[DueItem]:
        """Claim those of `ids` that are due, stuck or at rest: for scans they are in progress from then on."""
        now = self.clock()
        selections = self._selections(now)
        taken = [
            self.claims.claim(selection.among(list(self._keys(ids))), limit=len(ids), now=now)
            for state in ("due", "stuck", "failed")
            for selection in selections[state]
        ]
        return [self._item(claimed, now) for batch in taken for claimed in batch.won]

    def has(self, id: str) -> bool:
        return any(self.claims.has(key) for key in self._keys([id]))

    def _keys(self, ids: Sequence[str]) -> Iterator[Any]:
        for id in ids:
            with suppress(PermanentError):
                yield self.read_id(id)

    def _selections(self, now: datetime) -> dict[State, list[Selection]]:
        of = self.claims.of
        return {
            "due": [of.unclaimed(now), of.hindered_by_nothing(now)],
            "in-progress": [of.live(now)],
            "stuck": [of.lost(now)],
            "failed": [of.cooling_off(now)],
        }
