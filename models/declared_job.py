"""Repeating jobs that are declared in code: one job of each name, without arguments, whose id is `declared:NAME`.

Guarantee: the id makes it unique, however many processes store it at once. An executing job is not changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from models.database import Document, update_all
from models.job import COUNTED_ATTEMPTS, DECLARED_PREFIX, JobState, jobs

IS_DECLARED: Document = {"$regex": f"^{DECLARED_PREFIX}"}
"""Condition of the ids of declared jobs."""


def declared_id(name: str) -> str:
    return f"{DECLARED_PREFIX}{name}"


def stored() -> dict[str, Document]:
    """Return the repetitions of declared jobs in any state, by name, without malformed ones."""
    readable = {"_id": IS_DECLARED, "repetition.since": {"$type": "date"}, **COUNTED_ATTEMPTS}
    found = jobs().find(readable, {"repetition": 1}, hint="_id_")
    return {
        one["_id"].removeprefix(DECLARED_PREFIX): one["repetition"]
        for one in found
        if isinstance(one["repetition"], dict) and isinstance(one["repetition"]["since"], datetime)
    }


def count(states: Sequence[JobState], name: str | None) -> int:
    """Return the number of declared jobs in `states`, of one name or of all names."""
    of_name = {"$gt": ""} if name is None else name
    wanted = {"_id": IS_DECLARED, "state": {"$in": [*states]}, "name": of_name, **COUNTED_ATTEMPTS}
    return jobs().count_documents(wanted, hint="_id_")


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
