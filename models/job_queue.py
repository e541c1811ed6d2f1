"""The queues of jobs: `job_queues`, one document a name, claimed while a worker runs through its jobs.

    {_id: the name, due_at, claim, run_in_progress, run_retry_at, paused}

A queue is due when one of its jobs is; `refresh` says so, again at every dispatch. A claim keeps a queue from being
sent twice while it waits for a worker. That it runs one job at a time does not hang on it: see `models/job.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

from pymongo import IndexModel, UpdateOne
from pymongo.collection import Collection

from models.claimable import Claimable
from models.claims import Claims
from models.database import Document, collection
from queue_manager.core.clock import seconds
from queue_manager.core.settings import settings

NAME = "job_queues"
_OF = Claimable(due_field="due_at", flag_field="run_in_progress", rest_field="run_retry_at")


def queues() -> Collection[Document]:
    return collection(NAME)


def claims() -> Claims:
    return Claims(collection=queues, of=_OF, lease=seconds(settings().jobs_lease_seconds))


def collections() -> dict[str, list[IndexModel]]:
    """Return what this module keeps, for `migrate`."""
    return {NAME: [*_OF.indexes(), IndexModel([("paused", 1)], name="paused_queues", sparse=True)]}


def refresh(names: Iterable[str], *, due_at: datetime) -> None:
    """Make the queues of `names` due, those that are not yet."""
    refresh_each(dict.fromkeys(names, due_at))


def refresh_each(due_at: Mapping[str, datetime]) -> None:
    """Make each of the named queues due at its own time, those that are not yet."""
    writes = [UpdateOne({"_id": name}, {"$min": {"due_at": at}}, upsert=True) for name, at in due_at.items()]
    if writes:
        queues().bulk_write(writes, ordered=False)


def void(names: Iterable[str]) -> None:
    """Free the queues of `names`, whoever has claimed them: their worker was lost, or is to be refused."""
    freed = {"$unset": {"claim": ""}, "$set": {"run_in_progress": False}}
    queues().update_many({"_id": {"$in": [*names]}}, freed)


def complete(name: str, *, token: str) -> None:
    """Say that `token` has run through the queue: it is not due until it is refreshed."""
    done = {"$unset": {"claim": "", "due_at": ""}, "$set": {"run_in_progress": False}}
    queues().update_one({"_id": name, "claim.token": token}, done)


def pause(names: Iterable[str], *, is_paused: bool) -> None:
    """Pause queues, or let them go on; also such as have no jobs yet."""
    change = {"$set": {"paused": True}} if is_paused else {"$unset": {"paused": ""}}
    writes = [UpdateOne({"_id": name}, change, upsert=is_paused) for name in names]
    if writes:
        queues().bulk_write(writes, ordered=False)


def held(now: datetime) -> set[str]:
    """Return the names whose queue somebody holds: a worker that runs through it, or a message that waits for one."""
    return set(claims().find_ids(_OF.live(now), limit=0))


def paused() -> set[str]:
    """Return the names that are paused."""
    return {queue["_id"] for queue in queues().find({"paused": True}, {"_id": 1}, hint="paused_queues")}


def is_paused(name: str) -> bool:
    return queues().find_one({"_id": name, "paused": True}, {"_id": 1}) is not None
