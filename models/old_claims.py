"""Claims of release 0.1, which stored the lease of an item in its document; `migrate --finish` removes them."""

from __future__ import annotations

from typing import Any

from models.database import Document, collection

INDEXES = ("unclaimed_by_due", "claims_by_end", "claims_by_due", "claims_left_over")
"""Indexes of every collection with claims."""

_TYPES = {
    "token": ["string", "null"],
    "held": ["bool"],
    "claimed_until": ["date"],
    "due_at": ["date"],
    "losses": ["int", "long"],
}


def remove(name: str) -> int:
    """Remove the field `claim` if it has exactly the form of 0.1; return the number of documents changed.

    A field `claim` of another form belongs to another program.
    """
    typed: list[Any] = [{"$in": [{"$type": f"$claim.{key}"}, types]} for key, types in _TYPES.items()]
    only_these = {"$eq": [{"$size": {"$objectToArray": "$claim"}}, len(_TYPES)]}
    is_old_claim = {"$cond": [{"$eq": [{"$type": "$claim"}, "object"]}, {"$and": [only_these, *typed]}, False]}
    where: Document = {"claim.claimed_until": {"$type": "date"}, "$expr": is_old_claim}
    return collection(name).update_many(where, {"$unset": {"claim": ""}}).modified_count
