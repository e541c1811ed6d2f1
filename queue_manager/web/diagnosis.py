"""What an id names, in all systems, and why it is in its state: for the API, the pages and `queue-manager why`."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, Field

from beat_schedule import systems
from models import audit, database, item_events
from models.audit import AuditEntry
from models.database import server_now
from queue_manager import leases, pauses
from queue_manager.beat.status import leadership, next_runs
from queue_manager.core.clock import milliseconds
from queue_manager.core.errors import AppError, reason
from queue_manager.core.settings import settings
from queue_manager.explanation import DispatchState, Explanation, TimelineEntry, newest_first, sentence, when
from queue_manager.server_calls import mongodb, redis_server
from queue_manager.system import System
from queue_manager.telemetry import worker_heartbeats
from queue_manager.web.http.responses import Moment, Number, ServerTime, optional
from services.audit import DELETING_ACTIONS, timeline_entry

MAX_SEARCH_ID_LENGTH = 1_024  # characters
_TASK_ID = re.compile(r"[0-9a-f]{32}(-[0-9a-f]{32})?-\d{1,5}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class TimelineEvent(BaseModel):
    """Something that happened."""

    at: Moment
    event: str = Field(description="In a few words, such as `Attempt 2 failed`.")
    detail: str
    worker: str | None = optional("Host and process, as `host:pid`.")
    duration_ms: Number | None = optional("How long it took; an item of a batch has that of the batch.")
    error: str | None = optional("Why it failed.")
    task_id: str | None = optional("The id of the Celery task.")


class FoundThing(BaseModel):
    """An item, a message or a job, and why it is in its state."""

    system: str
    kind: str = Field(description="What it is, such as `room`, `message` or `job`.")
    id: str
    title: str = Field(description="What people know it by; may be empty.")
    label: str = Field(description="Its state, in a word or two.")
    tone: Literal["good", "neutral", "warn", "bad"] = Field(description="How good or bad that is.")
    answer: str = Field(description="Why it is in this state, in one or two sentences.")
    due_at: Moment | None
    page: str = Field(description="The path of its page.")
    document: str = Field(description="The path of its document.")
    retry: str | None = Field(description="The path of its retry; null if it cannot be retried now.")
    retry_body: dict[str, Any] = Field(description="What to send there.")
    timeline: list[TimelineEvent] = Field(description="What happened to it, newest first.")
    has_whole_timeline: bool = Field(description="False if reading the batches of a day took too long.")


class Diagnosis(BaseModel):
    """What an id names."""

    found: list[FoundThing]
    unread: dict[str, str] = Field(description="By system: why it could not be searched.")
    server_time: ServerTime


def diagnose(id: str, *, among: Collection[str] | None = None) -> Diagnosis:
    """Explain what an id names: an item of any system, a message, a job, or the item of a task.

    Args:
        among: the names of the only systems to be searched.

    Raises:
        Unavailable: Redis or MongoDB does not answer.
    """
    searched = [one for one in systems() if among is None or one.name in among]
    states = _dispatch_states(searched)
    found: list[Explanation] = []
    unread: dict[str, str] = {}
    with mongodb():
        names = dict.fromkeys([(None, id), *_items_of_task(id)])
        for one in searched:
            try:
                for of_system, name in names:
                    if of_system in (None, one.name):
                        found += one.explain(name, states[one.name])
            except (AppError, database.Error) as error:
                unread[one.name] = reason(error)
        actions = {one: audit.of_id(one) for one in {id, *(explanation.id for explanation in found)}}
        now = server_now()
    without = {*unread, *(explanation.system for explanation in found)}
    found += _deleted(id, [one for one in searched if one.name not in without], actions[id], now)
    found.sort(key=lambda explanation: explanation.id != id)
    things = [_found(one, [act for act in actions[one.id] if act.system == one.system]) for one in found]
    return Diagnosis(found=things, unread=unread, server_time=now)


def _deleted(id: str, without: list[System], actions: Sequence[AuditEntry], now: datetime) -> Iterator[Explanation]:
    """Yield the explanation of what is gone, in systems without this id, because somebody deleted it."""
    for system in without:
        last = next((act for act in actions if act.system == system.name and act.outcome == "done"), None)
        if last is not None and last.action in DELETING_ACTIONS:
            yield Explanation(
                system=system.name,
                kind=system.item_name,
                id=id,
                state="deleted",
                answer=sentence(f"deleted by {last.who} at {when(last.at, now)}"),
                page=system.page_of_item(id),
                document=f"/api/audit/{last.id}",
            )


def _found(explanation: Explanation, actions: Sequence[AuditEntry]) -> FoundThing:
    past = [*map(timeline_entry, reversed(actions))]
    events = list(map(_event, newest_first([*reversed(explanation.timeline), *past])))
    about = {name: value for name, value in vars(explanation).items() if name not in ("state", "timeline")}
    return FoundThing(**about, label=explanation.state, timeline=events)


def _event(entry: TimelineEntry) -> TimelineEvent:
    about = dict(vars(entry))
    duration = about.pop("duration")
    return TimelineEvent(**about, duration_ms=None if duration is None else milliseconds(duration))


def _items_of_task(id: str) -> Iterator[tuple[str, str]]:
    """Yield the system and the id of the item for which a task was sent."""
    if _TASK_ID.fullmatch(id) and (item := item_events.item_of_task(id)) is not None:
        system, lease = item
        yield system, leases.id_of(lease)


def _dispatch_states(some: list[System]) -> dict[str, DispatchState]:
    with redis_server() as client:
        leader = leadership(client)
        next_at = next_runs(client, [system.name for system in some]) if some else {}
        workers = worker_heartbeats.online(client)
    paused = pauses.paused()
    with mongodb():
        now = server_now()
    chosen, are_queues_known = settings(), all(worker.queues is not None for worker in workers)

    def state(system: System) -> DispatchState:
        return DispatchState(
            name=system.name,
            now=now,
            is_on=system.is_on(chosen),
            flag=system.flag,
            pause=paused.get(system.name),
            idle=system.idle(chosen, is_paused=system.name in paused),
            has_leader=leader is not None,
            next_scan_at=next_at.get(system.name),
            period=system.period(chosen),
            workers=[one.name for one in workers if system.queue in (one.queues or ())] if are_queues_known else None,
        )

    return {system.name: state(system) for system in some}
