"""Every index of every collection: what `queue-manager migrate` creates."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

import models
from models import database, pulse
from queue_manager.core.errors import ConfigurationError


def migrate() -> list[str]:
    """Create every index that is missing; return their names. Safe to repeat.

    Raises:
        ConfigurationError: documents that are already there contradict a unique index; lists them. Nothing was done.
    """
    if obstacles := pulse.obstacles():
        raise ConfigurationError(
            "these must be put in order first: leave one open request of each account, and set the others to "
            "status `dismissed`\n" + "\n".join(obstacles)
        )
    modules = (import_module(f"models.{module.name}") for module in iter_modules(models.__path__))
    every = [module.collections() for module in modules if hasattr(module, "collections")]
    return database.create_indexes({name: indexes for some in every for name, indexes in some.items()})
