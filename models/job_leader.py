"""The leader that dispatches jobs: one document in `job_leaders` with the epoch of its take-over.

    {_id: "jobs", epoch, heartbeat, since, is_settling}

The leading beat numbers its take-overs (`queue_manager/beat/leader_lock.py`) and sends this epoch with each dispatch.
A dispatch of an older leader is refused. If Redis lost its data, it counts from one again; `raise_epoch` then raises
its epoch above the one stored here. As a fallback, a lower epoch is accepted once the newer leader has been silent for
a minute.
"""

from __future__ import annotations

from datetime import datetime

from pymongo.collection import Collection
from pymongo.errors import DuplicateKeyError

from models.database import Document, collection
from queue_manager.core.clock import minutes

NAME = "job_leaders"
_ID = "jobs"
SILENCE_TIMEOUT = minutes(1)


def lead(epoch: int, *, now: datetime) -> bool | None:
    """Record a heartbeat of the leader of `epoch`. Returns True on a take-over, `None` if the epoch is refused.

    Returns True until `settle` is called, so that a take-over interrupted by a crash is completed by the next call.
    """
    known = {"_id": _ID, "epoch": epoch}
    leading = _leaders().find_one_and_update(known, {"$max": {"heartbeat": now}})
    if leading is not None:
        return bool(leading.get("is_settling"))
    may_take_over = {"_id": _ID, "$or": [{"epoch": {"$lt": epoch}}, {"heartbeat": {"$lt": now - SILENCE_TIMEOUT}}]}
    taken: Document = {"$set": {"epoch": epoch, "heartbeat": now, "since": now, "is_settling": True}}
    try:
        _leaders().update_one(may_take_over, taken, upsert=True)
    except DuplicateKeyError:
        # Refused, or another process has just recorded the same take-over.
        return False if current_epoch() == epoch else None
    return True


def settle(epoch: int) -> None:
    """Record that the take-over of `epoch` is complete."""
    _leaders().update_one({"_id": _ID, "epoch": epoch}, {"$unset": {"is_settling": ""}})


def current() -> Document | None:
    """Return `{epoch, heartbeat, since}` of the current leader."""
    return _leaders().find_one({"_id": _ID}, {"_id": 0, "is_settling": 0})


def current_epoch() -> int | None:
    found = current()
    return None if found is None else int(found["epoch"])


def _leaders() -> Collection[Document]:
    return collection(NAME)
