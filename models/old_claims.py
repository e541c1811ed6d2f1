"""Claims of release 0.1, which kept the lease of an item in its document: `migrate --finish` removes them."""

from __future__ import annotations

from typing import Any

from models.database import Document, collection

INDEXES = ("unclaimed_by_due", "claims_by_end", "claims_by_due", "claims_left_over")
"""Indexes of each collection whose documents were claimed."""

_TYPES = {
    "token": ["string", "null"],
    "held": ["bool"],
    "claimed_until": ["date"],
    "due_at": ["date"],
    "losses": ["int", "long"],
}


def remove(name: str) -> int:
    """Remove the field `claim` where it has exactly the form of 0.1; return from how many documents.

    A field of this name that has another form is another program's.
    """
    typed: list[Any] = [{"$in": [{"$type": f"$claim.{key}"}, types]} for key, types in _TYPES.items()]
    only_these = {"$eq": [{"$size": {"$objectToArray": "$claim"}}, len(_TYPES)]}
    is_ours = {"$cond": [{"$eq": [{"$type": "$claim"}, "object"]}, {"$and": [only_these, *typed]}, False]}
    where: Document = {"claim.claimed_until": {"$type": "date"}, "$expr": is_ours}
    return collection(name).update_many(where, {"$unset": {"claim": ""}}).modified_count
