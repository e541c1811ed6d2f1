"""Job queues: collections `job_queues`, which queues are paused, and `job_leaders`, which leader dispatches them.

    job_queues   {_id: name, paused, pause: {at, by, reason}}           one document per paused queue
    job_leaders  {_id: "jobs", epoch, heartbeat, since, is_settling, gap: {began, ended}}    one document

The leading beat numbers its takeovers (`queue_manager/beat/leader_lock.py`) and sends this epoch with each dispatch.
A dispatch of an older leader is refused. If Redis lost its data, it counts from one again; `raise_epoch` then gives
the leader an epoch above the one stored here. As a fallback, a lower epoch is accepted once the newer leader has been
silent for a minute, or for longer if dispatches are less frequent.

`gap` is the last long time between two heartbeats. MongoDB may have been unavailable then, to the workers too.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from math import nan

from pydantic import TypeAdapter
from pymongo import IndexModel, UpdateOne
from pymongo.collection import Collection
from pymongo.errors import DuplicateKeyError

from models.database import Document, collection
from models.malformed import readable_one, typed
from queue_manager.core.clock import EPOCH, milliseconds, minutes
from queue_manager.pauses import PauseState

QUEUES_COLLECTION = "job_queues"
LEADERS_COLLECTION = "job_leaders"
LEADER_ID = "jobs"
SILENCE_TIMEOUT = minutes(1)
_PAUSE = TypeAdapter(PauseState)
_IS_A_NUMBER: Document = {"$type": ["int", "long", "double"], "$ne": nan}


class NewerLeader(Exception):
    """A leader with a higher epoch dispatches the jobs."""


@dataclass(frozen=True, kw_only=True)
class DispatchGap:
    """The time between two heartbeats of leaders."""

    began: datetime
    ended: datetime


def queues() -> Collection[Document]:
    return collection(QUEUES_COLLECTION)


def leaders() -> Collection[Document]:
    return collection(LEADERS_COLLECTION)


QUEUE_INDEXES = {QUEUES_COLLECTION: [IndexModel([("paused", 1)], name="paused_queues", sparse=True)]}


# Pauses


def pause(names: Iterable[str], made: PauseState) -> None:
    """Pause queues, which need not have jobs."""
    _switch(names, {"$set": {"paused": True, "pause": asdict(made)}}, upsert=True)


def resume(names: Iterable[str]) -> None:
    """Resume queues."""
    _switch(names, {"$unset": {"paused": "", "pause": ""}}, upsert=False)


def _switch(names: Iterable[str], change: Document, *, upsert: bool) -> None:
    writes = [UpdateOne({"_id": name}, change, upsert=upsert) for name in names]
    if writes:
        queues().bulk_write(writes, ordered=False)


def pauses() -> dict[str, PauseState]:
    """Return the pauses by the names of the queues."""
    found = queues().find({"paused": True}, {"pause": 1}, hint="paused_queues")
    # A malformed pause only says that the queue is paused.
    return {
        queue["_id"]: readable_one(queue, read_pause, of=QUEUES_COLLECTION) or PauseState()
        for queue in found
        if isinstance(queue["_id"], str)
    }


def read_pause(queue: Document) -> PauseState:
    return _PAUSE.validate_python(queue.get("pause", {}))


def is_paused(name: str) -> bool:
    return queues().find_one({"_id": name, "paused": True}, {"_id": 1}) is not None


# The leader


def lead(epoch: int, *, now: datetime, min_gap: timedelta = SILENCE_TIMEOUT) -> bool:
    """Record a heartbeat of the leader of `epoch`; return True if its takeover is not complete.

    Returns True until `settle` is called, so that a takeover interrupted by a crash is completed by the next call.
    The time since the last heartbeat, of any leader, is recorded as a gap if it is longer than `min_gap`.

    Raises:
        NewerLeader: the epoch is refused.
    """
    # A malformed document is replaced, because an error here would stop the dispatch of all jobs.
    heartbeat = _date_or("$heartbeat", now)
    is_gap = {"$gt": [{"$subtract": [now, heartbeat]}, milliseconds(min_gap)]}
    gap = {"$cond": [is_gap, {"began": heartbeat, "ended": now}, "$gap"]}
    known = {"_id": LEADER_ID, "epoch": epoch}
    latest = {"$max": [heartbeat, now]}
    beats: Document = {"$set": {"heartbeat": latest, "since": _date_or("$since", now), "gap": gap}}
    leading = leaders().find_one_and_update(known, [beats])
    if leading is not None:
        return bool(leading.get("is_settling"))
    is_older_or_silent: list[Document] = [
        {"epoch": {"$lt": epoch}},
        {"epoch": {"$not": _IS_A_NUMBER}},
        {"heartbeat": {"$not": {"$gte": now - max(SILENCE_TIMEOUT, min_gap)}}},
    ]
    taken: Document = {"epoch": epoch, "heartbeat": now, "since": now, "is_settling": True, "gap": gap}
    try:
        leaders().update_one({"_id": LEADER_ID, "$or": is_older_or_silent}, [{"$set": taken}], upsert=True)
    except DuplicateKeyError:
        if leader_epoch() != epoch:
            raise NewerLeader from None
        return False  # another process has just recorded the same takeover
    return True


def settle(epoch: int) -> None:
    """Record that the takeover of `epoch` is complete."""
    leaders().update_one({"_id": LEADER_ID, "epoch": epoch}, {"$unset": {"is_settling": ""}})


def last_gap() -> DispatchGap | None:
    """Return the last gap between dispatches, if there was one."""
    found = leaders().find_one({"_id": LEADER_ID, "gap.ended": {"$gte": EPOCH}}, {"gap": 1})
    return readable_one(found, lambda one: _gap(one["gap"]), of=LEADERS_COLLECTION)


def leader() -> Document | None:
    """Return `{epoch, heartbeat, since}` of the current leader."""
    return readable_one(leaders().find_one(LEADER_ID), _leader, of=LEADERS_COLLECTION)


def leader_epoch() -> int | None:
    return readable_one(leaders().find_one(LEADER_ID, {"epoch": 1}), _epoch, of=LEADERS_COLLECTION)


def _gap(found: Document) -> DispatchGap:
    return DispatchGap(began=typed(found, "began", datetime), ended=typed(found, "ended", datetime))


def _leader(found: Document) -> Document:
    times = {name: typed(found, name, datetime) for name in ("heartbeat", "since")}
    return {"epoch": _epoch(found), **times}


def _epoch(found: Document) -> int:
    return int(typed(found, "epoch", int, float))


def _date_or(path: str, other: datetime) -> Document:
    return {"$cond": [{"$eq": [{"$type": path}, "date"]}, path, other]}
