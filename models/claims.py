"""The one lease primitive: take documents that are due for a bounded time, so that nobody else takes them.

A claim is a sub-document beside the fields of the document's owner:

    claim: {token, held, claimed_until, due_at, losses}

`token` names the holder and is the Celery task id of the item. `held` is false once the holder gave the document
back: `claimed_until` is then the time from which it may be taken again. `due_at` repeats the due time that the
claim is for: when the document's own due time has become another one, the claim is void and the document starts
clean. `losses` counts leases in a row that ran out while held; each doubles the next lease.

Guarantee: of any number of claimers of one document, one wins. A claim that ended or is void may be taken again,
a live one may not. A crash at any point leaves a lease that ends by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

from pymongo.collection import Collection
from pymongo.errors import OperationFailure

from models import listing
from models.claimable import Claimable, Selection
from models.database import Document, value_at
from models.listing import Position
from queue_manager.core.clock import hours, milliseconds
from queue_manager.core.errors import ConfigurationError

LONGEST_LEASE = hours(1)
COUNTED = 100_000  # a third of a second; people and dashboards ask every second
_BAD_VALUE = 2  # MongoDB's code for, among others, a hint that names no index
Expression = Any


@dataclass(frozen=True, kw_only=True)
class Claimed:
    """A document that this process holds now."""

    id: Any
    token: str
    due_at: datetime


@dataclass(frozen=True, kw_only=True)
class Batch:
    """What one claim brought: `found` documents looked claimable, `won` are ours."""

    found: int
    won: list[Claimed]


@dataclass(frozen=True, kw_only=True)
class Claims:
    """The claims on one collection.

    Args:
        collection: opens the collection.
        of: the fields by which its documents are claimed.
        history: the owner's own fields that belong to one due time; removed with a claim that became void.
        lease: how long a claim lasts.
    """

    collection: Callable[[], Collection[Document]]
    of: Claimable
    lease: timedelta
    history: Sequence[str] = ()

    # Claiming

    def claim(self, selection: Selection, *, limit: int, now: datetime) -> Batch:
        """Claim up to `limit` documents of `selection`, each for one lease from its due time or from now.

        Three statements, not one transaction: between the first and the second other claimers may come first,
        and the write, which asks the condition again for each document, decides.
        """
        ids = self.find_ids(selection, limit=limit)
        if not ids:
            return Batch(found=0, won=[])
        mark = uuid4().hex
        self.collection().update_many(
            {"_id": {"$in": ids}, **selection.where}, [{"$set": self._taken(mark, now)}], hint="_id_"
        )
        won = self.collection().find(
            {"_id": {"$in": ids}, "claim.token": {"$gte": mark, "$lt": mark + "~"}},
            {"claim.token": 1, "claim.due_at": 1},
            hint="_id_",
        )
        claimed = [Claimed(id=doc["_id"], token=doc["claim"]["token"], due_at=doc["claim"]["due_at"]) for doc in won]
        return Batch(found=len(ids), won=sorted(claimed, key=lambda item: item.due_at))

    def find_ids(self, selection: Selection, *, limit: int) -> list[Any]:
        """Return the ids that `selection` holds now, in its order. Raises ConfigurationError: the index is missing."""
        with self._asking(selection):
            found = self.collection().find(
                selection.where, {"_id": 1}, hint=selection.index, sort=selection.sort or None, limit=limit
            )
            return [document["_id"] for document in found]

    def count(self, selection: Selection, *, limit: int = 0) -> int:
        """Count what `selection` holds now, up to `limit` (0: all). Raises as `find_ids`."""
        bound: dict[str, Any] = {"limit": limit} if limit else {}
        with self._asking(selection):
            return self.collection().count_documents(selection.where, hint=selection.index, **bound)

    def has(self, id: Any) -> bool:
        """Tell whether there is such a document."""
        return self.collection().find_one({"_id": id}, {"_id": 1}) is not None

    def walk(
        self, selection: Selection, fields: Sequence[str], *, after: Position | None, is_descending: bool
    ) -> Iterator[Document]:
        """Yield what `selection` holds in its `order`, beyond the position `after`. Raises as `find_ids`."""
        with self._asking(selection):
            yield from listing.walk(
                self.collection(),
                selection.where,
                index=selection.index,
                order=selection.order,
                fields=fields,
                after=after,
                is_descending=is_descending,
            )

    def tidy(self, now: datetime) -> None:
        """Put in order what no claimer would ever touch. Raises as `find_ids`.

        A flag without a lease, left by another system, becomes claimable one lease from now. A claim that ended
        although its document is due only later, or no more, goes.
        """
        given_back = [{"$set": {"claim": self.given_back(now + self.lease)}}]
        cleared = {"$unset": dict.fromkeys(("claim", *self.history), ""), "$set": {self.of.flag_field: False}}
        for selection, update in (
            (self.of.flagged(), given_back),
            (self.of.pointless(now), cleared),
            (self.of.left_over(now), cleared),
        ):
            with self._asking(selection):
                self.collection().update_many(selection.where, update, hint=selection.index)

    # Holding

    def renew(self, tokens: Mapping[Any, str], *, until: datetime) -> None:
        """Prolong to `until` the leases that these tokens, by document id, still hold. Never shortens one."""
        self.collection().update_many(
            {**self._held_by(tokens), "claim.held": True}, {"$max": {"claim.claimed_until": until}}, hint="_id_"
        )

    def release(self, tokens: Mapping[Any, str], *, now: datetime) -> None:
        """Give back what these tokens, by document id, still hold; it may be claimed at once."""
        claim = self._if_not_void(self.given_back(now))
        released = {**self.kept_history(), self.of.flag_field: False, "claim": claim}
        self.collection().update_many(self._held_by(tokens), [{"$set": released}], hint="_id_")

    def _held_by(self, tokens: Mapping[Any, str]) -> Document:
        return {"_id": {"$in": list(tokens)}, "claim.token": {"$in": list(tokens.values())}}

    # Looking

    def figures(self, now: datetime) -> Document:
        """Return `{pending, in_progress, stuck, cooling_off, lag_seconds}`: the lag of the oldest due document.

        A count that has reached `COUNTED` stands for that many or more.
        """
        claimable = (self.of.unclaimed(now), self.of.returned(now), self.of.void(now))
        return {
            "pending": min(sum(self.count(selection, limit=COUNTED) for selection in claimable), COUNTED),
            "in_progress": self.count(self.of.live(now), limit=COUNTED),
            "stuck": self.count(self.of.lost(now), limit=COUNTED),
            "cooling_off": self.count(self.of.cooling_off(now), limit=COUNTED),
            "lag_seconds": (now - self._oldest_due(now)).total_seconds(),
        }

    def _oldest_due(self, now: datetime) -> datetime:
        oldest = now
        for selection in (self.of.unclaimed(now), self.of.behind(now)):
            for first in self.find_ids(selection, limit=1):
                document = self.collection().find_one({"_id": first}, {self.of.due_field: 1}) or {}
                oldest = min(oldest, value_at(document, self.of.due_field) or now)
        return oldest

    @contextmanager
    def _asking(self, selection: Selection) -> Iterator[None]:
        try:
            yield
        except OperationFailure as error:
            if error.code != _BAD_VALUE:
                raise
            name = f"{self.collection().name}.{selection.index}"
            raise ConfigurationError(
                f"the index {name} is missing: run `queue-manager migrate` while its system is switched on"
            ) from error

    # Update expressions

    def kept_history(self) -> Document:
        """Return the owner's history fields to `$set`: as they are, or removed with a void claim."""
        return {name: self._if_not_void(f"${name}") for name in self.history}

    def given_back(self, claimable_at: Expression) -> Document:
        """Return the claim that nobody holds and that may be taken from `claimable_at` on."""
        return {
            "token": None,
            "held": False,
            "claimed_until": claimable_at,
            "due_at": f"${self.of.due_field}",
            "losses": 0,
        }

    def _taken(self, mark: str, now: datetime) -> Document:
        due = f"${self.of.due_field}"
        was_lost = {"$and": ["$claim.held", {"$eq": ["$claim.due_at", due]}]}
        losses = {"$cond": [was_lost, {"$add": ["$claim.losses", 1]}, 0]}
        # An id that has no text, such as a document, gets some other one: a token must only be unique.
        name = {"$convert": {"input": "$_id", "to": "string", "onError": {"$toString": {"$rand": {}}}}}
        return {
            self.of.flag_field: True,
            "claim": {
                "token": {"$concat": [mark, "-", name]},
                "held": True,
                "claimed_until": {"$add": [{"$max": [now, due]}, doubled(self.lease, losses, cap=LONGEST_LEASE)]},
                "due_at": due,
                "losses": losses,
            },
            **self.kept_history(),
        }

    def _if_not_void(self, value: Expression) -> Expression:
        due = f"${self.of.due_field}"
        return {"$cond": [{"$eq": [{"$ifNull": ["$claim.due_at", due]}, due]}, value, "$$REMOVE"]}


def doubled(base: timedelta, times: Expression, *, cap: timedelta) -> Expression:
    """Return the expression, in ms, of `base` doubled `times` times, at most `cap`.

    The formula of `queue_manager.core.retry.doubling`, worked out by the database because the count lives there.
    """
    longest = max(milliseconds(cap), milliseconds(base))
    wanted = {"$multiply": [milliseconds(base), {"$pow": [2, {"$min": [times, 32]}]}]}
    return {"$toLong": {"$min": [longest, wanted]}}
