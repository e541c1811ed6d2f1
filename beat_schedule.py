"""The systems of Queue Manager, one line each: start reading here.

A system is one kind of due work, such as the rooms whose snooze has ended. Beat starts its scan every period; the scan
finds all that is due now and dispatches one Celery task for each item, so missed or duplicate ticks are harmless. Each
module of `services` below declares its system (`queue_manager/system.py`), and says what is due and what it guarantees.

`QM_SYSTEMS` adds systems that are declared elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache

from queue_manager.core.errors import ConfigurationError
from queue_manager.core.settings import settings
from queue_manager.core.wording import did_you_mean
from queue_manager.system import System, declared, item_queues, require_distinct
from services import job_queues, message_queue, review_requests, stale_thumbnails, support_snooze

SYSTEMS = (
    support_snooze.system,
    review_requests.system,
    stale_thumbnails.system,
    message_queue.system,
    job_queues.system,
)


def systems() -> tuple[System, ...]:
    """Return these systems and those of the modules that `QM_SYSTEMS` names.

    Raises:
        ConfigurationError: a module cannot be imported or declares no system, two systems collide, `QM_DRY_RUN` names
            a system that does not exist, or `QUEUE_NAME` is the name of a Celery queue.
    """
    return _checked(tuple(settings().qm_systems), tuple(settings().qm_dry_run))


@cache
def _checked(modules: tuple[str, ...], dry_run: tuple[str, ...]) -> tuple[System, ...]:
    systems = (*SYSTEMS, *(one for one in declared(modules) if one not in SYSTEMS))
    require_distinct(systems)
    message_queue.require_own_key(item_queues(one for one in systems if one.is_switched_on(settings())))
    try:
        for name in dry_run:
            find_dispatching(name, systems)
    except ConfigurationError as error:
        text = str(error)
        raise ConfigurationError(f"QM_DRY_RUN: {text[0].lower()}{text[1:]}") from None
    return systems


def find_dispatching(name: str, systems: Iterable[System]) -> System:
    """Return the system of this name that dispatches items. Raises ConfigurationError."""
    names = [system.name for system in systems if system.item_task is not None]
    if name not in names:
        raise ConfigurationError(unknown_system(name, names))
    return next(system for system in systems if system.name == name)


def unknown_system(name: str, names: Sequence[str]) -> str:
    """Return the error about a name that is not in `names`."""
    listed = f"the systems are: {', '.join(names)}; QM_SYSTEMS names the modules of your own"
    return f"There is no system {name!r:.100}{did_you_mean(name, names)}; {listed}"


def warnings() -> list[str]:
    """Return warnings about the settings: misspelt names, or no system switched on."""
    chosen = settings()
    if any(system.is_switched_on(chosen) for system in systems()):
        return chosen.warnings()
    flags = " or ".join(system.flag for system in SYSTEMS if system.flag is not None)
    idle = f"no system is switched on, so no scan will run: set {flags} to true, or name modules in QM_SYSTEMS"
    return [*chosen.warnings(), idle]
