"""Checks that every task that a system names is registered, and on the right queue."""

from __future__ import annotations

from collections.abc import Iterable

from beat_schedule import systems
from queue_manager.core.errors import ConfigurationError
from queue_manager.system import System
from tasks.app import app


def require_tasks(of: Iterable[System] | None = None) -> None:
    """Import all tasks.

    Raises:
        ConfigurationError: a system names a task that is not registered, or that has another queue.
    """
    app.loader.import_default_modules()
    for system in systems() if of is None else of:
        for name in (system.scan_task, system.item_task):
            if name is not None and name not in app.tasks:
                module = name.rpartition(".")[0]
                raise ConfigurationError(
                    f"System {system.name!r}: no task {name!r} is registered; define it in {module}"
                )
        queue = getattr(app.tasks.get(system.item_task), "queue_name", system.queue)
        if queue != system.queue:
            expected = f"{queue!r}, the queue of its task {system.item_task!r}"
            raise ConfigurationError(f"System {system.name!r}: queue={system.queue!r} must be {expected}")
