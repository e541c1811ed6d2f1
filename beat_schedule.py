"""The systems of Queue Manager, one line each: start reading here.

A system is one kind of due work, such as the rooms whose snooze has ended. Beat starts its scan every period; the scan
finds what is due now, so missed or doubled ticks change nothing in the end, and sends one Celery task an item. Each
module of `services` below declares its system (`queue_manager/system.py`), and says what is due and what it guarantees.

`QM_SYSTEMS` adds systems that are declared elsewhere.
"""

from __future__ import annotations

from functools import cache

from queue_manager.core.settings import settings
from queue_manager.system import System, declared, require_distinct
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
        ConfigurationError: a module cannot be imported or declares no system, or two systems collide.
    """
    return _with_declared(tuple(settings().qm_systems))


@cache
def _with_declared(modules: tuple[str, ...]) -> tuple[System, ...]:
    systems = (*SYSTEMS, *declared(modules))
    require_distinct(systems)
    return systems


def warnings() -> list[str]:
    """Return what an operator should know of the environment: misspelt names, nothing switched on."""
    chosen = settings()
    if any(system.is_switched_on(chosen) for system in systems()):
        return chosen.warnings()
    flags = " or ".join(system.flag for system in SYSTEMS if system.flag is not None)
    idle = f"no system is switched on, so no scan will run: set {flags} to true, or name modules in QM_SYSTEMS"
    return [*chosen.warnings(), idle]
