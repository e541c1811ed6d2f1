"""The systems in the form in which Celery's beat wants them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from celery.schedules import crontab

from queue_manager.core.settings import Settings
from queue_manager.system import SCANS_QUEUE, System


def beat_entries(systems: Iterable[System], settings: Settings) -> dict[str, dict[str, Any]]:
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
        for system in systems
        if system.is_on(settings)
    }
