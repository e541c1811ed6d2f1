"""What an id names, in all systems, and why it is in its state: for the API, the pages and `queue-manager why`."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from pydantic import BaseModel, Field

from beat_schedule import systems
from models import audit, database, item_events
from models.audit import AuditEntry
from models.database import server_now
from queue_manager import leases, pauses
from queue_manager.beat.status import leadership, next_runs
from queue_manager.core.errors import AppError, reason
from queue_manager.core.settings import settings
from queue_manager.explanation import DispatchState, Explanation, newest_first, sentence, when
from queue_manager.server_calls import mongodb, redis_server
from queue_manager.system import System
from queue_manager.telemetry import worker_heartbeats
from queue_manager.web.http.responses import ServerTime
from services.audit import DELETING_ACTIONS, timeline_event

MAX_SEARCH_ID_LENGTH = 1_024  # characters
_TASK_ID = re.compile(r"[0-9a-f]{32}(-[0-9a-f]{32})?-\d{1,5}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@dataclass(frozen=True, kw_only=True)
class FoundThing(Explanation):
    """An item, a message or a job, and why it is in its state."""


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
                label="deleted",
                answer=sentence(f"deleted by {last.who} at {when(last.at, now)}"),
                page=system.page_of_item(id),
                document=f"/api/audit/{last.id}",
            )


def _found(explanation: Explanation, actions: Sequence[AuditEntry]) -> FoundThing:
    """Add what people did to it to its timeline."""
    past = [*map(timeline_event, reversed(actions))]
    timeline = newest_first([*reversed(explanation.timeline), *past])
    return FoundThing(**{**vars(explanation), "timeline": timeline})


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
