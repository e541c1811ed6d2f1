"""Which leader hands out jobs: one document of `job_leaders`, counted up by take-overs.

    {_id: "jobs", epoch, heartbeat, since}

The beat that leads numbers its take-overs (`queue_manager/transport/leadership.py`) and sends the number along. What an
older leader still says is refused; only when the newer one has been silent for a minute is a lower number believed,
because a Redis that lost its data counts from one again.
"""

from __future__ import annotations

from datetime import datetime

from pymongo import IndexModel
from pymongo.collection import Collection
from pymongo.errors import DuplicateKeyError

from models.database import Document, collection
from queue_manager.core.clock import minutes

NAME = "job_leaders"
_ID = "jobs"
SILENCE = minutes(1)


def lead(epoch: int, *, now: datetime) -> bool | None:
    """Note that the leader of `epoch` is alive. Returns whether it has just taken over, `None` when it is refused."""
    known = {"_id": _ID, "epoch": epoch}
    if _leaders().update_one(known, {"$max": {"heartbeat": now}}).matched_count:
        return False
    may_take_over = {"_id": _ID, "$or": [{"epoch": {"$lt": epoch}}, {"heartbeat": {"$lt": now - SILENCE}}]}
    taken: Document = {"$set": {"epoch": epoch, "heartbeat": now, "since": now}}
    try:
        _leaders().update_one(may_take_over, taken, upsert=True)
    except DuplicateKeyError:
        # Refused; or another process noted the same take-over a moment ago.
        return False if current_epoch() == epoch else None
    return True


def current() -> Document | None:
    """Return `{epoch, heartbeat, since}` of the last leader."""
    return _leaders().find_one({"_id": _ID}, {"_id": 0})


def current_epoch() -> int | None:
    found = current()
    return None if found is None else int(found["epoch"])


def collections() -> dict[str, list[IndexModel]]:
    """Return what this module keeps, for `migrate`: found by its id alone."""
    return {NAME: []}


def _leaders() -> Collection[Document]:
    return collection(NAME)
