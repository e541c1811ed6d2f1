"""All that the leases know about one item, for people."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from redis.client import Pipeline

from queue_manager.core.clock import from_unix_ms, milliseconds, unix_ms
from queue_manager.core.redis_client import time_of
from queue_manager.leases import Leases
from queue_manager.leases.state import LeaseStep, step_of


@dataclass(frozen=True, kw_only=True)
class LeaseDetail:
    """The lease of one item."""

    step: LeaseStep
    at: datetime | None = None
    """Its ETA, its dispatch, the end of its lease, the start of its attempt, or the end of its cool-down, by `step`."""
    ahead_of_it: int = 0
    """How many items that were dispatched before it wait for a worker, too."""
    losses: int = 0
    """How many times in a row its process was lost."""


def detail(leases: Leases, name: str) -> LeaseDetail:
    """Return the lease of one item. Raises `Unavailable`."""
    keys = leases.keys

    def commands(pipe: Pipeline) -> None:
        for key in (keys.waiting, keys.running, keys.cooling, keys.done, keys.started):
            pipe.zscore(key, name)
        pipe.zrank(keys.waiting, name)
        pipe.hget(keys.losses, name)
        pipe.time()

    waiting, running, cooling, done, started, rank, lost, time_ = leases.read(commands)
    step, at = step_of(waiting, running, cooling, done, started, now=unix_ms(time_of(time_)))
    if step == "received" and at is not None:
        at -= milliseconds(leases.lease)
    elif step == "started":
        at = started
    return LeaseDetail(
        step=step,
        at=None if at is None or step == "ended" else from_unix_ms(at),
        ahead_of_it=rank or 0,
        losses=0 if lost is None else int(lost.split(b":")[0]),
    )
