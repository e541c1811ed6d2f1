"""The Celery application. Its configuration, `tasks/celeryconfig.py`, is read when it is first needed."""

from __future__ import annotations

from celery import Celery

app = Celery("queue_manager", include=["tasks.support_snooze", "tasks.lifecycle"])
app.config_from_object("tasks.celeryconfig")
