"""What a line of `beat_schedule.py` says, and the form in which Celery wants it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from queue_manager.core.settings import Settings

LEADER_LOCK = "redbeat::lock"
"""The key in Redis by which one beat leads."""


@dataclass(frozen=True, kw_only=True)
class Every:
    """One periodic scan."""

    name: str
    """How `queue-manager scan` and the health page call it."""
    task: str
    """The registered name of its task."""
    period: str
    """The setting that holds its period, in seconds."""
    flag: str
    """The setting that switches it on."""

    def seconds(self, settings: Settings) -> float:
        return float(getattr(settings, self.period))

    def is_on(self, settings: Settings) -> bool:
        return getattr(settings, self.flag) is True


def celery_entries(schedule: Sequence[Every], settings: Settings) -> dict[str, dict[str, Any]]:
    """Return the entries that are switched on. Each message expires with its period: a scan never piles up."""
    return {
        entry.name: {
            "task": entry.task,
            "schedule": entry.seconds(settings),
            "options": {"expires": entry.seconds(settings), "queue": "scans"},
        }
        for entry in schedule
        if entry.is_on(settings)
    }
