"""Failures of messages, items, jobs and the broker, grouped by what failed and why.

Guarantee: at most the newest 5,000 failures of each list are read, in slices; a list that was not read to its end is
marked as incomplete. If a server is unavailable, only its lists are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from hashlib import sha1
from itertools import islice
from typing import Annotated, Literal

import redis
from pydantic import Field
from pymongo.errors import ExecutionTimeout

from models import job_pages
from models.database import Error, describe, within
from queue_manager.broker import dead_letters
from queue_manager.core.clock import from_unix_seconds, hours, seconds, truncate
from queue_manager.core.errors import AppError, Unavailable, typed_reason
from queue_manager.core.failure_reason import longest_literal, normalize
from queue_manager.core.log import get_logger
from queue_manager.core.process import PerProcess
from queue_manager.core.redis_client import describe_outage, make_client
from queue_manager.core.settings import settings
from queue_manager.system import System
from services import job_queues
from services.message_queue import queue_admin
from services.message_queue import system as messages

FailureKind = Literal["message", "item", "job", "broker"]
"""`message`: a dead letter of the message queue. `broker`: a Celery message that no worker could decode or execute."""
MAX_FAILURES = 5_000  # of each list
LIST_TIMEOUT = seconds(2.5)  # of each list
BROKER = "broker"
"""The name of the broker in the audit log and in health."""
NO_REASON = "no reason is known"
SPARK_HOURS = 24

log = get_logger("QM/failures")
_broker = PerProcess(lambda: make_client(settings().broker_redis_url or "", socket_timeout=2.0))


@dataclass(frozen=True, kw_only=True)
class FailureMember:
    """One failure."""

    id: str
    at: datetime


@dataclass(frozen=True, kw_only=True)
class FailureGroup:
    """Failures with the same normalized reason of one message type, system, job name or Celery queue."""

    kind: FailureKind
    system: str
    """The system, or `broker`."""
    name: str
    """The message type, the system, the job name, or the Celery queue."""
    reason: str
    """Normalized."""
    sample: str
    """The newest reason as it is."""
    members: list[FailureMember] = field(default_factory=list)
    """Newest first."""

    @property
    def id(self) -> str:
        text = "\0".join((self.kind, self.name, self.reason))
        return sha1(text.encode("utf-8", "replace"), usedforsecurity=False).hexdigest()[:12]

    @property
    def first_at(self) -> datetime:
        return min(one.at for one in self.members)

    @property
    def last_at(self) -> datetime:
        return max(one.at for one in self.members)

    @property
    def search(self) -> str:
        """Text that all members contain, to search for; empty if there is none."""
        return "" if self.sample == NO_REASON else longest_literal(self.sample)

    def by_hour(self, now: datetime) -> list[int]:
        """Return how many failed in each of the last 24 hours, oldest first."""
        counts = [0] * SPARK_HOURS
        for one in self.members:
            ago = (now - one.at) // hours(1)
            if ago < SPARK_HOURS:
                counts[SPARK_HOURS - 1 - max(ago, 0)] += 1
        return counts

    def until(self, moment: datetime | None) -> list[str]:
        """Return the ids of the members that failed at `moment` or earlier, oldest failure first."""
        return [one.id for one in reversed(self.members) if moment is None or one.at <= moment]


@dataclass(frozen=True, kw_only=True)
class FailureList:
    """A list of failures, as far as it was read."""

    kind: FailureKind
    system: str
    title: str
    read: int
    is_complete: Annotated[bool, Field(description=f"False if there are more than the newest {MAX_FAILURES:,}.")]
    problem: Annotated[str | None, Field(description="Why it could not be read.")]


@dataclass(frozen=True, kw_only=True)
class Failures:
    """All failures that were read, in groups, the latest failure first."""

    groups: Sequence[FailureGroup]
    sources: Sequence[FailureList]


@dataclass(frozen=True, kw_only=True)
class _Found:
    name: str
    id: str
    at: datetime
    reason: str


def read_failures(systems: Iterable[System]) -> Failures:
    """Read and group the newest failures of each list."""
    groups: dict[tuple[str, str, str], FailureGroup] = {}
    sources = [_read(kind, name, title, walk, groups) for kind, name, title, walk in _lists(systems)]
    return Failures(groups=sorted(groups.values(), key=lambda one: one.last_at, reverse=True), sources=sources)


def _lists(systems: Iterable[System]) -> Iterator[tuple[FailureKind, str, str, Callable[[], Iterator[_Found]]]]:
    """Yield kind, system, title and failures of each list of this installation."""
    chosen = settings()
    for system in systems:
        if system.items is not None and system.is_switched_on(chosen):
            yield "item", system.name, system.title, partial(_items, system)
    if chosen.qm_message_queue:
        yield "message", messages.name, messages.title, _messages
    if chosen.runs_jobs:
        yield "job", job_queues.system.name, job_queues.system.title, _jobs
    if chosen.broker_redis_url is not None:
        yield "broker", BROKER, "Broker", _letters


def _read(
    kind: FailureKind,
    system: str,
    title: str,
    walk: Callable[[], Iterator[_Found]],
    groups: dict[tuple[str, str, str], FailureGroup],
) -> FailureList:
    read, problem = 0, None
    try:
        with within(LIST_TIMEOUT):
            for one in islice(walk(), MAX_FAILURES + 1):
                read += 1
                if read <= MAX_FAILURES:
                    _add(one, kind, system, groups)
    except ExecutionTimeout:  # `describe` would say that a command may have been applied
        problem = f"MongoDB did not return all within {LIST_TIMEOUT.total_seconds():g} s"
    except Error as error:
        problem = describe(error)
    except redis.RedisError as error:
        problem = _away(error)
    except AppError as error:
        problem = str(error)
    except Exception as error:
        log.error("A list of failures could not be read", system=system, error=typed_reason(error), exc_info=error)
        problem = f"Its `items` raised {typed_reason(error)}" if kind == "item" else typed_reason(error)
    return FailureList(
        kind=kind,
        system=system,
        title=title,
        read=min(read, MAX_FAILURES),
        is_complete=read <= MAX_FAILURES and problem is None,
        problem=problem,
    )


def _add(one: _Found, kind: FailureKind, system: str, groups: dict[tuple[str, str, str], FailureGroup]) -> None:
    name, sample = (text.encode("utf-8", "replace").decode() for text in (one.name, one.reason))
    normalized = normalize(sample)
    key = (system, name, normalized)
    if key not in groups:
        groups[key] = FailureGroup(kind=kind, system=system, name=name, reason=normalized, sample=sample)
    groups[key].members.append(FailureMember(id=one.id, at=one.at))


def _messages() -> Iterator[_Found]:
    for one in queue_admin().failures():
        yield _Found(name=one.type, id=one.id, at=from_unix_seconds(one.failed_at), reason=one.error or NO_REASON)


def _items(system: System) -> Iterator[_Found]:
    for one in system.open_items().items("failed"):
        at = one.since or one.due_at
        if at is not None:
            yield _Found(name=system.name, id=one.id, at=truncate(at), reason=one.reason or NO_REASON)


def _jobs() -> Iterator[_Found]:
    for one in job_pages.failures(MAX_FAILURES + 1):
        error = one.get("last_error")
        yield _Found(
            name=str(one.get("name", "")),
            id=str(one["_id"]),
            at=truncate(one["updated"]),
            reason=error if isinstance(error, str) and error else NO_REASON,
        )


def _letters() -> Iterator[_Found]:
    for one in dead_letters.latest(_broker(), limit=MAX_FAILURES + 1):
        yield _Found(name=one.queue, id=one.id, at=from_unix_seconds(one.at), reason=one.reason)


def replay_letters(ids: Sequence[str]) -> list[str]:
    """Requeue dead letters of the broker; return the ids of those requeued. Raises `Unavailable`."""
    try:
        return [letter.id for letter, refused in dead_letters.replay(_broker(), set(ids)) if not refused]
    except redis.RedisError as error:
        raise Unavailable(_away(error)) from error


def _away(error: redis.RedisError) -> str:
    return describe_outage(settings().broker, error)
