"""The Celery tasks of `DueDocuments`: the scan, the item, and the repeated calls of `after`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

from queue_manager.core.settings import settings
from services.due_documents import DueDocuments, work_of
from tasks.app import app
from tasks.item import ItemTask, item_task
from tasks.scan import ScanReport, fan_out, scan_end


def dispatch(system: DueDocuments) -> ScanReport:
    """Dispatch due items, and then the calls of `after` that a crash or an error left pending: the count `after`."""
    ends_at = scan_end()
    report = fan_out(app.tasks[system.item_task], work_of(system), ends_at=ends_at)
    is_idle = "paused" in report.other_counts or system.name in settings().qm_dry_run
    if system.functions.after is not None and not is_idle:
        calls = fan_out(app.tasks[after_task_name(system)], work_of(system).after_calls, ends_at=ends_at)
        report.other_counts += Counter(after=calls.enqueued)  # not if it is 0
        report.errors += calls.errors
    return report


def item_of(system: DueDocuments) -> Callable[[Callable[..., Any]], ItemTask]:
    """Return the decorator of the item task of a system."""
    return item_task(
        queue=str(system.queue), work=partial(work_of, system), retry=system.functions.retry, name=system.item_task
    )


def after_of(system: DueDocuments) -> ItemTask:
    """Make the task that calls `after` again for one batch."""

    def repeat_after(batch: str, written_at: str) -> None:
        work_of(system).after_calls.repeat(batch)

    return item_task(
        queue=str(system.queue),
        work=lambda: work_of(system).after_calls,
        retry=system.functions.retry,
        is_counted=False,
        name=after_task_name(system),
    )(repeat_after)


def after_task_name(system: DueDocuments) -> str:
    return f"{system.item_task}_after"
