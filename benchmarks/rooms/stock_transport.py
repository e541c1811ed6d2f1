"""The project on kombu's own Redis transport: what it would be without ours."""

from __future__ import annotations

from typing import Any

from celery import signals

from tasks import app

app.conf.broker_transport = "redis"
# It renews nothing, so what waits in a worker must not be overdue meanwhile.
app.conf.broker_transport_options = {**app.conf.broker_transport_options, "visibility_timeout": 600}


@signals.task_sent.connect  # type: ignore[untyped-decorator]
def as_celery_does(**_: Any) -> None:
    """That somebody listens makes `queue_manager.batching.publish` send each message by Celery's own way."""
