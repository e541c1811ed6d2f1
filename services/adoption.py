"""Adoption of work that another program did before: what changes, and what that program notices.

Guarantee: a plan only reads.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import redis
from bson import json_util

from models import schema
from queue_manager.core.redis_client import connect
from queue_manager.core.settings import settings
from queue_manager.core.wording import many
from queue_manager.system import System

_BULL_LISTS = ("wait", "active", "paused")


@dataclass(frozen=True, kw_only=True)
class AdoptionPlan:
    """What the adoption of one system's work would change, a line each."""

    missing_indexes: list[str]
    """Indexes that would be created, as `collection.index`."""
    refused_writes: list[str]
    """Writes of other programs that the unique indexes refuse."""
    notes: list[str]
    """What the other program has left, and whether it still runs."""
    effects: list[str]
    """Effects on the other program while both run."""
    steps: list[str]
    """What to do to stop the other program."""
    obstacles: list[str]
    """What has to be put in order before the indexes can be created."""


def plan(system: System) -> AdoptionPlan:
    """Return what the adoption would change. May read whole collections. Raises the errors of redis-py and pymongo."""
    bull = [] if system.queue is None else _bull_notes(system.queue)
    notes = [*bull, *system.adoption_notes()]
    return AdoptionPlan(
        missing_indexes=schema.missing(system.read_collections()),
        refused_writes=list(_refused_writes(system)),
        notes=notes,
        effects=[*system.adoption_effects] if notes else [],
        steps=[*system.adoption_steps] if notes else [],
        obstacles=[*system.obstacles()],
    )


def _refused_writes(system: System) -> Iterator[str]:
    for name, indexes in system.read_collections().items():
        for index in (index.document for index in indexes):
            if index.get("unique"):
                where = index.get("partialFilterExpression")
                among = f" among documents with {json.dumps(where, default=json_util.default)}" if where else ""
                yield f"{name}: a second document with the same {', '.join(index['key'])}{among} (error 11000)"


def _bull_notes(queue: str) -> list[str]:
    """Return how many jobs and workers a queue of Bull with the same name has."""
    with connect(settings().redis_url) as client:
        jobs = sum(client.llen(f"bull:{queue}:{name}") for name in _BULL_LISTS) + client.zcard(f"bull:{queue}:delayed")
        workers = 0
        with suppress(redis.exceptions.NoPermissionError):
            worker_name = f"bull:{b64encode(queue.encode()).decode()}"
            workers = sum(one["name"] == worker_name for one in client.client_list())
    notes = []
    if workers:
        notes.append(f"{many(workers, 'worker')} of Bull's queue {queue} connected: it may run until you stop it")
    if jobs:
        notes.append(f"{many(jobs, 'job')} in Bull's queue {queue}: not executed here, since a scan finds what is due")
    return notes
