"""A model of job queues in a few dictionaries, with which the real ones are compared."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from queue_manager.core.clock import minutes, seconds

WAITING, LIVE = ("pending", "failure"), ("pending", "failure", "executing")
SILENCE, GAP = minutes(1), seconds(10)


@dataclass(kw_only=True)
class Modelled:
    """One job."""

    id: str
    name: str
    argument: int
    priority: int
    waiting: datetime | None
    due: datetime
    unique: bool
    singular: bool
    state: str = "pending"
    attempts: int = 0
    successes: int = 0
    losses: int = 0
    is_first: bool = False
    is_asked_to_stop: bool = False
    token: str | None = None
    claimed_until: datetime | None = None

    @property
    def kind(self) -> tuple[str, int]:
        return self.name, self.argument

    @property
    def order(self) -> tuple[Any, ...]:
        return not self.is_first, -self.priority, self.waiting


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """What a worker remembers of what it started; it may act on it much too late."""

    id: str
    token: str
    number: int


@dataclass
class JobModel:
    jobs: dict[str, Modelled] = field(default_factory=dict)
    paused: set[str] = field(default_factory=set)
    epoch: int | None = None
    heartbeat: datetime | None = None
    gap: tuple[datetime, datetime] | None = None
    """The last long time between two dispatches of leaders."""

    # Asking

    def executing(self, name: str) -> Modelled | None:
        found = [job for job in self.jobs.values() if job.name == name and job.state == "executing"]
        assert len(found) <= 1
        return found[0] if found else None

    def due(self, name: str, now: datetime) -> list[Modelled]:
        found = [job for job in self.jobs.values() if job.name == name and job.waiting and job.waiting <= now]
        return sorted(found, key=lambda job: job.order)

    def is_blocked(self, name: str, argument: int, *, unique: bool, singular: bool) -> bool:
        alike = [job for job in self.jobs.values() if job.kind == (name, argument)]
        return bool(unique and alike) or (singular and any(job.state in LIVE for job in alike))

    def counts(self) -> dict[str, dict[str, int]]:
        found: dict[str, dict[str, int]] = {}
        for job in self.jobs.values():
            of_name = found.setdefault(job.name, {})
            of_name[job.state] = of_name.get(job.state, 0) + 1
        return found

    # Acting

    def start(self, id: str, *, attempts: int, token: str, now: datetime, lease: timedelta) -> str:
        """Return `started`, `busy` or `gone`."""
        job = self.jobs.get(id)
        if job is None or job.waiting is None or job.waiting > now or job.attempts != attempts:
            return "gone"
        if self.executing(job.name):
            return "busy"
        job.state, job.token, job.claimed_until, job.is_asked_to_stop = "executing", token, now + lease, False
        job.waiting, job.is_first = None, False
        job.attempts += 1
        return "started"

    def holds(self, attempt: Attempt) -> bool:
        job = self.jobs.get(attempt.id)
        return job is not None and (job.token, job.attempts) == (attempt.token, attempt.number)

    def ends_as_canceled(self, attempt: Attempt, *, rest: timedelta | None) -> bool:
        """Return True if the attempt would run again, but somebody has asked it to stop."""
        return rest is not None and self.holds(attempt) and self.jobs[attempt.id].is_asked_to_stop

    def finish(self, attempt: Attempt, *, state: str, rest: timedelta | None, now: datetime) -> bool:
        if not self.holds(attempt):
            return False
        if self.ends_as_canceled(attempt, rest=rest):
            state, rest = "canceled", None
        job = self.jobs[attempt.id]
        job.state, job.token, job.claimed_until, job.losses = state, None, None, 0
        job.successes += state == "success"
        if rest is not None:
            job.waiting = job.due = now + rest
        return True

    def cancel(self, id: str) -> bool:
        job = self.jobs[id]
        job.is_asked_to_stop = job.state == "executing"
        if job.state not in LIVE:
            return False
        if job.state in WAITING:
            job.state, job.waiting, job.is_first = "canceled", None, False
        return True

    def make_due(self, id: str, due: datetime | None, priority: int | None, *, states: tuple[str, ...]) -> str:
        """Return `done`, `refused` or `conflict`."""
        job = self.jobs[id]
        if job.state not in states:
            return "refused"
        job.priority = job.priority if priority is None else priority
        if due is None:
            return "done"
        others = [other for other in self.jobs.values() if other is not job and other.kind == job.kind]
        if job.singular and any(other.singular and other.state in LIVE for other in others):
            return "conflict"
        job.state, job.is_first = "pending", False
        job.due = job.waiting = due
        return "done"

    def clear(self, states: set[str], name: str | None) -> int:
        gone = [job for job in self.jobs.values() if job.state in states and name in (None, job.name)]
        for job in gone:
            del self.jobs[job.id]
        return len(gone)

    def dispatch(self, epoch: int | None, now: datetime) -> int | None:
        """Return how many were reaped, `None` when it is refused."""
        if epoch is not None and not self._lead(epoch, now):
            return None
        # A worker whose lease ended in a gap has time for a renewal.
        until = self.gap[0] if self.gap and now < self.gap[1] + GAP else now
        lost = [job for job in self.jobs.values() if job.claimed_until and job.claimed_until <= until]
        for job in lost:
            if job.is_asked_to_stop:
                job.state, job.token, job.claimed_until = "canceled", None, None
                continue
            rest = min(seconds(5) * 2 ** (job.losses - 1), minutes(10)) if job.losses else seconds(0)
            job.state, job.token, job.claimed_until = "failure", None, None
            job.waiting = job.due = now + rest
            job.losses += 1
        return len(lost)

    def _lead(self, epoch: int, now: datetime) -> bool:
        is_older = self.epoch is not None and epoch < self.epoch
        if is_older and self.heartbeat is not None and self.heartbeat >= now - SILENCE:
            return False
        if self.heartbeat is not None and now - self.heartbeat > GAP:
            self.gap = self.heartbeat, now
        if epoch == self.epoch:
            assert self.heartbeat is not None
            self.heartbeat = max(self.heartbeat, now)
            return True
        self.epoch, self.heartbeat = epoch, now
        for job in self.jobs.values():
            if job.state == "failure":
                job.waiting = job.due = now
                job.is_first = True
        return True
