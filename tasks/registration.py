"""Whether the tasks that the systems name exist."""

from __future__ import annotations

from beat_schedule import systems
from queue_manager.core.errors import ConfigurationError
from tasks.app import app


def require_tasks() -> None:
    """Import all tasks. Raises ConfigurationError if a system names one that is not registered."""
    app.loader.import_default_modules()
    for system in systems():
        for name in (system.scan_task, system.item_task):
            if name is not None and name not in app.tasks:
                raise ConfigurationError(f"System {system.name!r}: no task {name!r} is registered")
