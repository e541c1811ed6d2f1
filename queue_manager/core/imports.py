"""Imports with clear errors: of modules that a setting names or needs, and of our own packages if others hide them."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from queue_manager.core.errors import ConfigurationError
from queue_manager.core.settings import settings

OWN_PACKAGES = ("beat_schedule", "models", "services", "tasks")
INSTALLED_IN = Path(__file__).parents[2]
_EXTRAS = {
    "SENTRY_DSN": ("sentry", ["sentry_sdk"]),
    "QM_TRACING": ("otel", ["opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"]),
}
"""By setting: the extra that it needs, and modules of it."""


def import_named(module: str, *, setting: str) -> ModuleType:
    """Import a module, also from the directory in which the process was started, as `celery worker` does.

    Raises:
        ConfigurationError: the module cannot be imported; names the setting, the module and the error.
    """
    if (here := os.getcwd()) not in sys.path:
        sys.path.insert(0, here)
    try:
        return import_module(module)
    except (Exception, SystemExit) as error:  # importing a module may raise any error
        raise ConfigurationError(f"{setting}: {module!r} cannot be imported ({_described(error, module)})") from error


def _described(error: BaseException, module: str) -> str:
    """Return an error of an import, and the line of the module's package that caused it."""
    text = str(error) if isinstance(error, ConfigurationError) else f"{type(error).__name__}: {error}"
    if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
        return f"{text}; install its package, or add its directory to PYTHONPATH"
    package = module.partition(".")[0]
    lines = [
        f"{frame.f_code.co_filename}:{line}"
        for frame, line in traceback.walk_tb(error.__traceback__)
        if frame.f_globals.get("__name__", "").partition(".")[0] == package
    ]
    return f"{text}; {lines[-1]}" if lines else text


def require_extras() -> None:
    """Raise ConfigurationError if a setting needs an extra that is not installed."""
    for setting, (extra, modules) in _EXTRAS.items():
        if not getattr(settings(), setting.lower()):
            continue
        try:
            for module in modules:
                import_module(module)
        except ImportError:
            raise ConfigurationError(
                f"{setting}: its packages are not installed: pip install 'queue-manager[{extra}]'"
            ) from None


@cache
def require_own_packages() -> None:
    """Raise ConfigurationError if Python would import another package instead of one of ours; names both places."""
    for name in OWN_PACKAGES:
        if not _is_own(spec := find_spec(name)):
            found = spec.origin if spec else None
            raise ConfigurationError(
                f"Python imports {name!r} from {found or 'nowhere'} instead of {INSTALLED_IN}: rename that package, or "
                f"start the process where it is not on the path ({', '.join(filter(None, sys.path[:3]))}, …)"
            )


def packages_hidden_in(directory: str) -> Iterator[str]:
    """Yield the files that a process imports instead of our packages if `directory` is first on its path."""
    for name in OWN_PACKAGES:
        spec = PathFinder.find_spec(name, [directory])
        if spec is not None and spec.origin and not _is_own(spec):
            yield spec.origin


def _is_own(spec: ModuleSpec | None) -> bool:
    return spec is not None and spec.origin is not None and INSTALLED_IN in Path(spec.origin).parents
