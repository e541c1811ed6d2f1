"""What is installed here, and what the settings name: needs no server."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version

from packaging.requirements import Requirement

from beat_schedule import systems
from queue_manager.core.errors import ConfigurationError
from queue_manager.core.imports import packages_hidden_in, require_extras
from queue_manager.core.settings import settings
from queue_manager.doctor.findings import Finding, Findings
from queue_manager.health_rules import Rule
from queue_manager.operations.api_keys import configured_keys
from services import job_queues

DISTRIBUTION = "queue-manager"


def hidden_packages() -> Iterator[Findings]:
    """Yield the packages of the working directory that `celery -A tasks` would import instead of ours."""
    for file in packages_hidden_in(os.getcwd()):
        yield Finding(
            f"A process that is started in {os.getcwd()} imports {file} instead of Queue Manager's package",
            "Rename that package, or start the processes in another directory.",
        )


def versions() -> Iterator[Findings]:
    """Yield the dependencies that are missing or have another version than this release supports."""
    for line in requires(DISTRIBUTION) or ():
        requirement = Requirement(line)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        try:
            found = version(requirement.name)
        except PackageNotFoundError:
            found = None
        if found is None or not requirement.specifier.contains(found, prereleases=True):
            yield Finding(
                f"{requirement.name} is {found or 'not installed'}, and must be {requirement.specifier}",
                f"Install {DISTRIBUTION} again, with the versions of its constraints.txt.",
            )


def settings_error() -> str | None:
    """Return why the settings cannot be used at all, a line for each invalid value."""
    try:
        systems()
    except ConfigurationError as error:
        return str(error)
    return None


def invalid_settings() -> Iterator[Findings]:
    """Yield what each kind of process would refuse at its start, without its servers."""
    if (error := settings_error()) is not None:
        yield from _of_settings(error)
        return
    for check in (_tasks, _jobs, _keys, require_extras):
        try:
            check()
        except ConfigurationError as error:
            yield from _of_settings(str(error))


def _of_settings(error: str) -> Iterator[Finding]:
    return (Finding(line, Rule.SETTINGS_WARNING.action) for line in error.splitlines())


def _tasks() -> None:
    from tasks.systems import require_tasks  # imported here, because it takes a second

    require_tasks()


def _jobs() -> None:
    if settings().runs_jobs:
        job_queues.registry.load()


def _keys() -> None:
    configured_keys(settings())
