"""Completion of names in a shell. Nothing is completed if a server does not answer in a second."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from beat_schedule import systems
from models import job
from models.audit import AUDITED_ACTIONS
from models.job import JobState
from queue_manager.core.errors import AppError
from queue_manager.health_rules import COMPONENTS, Rule
from queue_manager.server_calls import mongodb
from services.job_queues.fields import JOB_NAME

COMPLETION_TIMEOUT = 1.0  # seconds


def complete_system(incomplete: str) -> list[str]:
    """Complete the name of a system."""
    with suppress(AppError):
        return _beginning(incomplete, (one.name for one in systems()))
    return []


def complete_system_with_items(incomplete: str) -> list[str]:
    """Complete the name of a system whose items can be listed."""
    with suppress(AppError):
        return _beginning(incomplete, (one.name for one in systems() if one.items is not None))
    return []


def complete_alert_system(incomplete: str) -> list[str]:
    """Complete the name of a system or a component that may have a problem."""
    return sorted([*complete_system(incomplete), *_beginning(incomplete, COMPONENTS)])


def complete_rule(incomplete: str) -> list[str]:
    """Complete the rule of a problem."""
    return _beginning(incomplete, (rule.id for rule in Rule))


def complete_job_name(incomplete: str) -> list[str]:
    """Complete the name of stored jobs. Another program may have stored a name that the shell would execute."""
    with suppress(AppError), mongodb(COMPLETION_TIMEOUT):
        return _beginning(incomplete, filter(JOB_NAME.fullmatch, job.names()))
    return []


def complete_job_state(incomplete: str) -> list[str]:
    """Complete the state of jobs."""
    return _beginning(incomplete, (state.value for state in JobState))


def complete_action(incomplete: str) -> list[str]:
    """Complete an action of the audit."""
    return _beginning(incomplete, AUDITED_ACTIONS)


def _beginning(incomplete: str, names: Iterable[str]) -> list[str]:
    return sorted(name for name in names if name.startswith(incomplete))
