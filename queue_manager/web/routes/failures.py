"""Failures of all kinds over HTTP: grouped by what failed and why, and replayed by the group.

Guarantee: the lists are read at most every 3 s, and for at most a tenth of the time while all can be read, however many
clients there are. A replay tries the members of the group that it finds, in slices, each at most once.
"""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import Annotated

from anyio import CapacityLimiter, to_thread
from fastapi import APIRouter, Depends, Query, Request
from pydantic import BaseModel, Field

from beat_schedule import systems
from queue_manager.operations.failures import GroupedFailures, find_group, grouped, replay
from queue_manager.operations.schemas import At, EmptyIsNone, Members
from queue_manager.web.auth.authorization import CurrentActor, operator, viewer
from queue_manager.web.http.errors import errors
from queue_manager.web.http.requests import JsonBody, time_check
from services.failures import Failures, read_failures

MIN_READ_INTERVAL = 3.0  # seconds
MAX_READ_SHARE = 0.1  # of the time, unless a list cannot be read

SearchText = Annotated[str, Field(max_length=256)]

queries = APIRouter(prefix="/api", dependencies=[viewer], responses=errors(503), tags=["failures"])
commands = APIRouter(prefix="/api", dependencies=[operator], responses=errors(404, 503), tags=["failures"])


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


@queries.get("/failures", responses=errors(404))
async def failures(
    system: Annotated[str | None, EmptyIsNone, Query(description="Only of this system, or `broker`.")] = None,
    search: Annotated[SearchText | None, EmptyIsNone, Query(description="A text in the name or the reason.")] = None,
) -> GroupedFailures:
    """Group the newest 5,000 failures of each list by what failed and why; at most a few seconds old."""
    found = await to_thread.run_sync(_reader.read, limiter=_READER_THREAD)
    return await to_thread.run_sync(partial(grouped, found, system=system, search=search))


@commands.post("/failures/{id}/replay")
def replay_failures(
    request: Request,
    id: str,
    body: Annotated[ReplayUntil, Depends(JsonBody(ReplayUntil, is_required=False))],
    actor: CurrentActor,
) -> ReplayedFailures:
    """Replay the dead letters, or retry the items or jobs, of a group.

    Those that fail with the same reason after `until` are left alone. It stops after 50 s, and of more than 5,000
    failures only the newest are replayed; `is_complete` is false: repeat it then.
    """
    is_over = time_check(request)
    group, is_complete = find_group(id)
    ids = group.until(body.until)
    replayed, is_in_time = replay(group, ids, actor, is_over=is_over)
    _reader.forget()
    return ReplayedFailures(replayed=replayed, of=len(ids), is_complete=is_complete and is_in_time)
