"""Which documents may be claimed, said in conditions that partial indexes serve: what is due is read, nothing else.

See `docs/decisions/partial-indexes.md` for why each condition on a date says that it is one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

from pymongo import ASCENDING, IndexModel

from models.database import Document
from models.listing import Order

# The server reads a range of a partial index only when the condition repeats the index's own, word by word. Before
# the epoch lies what a program wrote by mistake; the driver cannot even read all of it.
A_DATE: Document = {"$type": "date", "$gte": datetime(1970, 1, 1, tzinfo=UTC)}

UNCLAIMED_BY_DUE = "unclaimed_by_due"
CLAIMS_BY_END = "claims_by_end"
CLAIMS_BY_DUE = "claims_by_due"
CLAIMS_LEFT_OVER = "claims_left_over"


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Claimable documents of one kind, in an order, and the index that finds nothing else.

    `where` is asked again in the write, per document: it must tell alone that the document may be taken.
    """

    where: Document
    index: str
    sort: Sequence[tuple[str, int]] = ()
    """Empty: in the index's own order, those first whose lease ended first."""
    order: Order = ()
    """The fields by which the index can list it, a page at a time."""

    def among(self, ids: Sequence[Any]) -> Selection:
        """Narrow it to those of `ids` that it holds."""
        return Selection(where={**self.where, "_id": {"$in": list(ids)}}, index="_id_")


@dataclass(frozen=True, kw_only=True)
class Claimable:
    """The fields of a collection by which its documents fall due and are claimed.

    Args:
        due_field: path of the date from which a document is due.
        flag_field: path of the boolean that tells other readers that a document is being worked on.
        rest_field: path of the date before which a document that failed must be left alone.
    """

    due_field: str
    flag_field: str
    rest_field: str

    def unclaimed(self, until: datetime, *, after: datetime | None = None) -> Selection:
        """Documents that nobody has claimed, due in (`after`, `until`], the oldest first."""
        where = {
            "claim.claimed_until": None,
            self.flag_field: {"$in": [False, None]},
            **self.due(until, after=after),
            "$or": [{self.rest_field: None}, {self.rest_field: {"$lte": until}}],
        }
        return Selection(where=where, index=UNCLAIMED_BY_DUE, sort=self.oldest_first, order=self.by_due)

    def flagged(self) -> Selection:
        """Documents with a flag of any kind and no lease: another system left them."""
        is_set = {self.flag_field: {"$nin": [False, None]}}
        where = {"claim.claimed_until": None, **is_set, **self.dated()}
        return Selection(where=where, index=UNCLAIMED_BY_DUE)

    def void(self, now: datetime) -> Selection:
        """Due documents under a claim that is for another due time than theirs."""
        is_for_another = {"$expr": {"$ne": ["$claim.due_at", f"${self.due_field}"]}}
        where = {"claim.claimed_until": {**A_DATE, "$gt": now}, **self.due(now), **is_for_another}
        return Selection(where=where, index=CLAIMS_BY_DUE, sort=self.oldest_first)

    def lost(self, now: datetime) -> Selection:
        """Due documents whose lease ran out while held: the worker died, or the message still waits."""
        return self._claimed(self.due(now), held=True, until={"$lte": now})

    def returned(self, now: datetime) -> Selection:
        """Due documents that were given back and may be taken again."""
        return self._claimed(self.due(now), held=False, until={"$lte": now})

    def hindered_by_nothing(self, now: datetime) -> Selection:
        """Due documents under a claim that hinders nobody, `returned` and `void` together, in the order of `unclaimed`.

        It is looked for among all due documents that are claimed.
        """
        is_for_another = {"$expr": {"$ne": ["$claim.due_at", f"${self.due_field}"]}}
        returned = {"claim.held": False, "claim.claimed_until": {"$lte": now}}
        void = {"claim.claimed_until": {"$gt": now}, **is_for_another}
        where = {"claim.claimed_until": A_DATE, **self.due(now), "$or": [returned, void]}
        return Selection(where=where, index=CLAIMS_BY_DUE, order=self.by_due)

    def pointless(self, now: datetime) -> Selection:
        """Documents whose claim ended although they are due only later: it protects nothing any more."""
        return self._claimed(self.dated({"$gt": now}), held={"$in": [True, False]}, until={"$lte": now})

    def left_over(self, now: datetime) -> Selection:
        """Documents that fall due no more and whose claim ended: their worker died, and somebody else did the work."""
        where = {"claim.claimed_until": {**A_DATE, "$lte": now}, self.due_field: None}
        return Selection(where=where, index=CLAIMS_LEFT_OVER)

    def live(self, now: datetime) -> Selection:
        """Documents that somebody holds: waiting in the broker, being worked on, or waiting to be tried again."""
        return self._claimed(self.dated(), held=True, until={"$gt": now})

    def cooling_off(self, now: datetime) -> Selection:
        """Documents that were given back to rest until later."""
        return self._claimed({**self.dated(), self.flag_field: False}, held=False, until={"$gt": now})

    def behind(self, now: datetime) -> Selection:
        """Due documents that are claimed and not at rest, the oldest first."""
        resting = {"claim.held": False, "claim.claimed_until": {"$gt": now}}
        where = {"claim.claimed_until": A_DATE, **self.due(now), "$nor": [resting]}
        return Selection(where=where, index=CLAIMS_BY_DUE, sort=self.oldest_first)

    def _claimed(self, document: Document, *, held: Any, until: Document) -> Selection:
        where = {"claim.held": held, "claim.claimed_until": {**A_DATE, **until}, **document}
        return Selection(where=where, index=CLAIMS_BY_END, order=("claim.claimed_until", self.due_field, "_id"))

    @property
    def by_due(self) -> Order:
        return (self.due_field, "_id")

    @property
    def oldest_first(self) -> Sequence[tuple[str, int]]:
        return [(self.due_field, ASCENDING)]

    def due(self, until: datetime, *, after: datetime | None = None) -> Document:
        """Return the condition that a document is due in (`after`, `until`]."""
        return self.dated({"$lte": until} if after is None else {"$gt": after, "$lte": until})

    def dated(self, condition: Mapping[str, Any] = MappingProxyType({})) -> Document:
        """Return the condition that the due field is a date, and that `condition` holds for it.

        Lists would match too: of dates, or on the way to the date.
        """
        parents = [self.due_field[:at] for at, sign in enumerate(self.due_field) if sign == "."]
        no_lists = {parent: {"$not": {"$type": "array"}} for parent in parents}
        return {**self._indexed, self.due_field: {**A_DATE, **condition}, **no_lists}

    @property
    def _indexed(self) -> Document:
        """The part of `dated` that a partial index can hold.

        A list of dates in an index would make MongoDB sort in memory, for all documents and for ever.
        """
        return {self.due_field: A_DATE, f"{self.due_field}.0": None}

    def indexes(self) -> list[IndexModel]:
        """The indexes of the selections. Those over claims hold only what is in flight or cooling off.

        `_id` comes last so that a list goes on at an exact place among documents of one moment.
        """
        claimed = {"claim.claimed_until": A_DATE, **self._indexed}
        return [
            IndexModel(
                [(self.flag_field, ASCENDING), (self.due_field, ASCENDING), ("_id", ASCENDING)],
                name=UNCLAIMED_BY_DUE,
                partialFilterExpression={"claim.claimed_until": None, **self._indexed},
            ),
            IndexModel(
                [
                    ("claim.held", ASCENDING),
                    ("claim.claimed_until", ASCENDING),
                    (self.due_field, ASCENDING),
                    ("_id", ASCENDING),
                ],
                name=CLAIMS_BY_END,
                partialFilterExpression=claimed,
            ),
            IndexModel(
                [(self.due_field, ASCENDING), ("_id", ASCENDING)],
                name=CLAIMS_BY_DUE,
                partialFilterExpression=claimed,
            ),
            IndexModel(
                [("claim.claimed_until", ASCENDING)],
                name=CLAIMS_LEFT_OVER,
                partialFilterExpression={"claim.claimed_until": A_DATE, self.due_field: None},
            ),
        ]
