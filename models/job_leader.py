"""Which leader hands out jobs: one document of `job_leaders`, counted up by take-overs.

    {_id: "jobs", epoch, heartbeat, since, is_settling}

The beat that leads numbers its take-overs (`queue_manager/beat/leader_lock.py`) and sends the number along. What an
older leader still says is refused. A Redis that lost its data counts from one again: it is told of the number known
here (`raise_epoch`). Should that fail, a lower number is believed when the newer leader was silent for a minute.
"""

from __future__ import annotations

from datetime import datetime

from pymongo.collection import Collection
from pymongo.errors import DuplicateKeyError

from models.database import Document, collection
from queue_manager.core.clock import minutes

NAME = "job_leaders"
_ID = "jobs"
SILENCE = minutes(1)


def lead(epoch: int, *, now: datetime) -> bool | None:
    """Note that the leader of `epoch` is alive. Returns whether it has taken over, `None` when it is refused.

    It has until `settle` says that what a take-over brings is done: a crash in between must not leave it out.
    """
    known = {"_id": _ID, "epoch": epoch}
    leading = _leaders().find_one_and_update(known, {"$max": {"heartbeat": now}})
    if leading is not None:
        return bool(leading.get("is_settling"))
    may_take_over = {"_id": _ID, "$or": [{"epoch": {"$lt": epoch}}, {"heartbeat": {"$lt": now - SILENCE}}]}
    taken: Document = {"$set": {"epoch": epoch, "heartbeat": now, "since": now, "is_settling": True}}
    try:
        _leaders().update_one(may_take_over, taken, upsert=True)
    except DuplicateKeyError:
        # Refused; or another process noted the same take-over a moment ago.
        return False if current_epoch() == epoch else None
    return True


def settle(epoch: int) -> None:
    """Say that what the take-over of `epoch` brings is done."""
    _leaders().update_one({"_id": _ID, "epoch": epoch}, {"$unset": {"is_settling": ""}})


def current() -> Document | None:
    """Return `{epoch, heartbeat, since}` of the last leader."""
    return _leaders().find_one({"_id": _ID}, {"_id": 0, "is_settling": 0})


def current_epoch() -> int | None:
    found = current()
    return None if found is None else int(found["epoch"])


def _leaders() -> Collection[Document]:
    return collection(NAME)
