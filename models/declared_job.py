"""Repeating jobs that are declared in code: one job of each name, without arguments, whose id is `declared:NAME`.

Guarantee: the id makes it unique, however many processes store it at once. An executing job is not changed.
"""

from __future__ import annotations

from datetime import datetime

from models.database import Document, update_all
from models.job import COUNTED_ATTEMPTS, DECLARED_PREFIX, JobState, jobs


def declared_id(name: str) -> str:
    return f"{DECLARED_PREFIX}{name}"


def stored() -> dict[str, Document]:
    """Return the repetitions of declared jobs in any state, by name, without malformed ones."""
    ids = {"$gte": DECLARED_PREFIX, "$lt": f"{DECLARED_PREFIX}\uffff"}
    found = jobs().find({"_id": ids, "repetition.since": {"$type": "date"}, **COUNTED_ATTEMPTS}, {"repetition": 1})
    return {
        one["_id"].removeprefix(DECLARED_PREFIX): one["repetition"]
        for one in found
        if isinstance(one["repetition"], dict) and isinstance(one["repetition"]["since"], datetime)
    }


def change(name: str, known: Document, repetition: Document, *, due: datetime, now: datetime) -> bool:
    """Replace a known repetition, and the due time of a pending job that is not due yet.

    Returns False if it is executing or was changed, or MongoDB refuses the change. A repeating job is never reserved.
    """
    is_unchanged = {
        "_id": declared_id(name),
        "state": {"$ne": JobState.EXECUTING},
        "repetition": {"$eq": known},
    }
    is_coming = {"$and": [{"$eq": ["$state", JobState.PENDING]}, {"$gt": ["$waiting", now]}]}
    changed: Document = {
        "repetition": {"$literal": repetition},
        "due": {"$cond": [is_coming, due, "$due"]},
        "waiting": {"$cond": [is_coming, due, {"$ifNull": ["$waiting", "$$REMOVE"]}]},
        "updated": now,
    }
    return update_all(jobs(), is_unchanged, [{"$set": changed}], hint="_id_") == 1
