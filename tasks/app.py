"""The Celery application. Its configuration, `tasks/celeryconfig.py`, is read when it is first needed."""

from __future__ import annotations

from celery import Celery

from beat_schedule import SCHEDULE

app = Celery(
    "queue_manager",
    include=["tasks.lifecycle", *(scan.task.rpartition(".")[0] for scan in SCHEDULE)],
    events="queue_manager.transport.events:Events",
)
app.config_from_object("tasks.celeryconfig")
