"""Failures of all kinds, grouped by what failed and why, and replayed by the group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from urllib.parse import urlencode

from pydantic import BaseModel, Field

from beat_schedule import systems, unknown_system
from models.database import server_now
from models.job import JobState
from queue_manager.core.clock import local_now
from queue_manager.core.errors import NotFound, Unavailable
from queue_manager.core.json_types import Moment
from queue_manager.core.log import get_logger
from queue_manager.operations.jobs import result_of
from queue_manager.operations.schemas import ServerTime
from queue_manager.operations.systems import find_system
from queue_manager.server_calls import mongodb
from services.audit import Actor, recorded
from services.failures import BROKER, FailureGroup, FailureKind, FailureList, Failures, read_failures, replay_letters
from services.job_queues import jobs
from services.message_queue import queue_admin
from services.message_queue.fields import is_id

MAX_GROUPS = 200
REPLAY_SLICE_SIZE = 500
DETAILS_PAGES: dict[FailureKind, str] = {"message": "/messages/failed", "job": "/jobs"}

log = get_logger("QM/failures")


class FailureCounts(BaseModel):
    """Failures of one kind with the same reason, apart from numbers, ids, paths and so on."""

    id: str = Field(description="The id of the group, which is the same in every process.")
    kind: FailureKind
    system: str = Field(description="The system; `broker` for Celery messages that no worker could decode or execute.")
    name: str = Field(description="The message type, the system, the job name, or the Celery queue.")
    reason: str = Field(
        description="The reason with placeholders such as `<number>` and `<id>` for the parts that differ each time."
    )
    sample: str = Field(description="The newest reason, unchanged.")
    count: int
    first_at: Moment = Field(description="The time of the earliest failure that was read.")
    last_at: Moment
    by_hour: list[int] = Field(description="How many failed in each of the last 24 hours, oldest first.")
    page: str | None = Field(description="The path of the page that lists them; null if there is none.")


class GroupedFailures(BaseModel):
    """The groups with the most failures first."""

    groups: list[FailureCounts]
    of: int = Field(description=f"How many groups match; at most {MAX_GROUPS} are listed.")
    lists: Sequence[FailureList]
    server_time: ServerTime


def grouped(found: Failures, *, system: str | None, search: str | None) -> GroupedFailures:
    """Return the groups that match. Raises `NotFound` for an unknown system."""
    names = [*(one.name for one in systems()), BROKER]
    if system is not None and system not in names:
        raise NotFound(unknown_system(system, names), field="system")
    wanted = (search or "").lower()
    matching = [
        one
        for one in found.groups
        if system in (None, one.system)
        and (not wanted or any(wanted in text.lower() for text in (one.name, one.reason, one.sample)))
    ]
    matching.sort(key=lambda one: len(one.members), reverse=True)
    now = local_now()
    with suppress(Unavailable), mongodb():  # the lists that could be read are shown without MongoDB, too
        now = server_now()
    return GroupedFailures(
        groups=[_counts(one, now) for one in matching[:MAX_GROUPS]],
        of=len(matching),
        lists=found.sources,
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
    path = DETAILS_PAGES.get(group.kind) or find_system(group.system).page
    return f"{path}?{urlencode({name: text for name, text in {**filters, 'search': group.search}.items() if text})}"


def find_group(id: str) -> tuple[FailureGroup, bool]:
    """Read a group anew; return it, and whether its list was read to the end. Raises `NotFound` and `Unavailable`."""
    found = read_failures(systems())
    group = next((one for one in found.groups if one.id == id), None)
    if group is None:
        if unread := [f"{one.title}: {one.problem}" for one in found.sources if one.problem]:
            raise Unavailable(
                f"The group {id!r:.100} was not found in the lists that could be read; {'; '.join(unread)}"
            )
        message = f"There is no group {id!r:.100}: nothing fails with this reason any more"
        raise NotFound(message, field="id")
    return group, all(one.is_complete for one in found.sources if one.system == group.system)


def replay(group: FailureGroup, ids: Sequence[str], actor: Actor, *, is_over: Callable[[], bool]) -> tuple[int, bool]:
    """Replay members in slices until `is_over`; return how many were replayed, and False if slices are left."""
    is_in_redis = group.kind in ("message", "broker")
    size = 1 if group.kind == "job" else REPLAY_SLICE_SIZE  # jobs are changed one by one
    replayed = list[str]()
    with recorded(
        actor,
        "replay" if is_in_redis else "retry",
        system=group.system,
        filter={"name": group.name, "reason": group.reason},
        ids=ids,
        is_in_redis=is_in_redis,
    ) as action:
        action.count = 0
        for begin in range(0, len(ids), size):
            if is_over():
                action.is_complete = False
                break
            replayed += _REPLAYS[group.kind](group, ids[begin : begin + size])
            action.succeeded(replayed)
    log.info(
        "Failures were replayed by an operator",
        system=group.system,
        name=group.name,
        replayed=len(replayed),
        of=len(ids),
    )
    return len(replayed), action.is_complete


def _replay_messages(_: FailureGroup, ids: Sequence[str]) -> list[str]:
    outcomes = queue_admin().replay([id for id in ids if is_id(id)])
    return [id for id, outcome in outcomes.items() if outcome == "MOVED"]


def _retry_items(group: FailureGroup, ids: Sequence[str]) -> list[str]:
    from tasks.retry import retry  # imported here, because it takes a second

    system = find_system(group.system)
    listed = system.open_items()
    return [listed.id_of(item) for item in retry(system, listed, ids)]


def _retry_jobs(_: FailureGroup, ids: Sequence[str]) -> list[str]:
    retry = partial(jobs.retry, states=[JobState.FAILURE])
    return [id for id in ids if result_of(retry, id) == "CHANGED"]


_REPLAYS: dict[FailureKind, Callable[[FailureGroup, Sequence[str]], list[str]]] = {
    "message": _replay_messages,
    "item": _retry_items,
    "job": _retry_jobs,
    "broker": lambda _, ids: replay_letters(ids),
}
"""How to replay members of a group; each function returns the ids of those that were replayed."""
