"""Completion of names in a shell. Nothing is completed if a server does not answer in a second."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress

from beat_schedule import systems
from models import job
from models.job import JobState
from queue_manager.core.errors import AppError
from queue_manager.health_rules import COMPONENTS
from queue_manager.server_calls import mongodb
from services.job_queues.fields import JOB_NAME

COMPLETION_TIMEOUT = 1.0  # seconds


def _completion_of(names: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """Return a function that completes the names; none of them if they cannot be read."""

    def complete(incomplete: str) -> list[str]:
        with suppress(AppError), mongodb(COMPLETION_TIMEOUT):
            return sorted(name for name in names() if name.startswith(incomplete))
        return []

    return complete


complete_system = _completion_of(lambda: (one.name for one in systems()))
complete_system_with_items = _completion_of(lambda: (one.name for one in systems() if one.items is not None))
complete_alert_system = _completion_of(lambda: (*(one.name for one in systems()), *COMPONENTS))
# Another program may have stored a name that the shell would execute.
complete_job_name = _completion_of(lambda: filter(JOB_NAME.fullmatch, job.names()))
complete_job_state = _completion_of(lambda: JobState)
