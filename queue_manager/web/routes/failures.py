"""Failures of all kinds over HTTP: grouped by what failed and why, and replayed by the group.

Guarantee: the lists are read at most every 3 s, and for at most a tenth of the time while all can be read, however many
clients there are. A replay tries the members of the group that it finds, in slices, each at most once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from http import HTTPStatus
from typing import Annotated, Any
from urllib.parse import urlencode

from anyio import CapacityLimiter, to_thread
from fastapi import APIRouter, Depends, Query
from pydantic import BaseModel, Field

from beat_schedule import systems
from models.audit import ActionName
from models.database import server_now
from queue_manager.core.errors import Contended, Unavailable
from queue_manager.core.json_types import Moment
from queue_manager.core.log import get_logger
from queue_manager.server_calls import mongodb
from queue_manager.web.auth import CurrentActor
from queue_manager.web.http.errors import ApiError, errors
from queue_manager.web.http.requests import At, EmptyIsNone, JsonBody, Members
from queue_manager.web.http.responses import ServerTime
from queue_manager.web.routes.systems.items import system_with_items
from queue_manager.web.routes.systems.queries import find_system
from queue_manager.web.routes.time_limit import INCOMPLETE_DETAIL
from services.audit import recorded
from services.failures import (
    MAX_FAILURES,
    FailureGroup,
    FailureKind,
    Failures,
    read_failures,
    replay_letters,
)
from services.job_queues import DuplicateJob, UnknownJob, WrongState, jobs
from services.message_queue import queue_admin
from services.message_queue.messages import is_id
from tasks.retry import retry_many

MIN_READ_INTERVAL = 3.0  # seconds
MAX_READ_SHARE = 0.1  # of the time, unless a list cannot be read
MAX_GROUPS = 200
REPLAY_SLICE_SIZE = 500
MAX_REPLAY_DURATION = 20.0  # seconds after which no further slice is begun
MAX_REPLAY_BODY = 4 * 1024  # bytes
DETAILS_PAGES: dict[FailureKind, str] = {"message": "/messages/failed", "job": "/jobs"}

SearchText = Annotated[str, Field(max_length=256)]

log = get_logger("QM/failures")
queries = APIRouter(responses=errors(503))
commands = APIRouter(responses=errors(404, 503))


class FailureCounts(BaseModel):
    """Failures of one kind with the same reason, apart from numbers, ids, paths and so on."""

    id: str = Field(description="The same for the same failures, in every process.")
    kind: FailureKind
    system: str = Field(description="The system; `broker` for Celery messages that no worker could decode or execute.")
    name: str = Field(description="The message type, the system, the job name, or the Celery queue.")
    reason: str = Field(description="With `<number>`, `<id>` and so on for what is different every time.")
    sample: str = Field(description="The newest reason as it is.")
    count: int
    first_at: Moment = Field(description="Of the failures that were read.")
    last_at: Moment
    by_hour: list[int] = Field(description="How many failed in each of the last 24 hours, oldest first.")
    page: str | None = Field(description="The path of the page that lists them; null if there is none.")


class ReadFailures(BaseModel):
    """A list of failures, as far as it was read."""

    kind: FailureKind
    system: str
    title: str
    read: int
    is_complete: bool = Field(description=f"False if there are more than the newest {MAX_FAILURES:,}.")
    problem: str | None = Field(description="Why it could not be read.")


class GroupedFailures(BaseModel):
    """The groups with the most failures first."""

    groups: list[FailureCounts]
    of: int = Field(description=f"How many groups match; at most {MAX_GROUPS} are listed.")
    lists: list[ReadFailures]
    server_time: ServerTime


class ReplayUntil(Members):
    """Which failures of a group to replay."""

    until: At = Field(
        default=None,
        description="Only what failed at this time or earlier, such as the `last_at` that was shown; all without it.",
    )


class ReplayedFailures(BaseModel):
    """How many failures were replayed."""

    replayed: int
    of: int
    is_complete: bool = Field(description="False if there are more that could not be read, or the time was over.")


class FailureReader:
    """The failures for all clients of this process. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: Failures | None = None
        self._fresh_until = 0.0

    def read(self) -> Failures:
        with self._lock:
            began = time.monotonic()
            if self._found is None or began >= self._fresh_until:
                self._found = read_failures(systems())
                now = time.monotonic()
                has_all = all(one.problem is None for one in self._found.sources)
                pause = max(MIN_READ_INTERVAL, (now - began) / MAX_READ_SHARE) if has_all else MIN_READ_INTERVAL
                self._fresh_until = now + pause  # short if a list is missing: an outage may be over soon
            return self._found

    def forget(self) -> None:
        with self._lock:
            self._found = None


_reader = FailureReader()
_READER_THREAD = CapacityLimiter(1)  # while a read takes long, those who wait for it need no thread


@queries.get("/failures")
async def failures(
    system: Annotated[str | None, EmptyIsNone, Query(description="Only of this system.")] = None,
    search: Annotated[SearchText | None, EmptyIsNone, Query(description="A text in the name or the reason.")] = None,
) -> GroupedFailures:
    """Group the newest 5,000 failures of each list by what failed and why; at most a few seconds old."""
    found = await to_thread.run_sync(_reader.read, limiter=_READER_THREAD)
    return await to_thread.run_sync(partial(grouped, found, system=system, search=search))


def grouped(found: Failures, *, system: str | None, search: str | None) -> GroupedFailures:
    """Return the groups that match. Raises `Unavailable`."""
    wanted = (search or "").lower()
    matching = [
        one
        for one in found.groups
        if system in (None, one.system)
        and (not wanted or any(wanted in text.lower() for text in (one.name, one.reason, one.sample)))
    ]
    matching.sort(key=lambda one: len(one.members), reverse=True)
    with mongodb():
        now = server_now()
    return GroupedFailures(
        groups=[_counts(one, now) for one in matching[:MAX_GROUPS]],
        of=len(matching),
        lists=[ReadFailures(**vars(one)) for one in found.sources],
        server_time=now,
    )


def _counts(group: FailureGroup, now: datetime) -> FailureCounts:
    return FailureCounts(
        id=group.id,
        kind=group.kind,
        system=group.system,
        name=group.name,
        reason=group.reason,
        sample=group.sample,
        count=len(group.members),
        first_at=group.first_at,
        last_at=group.last_at,
        by_hour=group.by_hour(now),
        page=_page(group),
    )


def _page(group: FailureGroup) -> str | None:
    """Return the path of the list that has the failures of a group."""
    if group.kind == "broker":
        return None
    filters = {
        "message": {"filterType": group.name},
        "item": {"state": "failed"},
        "job": {"name": group.name, "state": "failure"},
    }[group.kind]
    path = DETAILS_PAGES.get(group.kind) or find_system(group.system, systems()).page
    return f"{path}?{urlencode({name: text for name, text in {**filters, 'search': group.search}.items() if text})}"


@commands.post("/failures/{id}/replay")
def replay_failures(
    id: str,
    body: Annotated[ReplayUntil, Depends(JsonBody(ReplayUntil, max_bytes=MAX_REPLAY_BODY, is_required=False))],
    actor: CurrentActor,
) -> ReplayedFailures:
    """Replay the dead letters, or retry the items or jobs, of a group, for about 20 s.

    Those that fail with the same reason after `until` are left alone. Of more than 5,000 failures, only the newest are
    replayed: repeat it then.
    """
    group, is_complete = find_group(id)
    ids = group.until(body.until)
    with recorded(actor, action_on(group), **audited_as(group, ids)) as action:
        replayed, is_in_time = replay(group, ids)
        action.count = replayed
        action.detail = "" if is_in_time else INCOMPLETE_DETAIL
    _reader.forget()
    log.info(
        "Failures were replayed by an operator", system=group.system, name=group.name, replayed=replayed, of=len(ids)
    )
    return ReplayedFailures(replayed=replayed, of=len(ids), is_complete=is_complete and is_in_time)


def find_group(id: str) -> tuple[FailureGroup, bool]:
    """Read a group anew; return it, and whether its list was read to the end. Raises `ApiError` and `Unavailable`."""
    found = read_failures(systems())
    group = next((one for one in found.groups if one.id == id), None)
    if group is None:
        if unread := [f"{one.title}: {one.problem}" for one in found.sources if one.problem]:
            raise Unavailable(
                f"The group {id!r:.100} was not found in the lists that could be read; {'; '.join(unread)}"
            )
        message = f"There is no group {id!r:.100}: nothing fails with this reason any more"
        raise ApiError(HTTPStatus.NOT_FOUND, "not found", message, field="id")
    return group, all(one.is_complete for one in found.sources if one.system == group.system)


def action_on(group: FailureGroup) -> ActionName:
    return "replay" if group.kind in ("message", "broker") else "retry"


def audited_as(group: FailureGroup, ids: Sequence[str]) -> dict[str, Any]:
    """Return what the audit has of a replay."""
    selected = {"name": group.name, "reason": group.reason}
    return {
        "system": group.system,
        "filter": selected,
        "ids": ids,
        "is_in_redis": group.kind in ("message", "broker"),
    }


def replay(group: FailureGroup, ids: Sequence[str]) -> tuple[int, bool]:
    """Replay members in slices; return how many were replayed, and False if the time was over before the last."""
    ends, replayed = time.monotonic() + MAX_REPLAY_DURATION, 0
    for begin in range(0, len(ids), REPLAY_SLICE_SIZE):
        if time.monotonic() >= ends:
            return replayed, False
        replayed += _REPLAYS[group.kind](group, ids[begin : begin + REPLAY_SLICE_SIZE])
    return replayed, True


def _replay_messages(_: FailureGroup, ids: Sequence[str]) -> int:
    outcomes = queue_admin().replay([id for id in ids if is_id(id)])
    return sum(outcome == "MOVED" for outcome in outcomes.values())


def _retry_items(group: FailureGroup, ids: Sequence[str]) -> int:
    system, items = system_with_items(group.system)
    return retry_many(system, items(), ids)


def _retry_jobs(_: FailureGroup, ids: Sequence[str]) -> int:
    retried = 0
    for id in ids:
        with mongodb(), suppress(WrongState, UnknownJob, DuplicateJob, Contended):
            jobs.retry_failed(id)  # others have retried it, or canceled it, since the list was read
            retried += 1
    return retried


def _replay_letters(_: FailureGroup, ids: Sequence[str]) -> int:
    return replay_letters(ids)


_REPLAYS: dict[FailureKind, Callable[[FailureGroup, Sequence[str]], int]] = {
    "message": _replay_messages,
    "item": _retry_items,
    "job": _retry_jobs,
    "broker": _replay_letters,
}
