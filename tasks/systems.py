"""The systems as Celery knows them: their entries in the schedule of beat, and their registered tasks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from celery.schedules import crontab

from beat_schedule import systems
from queue_manager.core.errors import ConfigurationError
from queue_manager.core.settings import Settings
from queue_manager.system import SCANS_QUEUE, System
from tasks.app import app


def beat_entries(of: Iterable[System], settings: Settings) -> dict[str, dict[str, Any]]:
    """Return the entries of the systems that are switched on.

    No message expires: expiry would compare the beat's clock with a worker's. A backlog is skipped by number instead,
    see `queue_manager/beat/scan_ticks.py`.
    """
    return {
        system.name: {
            "task": system.scan_task,
            "schedule": system.period(settings) if system.at is None else crontab.from_string(system.at),
            "options": {"queue": SCANS_QUEUE},
            **({"kwargs": {"epoch": None}} if system.takes_epoch else {}),
        }
        for system in of
        if system.is_on(settings)
    }


def require_tasks(of: Iterable[System] | None = None) -> None:
    """Import all tasks.

    Raises:
        ConfigurationError: a system names a task that is not registered, is a plain Celery task, or has another queue.
    """
    app.loader.import_default_modules()
    for system in systems() if of is None else of:
        names = [name for name in (system.scan_task, system.item_task) if name is not None]
        for name in names:
            # Celery registers `@shared_task` first.
            if name in app.tasks and not hasattr(app.tasks[name], "queue_name"):
                raise ConfigurationError(
                    f"System {system.name!r}: {name!r} is a plain Celery task: remove `@shared_task` or `@app.task` "
                    "from the function"
                )
        for name in names:
            if name not in app.tasks:
                module = name.rpartition(".")[0]
                raise ConfigurationError(
                    f"System {system.name!r}: no task {name!r} is registered; define it in {module}"
                )
        item = app.tasks.get(system.item_task)
        if item is not None and item.queue_name != system.queue:
            expected = f"{item.queue_name!r}, the queue of its task {system.item_task!r}"
            raise ConfigurationError(f"System {system.name!r}: queue={system.queue!r} must be {expected}")
