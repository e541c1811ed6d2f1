"""All that the leases know about one item, for people."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from redis.client import Pipeline

from queue_manager.core.clock import from_unix_ms, milliseconds, unix_ms
from queue_manager.core.redis_client import time_of
from queue_manager.leases import Leases

LeaseStep = Literal["free", "ahead", "queued", "received", "started", "ended", "stuck", "cooling"]
"""`ahead`: dispatched, its ETA is to come. `queued`: its message waits for a worker. `received`: by a worker, or being
sent. `started`: an attempt runs. `ended`: a moment ago. `stuck`: its lease ended without a result."""


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
    waiting_key, running_key, cooling_key, done_key, started_key, losses_key, _ = leases.keys

    def commands(pipe: Pipeline) -> None:
        for key in (waiting_key, running_key, cooling_key, done_key, started_key):
            pipe.zscore(key, name)
        pipe.zrank(waiting_key, name)
        pipe.hget(losses_key, name)
        pipe.time()

    waiting, running, cooling, done, started, rank, lost, time_ = leases.read(commands)
    now = unix_ms(time_of(time_))
    step, score = _step(waiting, running, cooling, done, started, now, milliseconds(leases.lease))
    return LeaseDetail(
        step=step,
        at=None if score is None else from_unix_ms(score),
        ahead_of_it=rank or 0,
        losses=0 if lost is None else int(lost.split(b":")[0]),
    )


def _step(
    waiting: float | None,
    running: float | None,
    cooling: float | None,
    done: float | None,
    started: float | None,
    now: int,
    lease: int,
) -> tuple[LeaseStep, float | None]:
    if waiting is not None:
        return ("ahead" if waiting > now else "queued"), waiting
    if running is not None and running > now:
        return ("received", running - lease) if started is None else ("started", started)
    if done is not None and done > now:
        return "ended", None
    if cooling is not None and cooling > now:
        return "cooling", cooling
    return ("free", None) if running is None else ("stuck", running)
