"""Celery tasks of stale thumbnails: a scan for hung builds every hour, and one task for each site."""

from __future__ import annotations

from functools import partial
from typing import Any

from kombu import Queue

from models.database import server_now
from queue_manager.broker.keys import FOREIGN_DEFAULT_QUEUE
from queue_manager.core.clock import hours, to_iso
from queue_manager.core.retry import ONCE
from queue_manager.core.settings import settings
from services.stale_thumbnails import INITIATOR, StaleThumbnails, stale_thumbnails, system
from tasks.app import app
from tasks.item import current_task_id, item_task
from tasks.scan import ScanReport, fan_out, report_error, scan_task

THUMBNAILS_QUEUE = str(system.queue)


def thumbnails() -> StaleThumbnails:
    builder = settings().thumbnail_build_task
    return stale_thumbnails(hand_over=partial(send_by_name, builder) if builder else None)


def send_by_name(name: str, *args: Any) -> None:
    """Send a task of another application to the queue where its workers take tasks by default."""
    # As an object: after a reconnect, this worker would also consume a queue that is given by name.
    app.send_task(name, list(args), queue=Queue(FOREIGN_DEFAULT_QUEUE), retry=False)


@scan_task(initiator=INITIATOR, sent="Sent stuck thumbnail jobs to be reset.", failed="Error in thumbnail health check")
def scan_stale_thumbnails() -> ScanReport:
    work = thumbnails()
    report = fan_out(reset_stale_thumbnail, *work.by_collection())
    if report.enqueued:
        try:
            log_resets.delay(work.run, report.enqueued, to_iso(server_now() + hours(1)))
        except Exception as error:  # any error: the sites were sent
            report.errors.append(f"The count of the resets could not be sent: {report_error(error)}")
    return report


@item_task(queue=THUMBNAILS_QUEUE, work=thumbnails, retry=ONCE)  # the next hour is the retry
def reset_stale_thumbnail(collection: str, site_id: str, started_at: str) -> dict[str, Any]:
    return thumbnails().reset(collection, site_id, started_at, task_id=current_task_id())


@item_task(queue=THUMBNAILS_QUEUE, work=thumbnails, retry=ONCE, is_counted=False)
def log_resets(run: str, expected: int, until: str) -> dict[str, Any]:
    return thumbnails().log_resets(run, expected, until)
