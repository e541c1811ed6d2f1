"""What a line of `beat_schedule.py` says, and the form in which Celery wants it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from queue_manager.core.clock import seconds
from queue_manager.core.settings import Settings

if TYPE_CHECKING:
    from celery.schedules import crontab

MISSED_RUNS = 3
MIN_LATE_AFTER = seconds(15)  # a very short period must not raise an alarm for every pause of a busy machine


@dataclass(frozen=True, kw_only=True)
class Scan:
    """One periodic scan and where its items go."""

    name: str
    """How `queue-manager scan` and the health page call it."""
    task: str
    """The registered name of its task; the module before the last dot is imported by every worker."""
    trigger: str
    """`group/job`: the end of the path by which the web process starts it by hand."""
    flag: Callable[[Settings], bool]
    """Whether it is switched on."""
    period: Callable[[Settings], timedelta]
    """The time between two runs."""
    queue: str | None = None
    """The Celery queue of its items; `None` when the scan acts itself."""
    at: crontab | None = None
    """When exactly, if not simply every `period`."""
    service: str | None = None
    """The module of `services` that has its figures, if not the one named like that of its tasks."""

    takes_epoch: bool = False
    """Whether the beat that leads tells the scan the number of its take-over, as `epoch`."""

    @property
    def system(self) -> str:
        """The module of its service."""
        return self.service or self.task.split(".")[1]

    def late_after(self, settings: Settings) -> timedelta:
        """Return how long the scan may not have run, or an item may be due, before that is a problem."""
        return late_after(self.period(settings))


def late_after(period: timedelta) -> timedelta:
    """Return the time after which the work of a scan with this period is late."""
    return max(MISSED_RUNS * period, MIN_LATE_AFTER)


def item_queues(schedule: Sequence[Scan]) -> list[str]:
    """Return the Celery queues of all items."""
    return list(dict.fromkeys(scan.queue for scan in schedule if scan.queue is not None))


def celery_entries(schedule: Sequence[Scan], settings: Settings) -> dict[str, dict[str, Any]]:
    """Return the entries that are switched on.

    No message expires: expiry would compare the beat's clock with a worker's. A backlog is skipped by number instead,
    see `transport/scan_ticks.py`.
    """
    return {
        scan.name: {
            "task": scan.task,
            "schedule": scan.at or scan.period(settings),
            "options": {"queue": "scans"},
            **({"kwargs": {"epoch": None}} if scan.takes_epoch else {}),
        }
        for scan in schedule
        if scan.flag(settings)
    }
