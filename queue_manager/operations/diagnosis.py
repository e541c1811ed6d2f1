"""What an id names, in all systems, and why it is in its state: for the API, the pages and `queue-manager why`."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

import redis
from pydantic import BaseModel, Field

from beat_schedule import systems
from models import audit, item_events
from models.audit import AuditEntry
from models.database import server_now
from queue_manager import leases, pauses
from queue_manager.beat.status import leadership, next_runs
from queue_manager.broker import dead_letters
from queue_manager.core.clock import local_now
from queue_manager.core.errors import AppError, Unavailable, reason, typed_reason
from queue_manager.core.log import get_logger
from queue_manager.core.settings import settings
from queue_manager.core.wording import sentence, when
from queue_manager.explanation import DispatchState, Explanation, newest_first
from queue_manager.operations.schemas import ServerTime
from queue_manager.pauses import PauseState, person
from queue_manager.server_calls import mongodb, redis_client, redis_server
from queue_manager.system import System
from queue_manager.telemetry import worker_heartbeats
from queue_manager.telemetry.worker_heartbeats import OnlineWorker
from services.audit import DELETING_ACTIONS, MAX_AUDITED_ID_LENGTH, timeline_event

MAX_SEARCH_ID_LENGTH = MAX_AUDITED_ID_LENGTH  # characters
MAX_SEARCHED_LETTERS = 100  # of the broker, in which a task is looked for
AUDIT_LOG = "audit log"
"""Its name in `Diagnosis.unread`."""
_TASK_ID = re.compile(r"[0-9a-f]{32}(-[0-9a-f]{32})?-\d{1,5}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

log = get_logger("QM/operations")


class Diagnosis(BaseModel):
    """What an id names."""

    found: list[Explanation]
    unread: dict[str, str] = Field(description="By system, or `audit log`: why it could not be searched.")
    server_time: ServerTime


def diagnose(id: str, *, system_names: Collection[str] | None = None) -> Diagnosis:
    """Explain what an id names: an item of any system, a message, a job, or the item of a task.

    While Redis or MongoDB does not answer, explains what the other one has, and `unread` says what could not be read.

    Args:
        system_names: the only systems to be searched; `None`: all.

    Raises:
        Unavailable: Redis or MongoDB does not answer, and nothing was found in the other one.
    """
    searched = [one for one in systems() if system_names is None or one.name in system_names]
    found: list[Explanation] = []
    unread: dict[str, str] = {}
    away: list[Unavailable] = []
    actions: dict[str, list[AuditEntry]] = {}
    names: list[tuple[str | None, str]] = [(None, id)]
    now = local_now()
    try:
        with mongodb():
            now = server_now()
            names += _items_of_task(id)
    except Unavailable as error:
        away.append(error)
    in_redis = _InRedis()
    try:
        in_redis = _read_redis(searched)
    except Unavailable as error:
        away.append(error)
    with mongodb():  # one limit for all systems; an outage leaves out only those that need MongoDB
        for one in searched:
            try:
                state = _dispatch_state(one, now, in_redis)
                with mongodb():
                    for of_system, name in names:
                        if of_system in (None, one.name):
                            found += one.explain(name, state)
            except AppError as error:
                if one.is_switched_on(settings()):  # our user may lack rights on the collections of others
                    unread[one.name] = reason(error)
            except Exception as error:
                log.error("An id could not be explained", system=one.name, error=typed_reason(error), exc_info=error)
                unread[one.name] = f"its `explain` raised {typed_reason(error)}"
    try:
        with mongodb():
            actions = {one: audit.of_id(one) for one in {id, *(explanation.id for explanation in found)}}
    except Unavailable as error:
        unread[AUDIT_LOG] = reason(error)
    without = {*unread, *(explanation.system for explanation in found)}
    found += _deleted(id, [one for one in searched if one.name not in without], actions.get(id, []), now)
    if away and not found:
        raise away[0]
    found.sort(key=lambda explanation: explanation.id != id)
    explained = [_with_actions(one, actions.get(one.id, [])) for one in found]
    return Diagnosis(found=explained, unread=unread, server_time=now)


def _deleted(id: str, without: list[System], actions: Sequence[AuditEntry], now: datetime) -> Iterator[Explanation]:
    """Explain what had this id and was deleted, for the systems in which nothing has it now."""
    for system in without:
        last = next((act for act in actions if act.system == system.name and act.outcome == "done"), None)
        if last is not None and last.action in DELETING_ACTIONS:
            yield Explanation(
                system=system.name,
                kind=system.item_name,
                id=id,
                label="deleted",
                answer=sentence(f"deleted by {person(last.who)} at {when(last.at, now)}"),
                page=system.page_of_item(id),
                document=f"/api/audit/{last.id}",
            )


def _with_actions(explanation: Explanation, actions: Sequence[AuditEntry]) -> Explanation:
    """Add what people did to the timeline."""
    past = [timeline_event(act) for act in reversed(actions) if act.system == explanation.system]
    return replace(explanation, timeline=newest_first([*reversed(explanation.timeline), *past]))


def _items_of_task(id: str) -> Iterator[tuple[str, str]]:
    """Yield the system and the id of the item for which a task was sent."""
    if _TASK_ID.fullmatch(id) and (item := item_events.item_of_task(id)) is not None:
        system, lease = item
        yield system, leases.id_of(lease)


@dataclass(frozen=True, kw_only=True)
class _InRedis:
    """What Redis knows of the dispatch of systems; by default nothing."""

    has_leader: bool | None = None
    next_at: Mapping[str, datetime] = field(default_factory=dict)
    workers: Sequence[OnlineWorker] | None = None
    paused: Mapping[str, PauseState] = field(default_factory=dict)


def _read_redis(searched: Sequence[System]) -> _InRedis:
    """Raises `Unavailable`."""
    with redis_server() as client:
        return _InRedis(
            has_leader=leadership(client) is not None,
            next_at=next_runs(client, [system.name for system in searched]) if searched else {},
            workers=worker_heartbeats.online(client),
            paused=pauses.paused(),
        )


def _dispatch_state(system: System, now: datetime, in_redis: _InRedis) -> DispatchState:
    workers, paused = in_redis.workers, in_redis.paused
    are_queues_known = workers is not None and all(worker.queues is not None for worker in workers)
    return DispatchState(
        system=system,
        now=now,
        is_on=system.is_on(settings()),
        pause=paused.get(system.name),
        idle=system.idle(settings(), is_paused=system.name in paused),
        has_leader=in_redis.has_leader,
        next_scan_at=in_redis.next_at.get(system.name),
        workers=[one.name for one in workers or () if system.queue in (one.queues or ())] if are_queues_known else None,
        has_dead_letter=_has_dead_letter,
    )


def _has_dead_letter(task: str) -> bool:
    url = settings().broker_redis_url
    try:
        letters = [] if url is None else dead_letters.latest(redis_client(url), limit=MAX_SEARCHED_LETTERS)
    except redis.RedisError:  # the answer then lacks this
        return False
    return any(f'"{task}"' in letter.message for letter in letters)  # as a whole string of its JSON
