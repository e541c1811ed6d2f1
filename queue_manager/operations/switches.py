"""Pausing and resuming the items of a system, the jobs of a name, the messages of a type.

Guarantee: each is in the audit, with the reason of a pause, and in the log.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

from models import job_queue
from queue_manager import pauses
from queue_manager.core.errors import AppError, NotFound
from queue_manager.core.log import get_logger
from queue_manager.operations.systems import find_system
from queue_manager.pauses import COMMAND_LINE, PauseState
from queue_manager.server_calls import mongodb
from queue_manager.system import System
from services import job_queues, message_queue
from services.audit import Actor, recorded

log = get_logger("QM/operations")


class CannotPause(AppError):
    """A system dispatches no items, because its scan does the work itself."""


def pause_system(actor: Actor, system: System, reason: str | None) -> PauseState:
    """Dispatch no more items of a system until it is resumed. Items in flight finish.

    Raises `CannotPause` and `Unavailable`.
    """
    _require_items(system)
    with _recorded(actor, "pause", system.name, reason=reason):
        return pauses.pause(system.name, by=_pauser(actor), reason=reason)


def resume_system(actor: Actor, name: str) -> bool:
    """Dispatch the items of a system again; return False if it was not paused.

    Also deletes the pause of a system that is not declared any more. Raises like `pause_system`, and `NotFound`.
    """
    try:
        _require_items(find_system(name))
    except (NotFound, CannotPause):
        if not pauses.is_paused(name):
            raise
    with _recorded(actor, "resume", name):
        return pauses.resume(name)


def _require_items(system: System) -> None:
    if system.item_task is None:
        instead = "; pause its types with `queue-manager queue pause`" if system is message_queue.system else ""
        raise CannotPause(f"The system {system.name} dispatches no items, so it cannot be paused{instead}")


def pause_jobs(actor: Actor, names: Sequence[str], reason: str | None) -> None:
    """Start no more jobs of these names until they are resumed. Raises `InvalidJob` and `Unavailable`."""
    with _recorded(actor, "pause", job_queues.system.name, is_in_redis=False, names=names, reason=reason), mongodb():
        job_queues.jobs.pause(names, by=_pauser(actor), reason=reason)


def resume_jobs(actor: Actor, names: Sequence[str]) -> Collection[str]:
    """Start jobs of these names again; return the names that were paused. Raises `InvalidJob` and `Unavailable`."""
    with _recorded(actor, "resume", job_queues.system.name, is_in_redis=False, names=names), mongodb():
        paused = job_queue.pauses().keys() & {*names}
        job_queues.jobs.resume(names)
    return paused


def pause_types(actor: Actor, types: Sequence[str], reason: str | None) -> None:
    """Deliver no messages of these types until they are resumed. Raises `InvalidMessage` and `Unavailable`."""
    with _recorded(actor, "pause", message_queue.system.name, types=types, reason=reason):
        message_queue.queue_admin().pause(types, by=_pauser(actor), reason=reason)


def resume_types(actor: Actor, types: Sequence[str]) -> Collection[str]:
    """Deliver messages of these types again; return those that were paused. Raises like `pause_types`."""
    with _recorded(actor, "resume", message_queue.system.name, types=types):
        return message_queue.queue_admin().resume(types)


@contextmanager
def _recorded(
    actor: Actor,
    action: Literal["pause", "resume"],
    system: str,
    *,
    is_in_redis: bool = True,
    reason: str | None = None,
    **selected: Sequence[str],
) -> Iterator[None]:
    known = {**{kind: ", ".join(names) for kind, names in selected.items()}, "reason": reason}
    with recorded(actor, action, system=system, filter=known, is_in_redis=is_in_redis):
        yield
    log.info(f"{action.capitalize()}d by an operator", system=system, who=actor.who, **known)


def _pauser(actor: Actor) -> str:
    """Return by whom something is paused, as the pages show it."""
    return COMMAND_LINE if actor.via == "cli" else actor.who
