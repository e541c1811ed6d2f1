"""What fires when: the whole schedule.

A scan fires while its flag is on. Missed or doubled ticks change nothing in the end: a scan asks what is due now.
"""

from __future__ import annotations

from celery.schedules import crontab

from queue_manager.core.clock import hours, minutes, seconds
from queue_manager.core.schedule import Scan

SCHEDULE = (
    Scan(
        name="support-snooze",
        task="tasks.support_snooze.scan_expired_snoozes",
        queue="support-snooze",
        trigger="conversations/support-snooze",
        flag=lambda chosen: chosen.qm_conversations,
        period=lambda chosen: seconds(chosen.qm_snooze_scan_seconds),
    ),
    Scan(
        name="review-requests",
        task="tasks.review_requests.scan_eligible_agencies",
        queue="review-request-pulse",
        trigger="projects/review-request-pulse",
        flag=lambda chosen: chosen.qm_projects,
        period=lambda _: minutes(5),
    ),
    Scan(
        name="stale-thumbnails",
        task="tasks.stale_thumbnails.scan_stale_thumbnails",
        queue="stale-thumbnails",
        trigger="sites/fix-stale-thumbnails",
        flag=lambda chosen: chosen.qm_sites_fix_stale_thumbnails,
        period=lambda _: hours(1),
        at=crontab(minute=0),
    ),
    Scan(
        name="overdue-messages",
        task="tasks.overdue_messages.requeue_overdue_messages",
        service="message_queue",
        trigger="messages/requeue-overdue",
        flag=lambda chosen: chosen.qm_message_queue,
        period=lambda chosen: seconds(chosen.overdue_check_interval_ms / 1000),
    ),
    Scan(
        name="job-queues",
        task="tasks.job_queues.dispatch_due_jobs",
        queue="jobs",
        trigger="jobs/dispatch",
        flag=lambda chosen: chosen.runs_jobs,
        period=lambda chosen: seconds(chosen.jobs_timer_ms / 1000),
        takes_epoch=True,
    ),
)
