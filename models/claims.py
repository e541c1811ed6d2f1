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

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import reduce
from types import MappingProxyType
from typing import Any
from uuid import uuid4

from bson import ObjectId
from pymongo import ASCENDING, IndexModel
from pymongo.collection import Collection
from pymongo.errors import OperationFailure

from models.database import Document
from queue_manager.core.clock import hours, milliseconds
from queue_manager.core.errors import ConfigurationError

LONGEST_LEASE = hours(1)
# Said in every condition on a date: only then the server knows that a partial index holds all that is asked for,
# and reads a range of it instead of the whole.
A_DATE: Document = {"$type": "date"}
_BAD_HINT = 2  # MongoDB's BadValue: the index that a hint names does not exist
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
class Selection:
    """Claimable documents of one kind, oldest due time first, and the index that finds nothing else.

    `where` is asked again in the write, per document: it must tell alone that the document may be taken.
    """

    where: Document
    index: str


@dataclass(frozen=True, kw_only=True)
class Claims:
    """The claims on one collection.

    Args:
        collection: opens the collection.
        due_field: path of the date from which a document is due.
        flag: path of the boolean that tells other readers of the collection that a document is being worked on.
        history: the owner's own fields that belong to one due time; removed with a claim that became void.
        rest_field: path of the date before which the document must be left alone, if it has one.
        lease: how long a claim lasts.
        parse_id: reads a document's id from the text that a token ends with.
    """

    collection: Callable[[], Collection[Document]]
    due_field: str
    flag: str
    lease: timedelta
    rest_field: str
    history: Sequence[str] = ()
    parse_id: Callable[[str], Any] = ObjectId

    # What may be claimed

    def unclaimed(self, after: datetime | None, until: datetime) -> Selection:
        """Documents that nobody has claimed, due in (`after`, `until`]."""
        where = {
            "claim.claimed_until": None,
            self.flag: {"$in": [False, None]},
            **self.due(until, after=after),
            "$or": [{self.rest_field: None}, {self.rest_field: {"$lte": until}}],
        }
        return Selection(where=where, index="unclaimed_by_due")

    def returned(self, now: datetime) -> Selection:
        """Due documents that were given back and may be taken again."""
        return Selection(where=self._ended(held=False, now=now), index="claims_by_end")

    def lost(self, now: datetime) -> Selection:
        """Due documents whose lease ran out while held: the worker died, or the message still waits."""
        return Selection(where=self._ended(held=True, now=now), index="claims_by_end")

    def void(self, now: datetime) -> Selection:
        """Due documents under a claim that is for another due time than theirs."""
        where = {
            "claim.claimed_until": {"$gt": now, **A_DATE},
            **self.due(now),
            "$expr": {"$ne": ["$claim.due_at", f"${self.due_field}"]},
        }
        return Selection(where=where, index="claims_by_due")

    def live(self, now: datetime) -> Selection:
        """Documents that somebody holds: waiting in the broker, being worked on, or waiting to be tried again."""
        where = {"claim.held": True, "claim.claimed_until": {"$gt": now, **A_DATE}, **self.dated()}
        return Selection(where=where, index="claims_by_end")

    def cooling_off(self, now: datetime) -> Selection:
        """Documents that were given back to rest until later."""
        resting = {"claim.held": False, "claim.claimed_until": {"$gt": now, **A_DATE}, self.flag: False}
        where = {**resting, **self.dated()}
        return Selection(where=where, index="claims_by_end")

    def due(self, until: datetime, *, after: datetime | None = None) -> Document:
        """Return the condition that a document is due in (`after`, `until`]."""
        return self.dated({"$lte": until} if after is None else {"$gt": after, "$lte": until})

    def dated(self, condition: Mapping[str, Any] = MappingProxyType({})) -> Document:
        """Return the condition that the due field is a date, and that `condition` holds for it.

        A list of dates, which would match too, is kept out, of the indexes first of all: one such document would
        make MongoDB sort in memory, for all documents and for ever.
        """
        return {self.due_field: {**condition, **A_DATE}, f"{self.due_field}.0": None}

    def _ended(self, *, held: bool, now: datetime) -> Document:
        return {"claim.held": held, "claim.claimed_until": {"$lte": now, **A_DATE}, **self.due(now)}

    def indexes(self) -> list[IndexModel]:
        """The indexes of the selections. Both over claims hold only what is in flight or cooling off."""
        claimed = {"claim.claimed_until": A_DATE, **self.dated()}
        return [
            IndexModel(
                [(self.flag, ASCENDING), (self.due_field, ASCENDING)],
                name="unclaimed_by_due",
                partialFilterExpression={"claim.claimed_until": None, **self.dated()},
            ),
            IndexModel(
                [("claim.held", ASCENDING), ("claim.claimed_until", ASCENDING), (self.due_field, ASCENDING)],
                name="claims_by_end",
                partialFilterExpression=claimed,
            ),
            IndexModel([(self.due_field, ASCENDING)], name="claims_by_due", partialFilterExpression=claimed),
        ]

    # Claiming

    def claim(self, selection: Selection, *, limit: int, now: datetime) -> Batch:
        """Claim up to `limit` documents of `selection`, oldest first, each for one lease from its due time or now.

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
        """Return the ids that `selection` holds now, oldest first.

        Raises:
            ConfigurationError: the index is missing.
        """
        # The index order of claims is the order in which leases ended: the longest lost come first.
        order = [(self.due_field, ASCENDING)] if selection.index != "claims_by_end" else []
        found = self.collection().find(selection.where, {"_id": 1}, hint=selection.index, limit=limit, sort=order)
        try:
            return [document["_id"] for document in found]
        except OperationFailure as error:
            raise self._missing_index(error, selection) from error

    def count(self, selection: Selection, *, limit: int = 0) -> int:
        """Count what `selection` holds now, up to `limit` (0: all)."""
        bound: dict[str, Any] = {"limit": limit} if limit else {}
        try:
            return self.collection().count_documents(selection.where, hint=selection.index, **bound)
        except OperationFailure as error:
            raise self._missing_index(error, selection) from error

    def figures(self, now: datetime) -> Document:
        """Return `{pending, in_progress, stuck, cooling_off, lag_seconds}`: the lag of the oldest due document."""
        claimable = (self.unclaimed(None, now), self.returned(now), self.void(now))
        return {
            "pending": sum(self.count(selection) for selection in claimable),
            "in_progress": self.count(self.live(now)),
            "stuck": self.count(self.lost(now)),
            "cooling_off": self.count(self.cooling_off(now)),
            "lag_seconds": self._lag(now).total_seconds(),
        }

    def _lag(self, now: datetime) -> timedelta:
        resting = {"claim.held": False, "claim.claimed_until": {"$gt": now, **A_DATE}}
        claimed = {"claim.claimed_until": A_DATE, **self.due(now), "$nor": [resting]}
        oldest = [now]
        for where, index in (
            (self.unclaimed(None, now).where, "unclaimed_by_due"),
            (claimed, "claims_by_due"),
        ):
            order = [(self.due_field, ASCENDING)]
            for document in self.collection().find(where, {self.due_field: 1}, hint=index, sort=order, limit=1):
                due_at: Any = reduce(dict.__getitem__, self.due_field.split("."), document)
                oldest.append(due_at)
        return now - min(oldest)

    def _missing_index(self, error: OperationFailure, selection: Selection) -> Exception:
        if error.code != _BAD_HINT:
            return error
        name = self.collection().name
        return ConfigurationError(f"index {name}.{selection.index} is missing: run `queue-manager migrate`")

    def tidy(self, now: datetime) -> None:
        """Put in order what no claimer would ever touch.

        A flag without a lease, left by another system, becomes claimable one lease from now. A claim that ended
        although its document is due only later protects nothing any more.
        """
        self.collection().update_many(
            {"claim.claimed_until": None, self.flag: True, **self.dated()},
            [{"$set": {"claim": self.given_back(now + self.lease)}}],
            hint="unclaimed_by_due",
        )
        self.collection().update_many(
            {
                "claim.held": {"$in": [True, False]},
                "claim.claimed_until": {"$lte": now, **A_DATE},
                **self.dated({"$gt": now}),
            },
            {"$unset": dict.fromkeys(("claim", *self.history), ""), "$set": {self.flag: False}},
            hint="claims_by_end",
        )

    # Holding

    def renew(self, tokens: Sequence[str], *, until: datetime) -> int:
        """Prolong to `until` the leases that these tokens still hold; return how many. Never shortens one."""
        ids = [self.parse_id(token.partition("-")[2]) for token in tokens if "-" in token]
        result = self.collection().update_many(
            {"_id": {"$in": ids}, "claim.token": {"$in": list(tokens)}, "claim.held": True},
            {"$max": {"claim.claimed_until": until}},
            hint="_id_",
        )
        return result.matched_count

    def release(self, tokens_by_id: dict[Any, str], *, now: datetime) -> int:
        """Give back what these tokens hold, claimable at once; return how many."""
        result = self.collection().update_many(
            {"_id": {"$in": list(tokens_by_id)}, "claim.token": {"$in": list(tokens_by_id.values())}},
            [
                {
                    "$set": {
                        **self.kept_history(),
                        self.flag: False,
                        "claim": self._if_not_void(self.given_back(now)),
                    }
                }
            ],
            hint="_id_",
        )
        return result.modified_count

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
            "due_at": f"${self.due_field}",
            "losses": 0,
        }

    def _taken(self, mark: str, now: datetime) -> Document:
        due = f"${self.due_field}"
        was_lost = {"$and": ["$claim.held", {"$eq": ["$claim.due_at", due]}]}
        losses = {"$cond": [was_lost, {"$add": ["$claim.losses", 1]}, 0]}
        lease = doubled(self.lease, times=losses, cap=LONGEST_LEASE)
        return {
            self.flag: True,
            "claim": {
                "token": {"$concat": [mark, "-", {"$toString": "$_id"}]},
                "held": True,
                "claimed_until": {"$add": [{"$max": [now, due]}, lease]},
                "due_at": due,
                "losses": losses,
            },
            **self.kept_history(),
        }

    def _if_not_void(self, value: Expression) -> Expression:
        claimed_for = {"$ifNull": ["$claim.due_at", f"${self.due_field}"]}
        return {"$cond": [{"$eq": [claimed_for, f"${self.due_field}"]}, value, "$$REMOVE"]}


def doubled(base: timedelta, *, times: Expression, cap: timedelta) -> Expression:
    """Return the expression, in ms, of `base` doubled `times` times, at most `cap`.

    The same formula as `queue_manager.core.retry.doubling`, worked out by the database because the count lives there.
    """
    exponent = {"$min": [times, 32]}
    longest = max(milliseconds(cap), milliseconds(base))
    return {"$toLong": {"$min": [longest, {"$multiply": [milliseconds(base), {"$pow": [2, exponent]}]}]}}
