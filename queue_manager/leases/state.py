"""The state of an item as its lease shows it, in short and in detail."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from queue_manager.core.clock import from_unix_ms

LeaseStep = Literal["free", "ahead", "queued", "received", "started", "ended", "stuck", "cooling", "unknown"]
"""`ahead`: dispatched, its ETA is to come. `queued`: its message waits for a worker. `received`: by a worker, or being
sent. `started`: an attempt runs. `ended`: a moment ago. `stuck`: its lease ended without a result. `cooling`: its last
attempt failed, and no scan has taken it since. `unknown`: not read, because Redis does not answer."""
LeaseState = Literal["free", "in-progress", "stuck", "cooling"]
"""The steps in short."""
_STATES: Mapping[LeaseStep, LeaseState] = {
    **dict.fromkeys(("ahead", "queued", "received", "started", "ended"), "in-progress"),
    "free": "free",
    "stuck": "stuck",
    "cooling": "cooling",
}


def step_of(
    waiting: float | None,
    running: float | None,
    cooling: float | None,
    done: float | None,
    started: float | None = None,
    *,
    now: int,
) -> tuple[LeaseStep, float | None]:
    """Return the step of a lease, and the score that decided it.

    Args:
        waiting: the score of its name in this set, `None` if it is not there; likewise the others.
        now: by the clock of Redis, in Unix ms.
    """
    if waiting is not None:
        return ("ahead" if waiting > now else "queued"), waiting
    if running is not None and running > now:
        return ("received" if started is None else "started"), running
    if done is not None and done > now:
        return "ended", done
    if cooling is not None:
        return "cooling", cooling
    return ("free" if running is None else "stuck"), running


@dataclass(frozen=True, kw_only=True)
class LeaseStatus:
    """The lease of one item."""

    state: LeaseState
    ends_at: datetime | None = None
    """When the lease or the cool-down ends. For a task with an ETA to come, when its item counts as lost; `None` while
    the message waits for a worker."""

    @classmethod
    def of(cls, step: LeaseStep, score: float | None, *, lease: int) -> LeaseStatus:
        """Return the status of a lease of so many ms, from what `step_of` returned."""
        if score is None or step in ("queued", "stuck"):
            return cls(state=_STATES[step])
        return cls(state=_STATES[step], ends_at=from_unix_ms(score + lease if step == "ahead" else score))


@dataclass(frozen=True, kw_only=True)
class LeaseDetail:
    """The lease of one item."""

    step: LeaseStep
    at: datetime | None = None
    """By step: the ETA (`ahead`), the dispatch (`queued`), the end of the lease (`received`, `stuck`), the start of the
    attempt (`started`) or the end of the cool-down (`cooling`); otherwise `None`."""
    ahead_of_it: int = 0
    """The number of items dispatched before it that wait for a worker, too."""
    losses: int = 0
    """How many times in a row its process was lost."""


@dataclass(frozen=True, kw_only=True)
class LeaseCounts:
    """The number of items in flight, of those that failed, and of leases that ended without a result."""

    in_progress: int
    cooling: int
    ended: int
