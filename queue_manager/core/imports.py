"""Import of modules that a setting names."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from types import ModuleType

from queue_manager.core.errors import ConfigurationError


def import_named(module: str, *, setting: str) -> ModuleType:
    """Import a module, also from the directory in which the process was started, as `celery worker` does.

    Raises:
        ConfigurationError: the module cannot be imported; names the setting, the module and the error.
    """
    if (here := os.getcwd()) not in sys.path:
        sys.path.insert(0, here)
    try:
        return import_module(module)
    except Exception as error:  # importing a module may raise any error
        raise ConfigurationError(
            f"{setting}: {module!r} cannot be imported ({type(error).__name__}: {error})"
        ) from error
