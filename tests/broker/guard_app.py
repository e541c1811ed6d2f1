"""A Celery app with the settings that Queue Manager recommends, for processes that tests start and kill."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from celery import Celery
from redis.backoff import NoBackoff
from redis.retry import Retry

from queue_manager.broker.options import register_transport

TRANSPORT_OPTIONS: dict[str, Any] = {
    "visibility_timeout": 8,  # 600 in production; a test does not wait that long for a message to come back
    "unacked_restore_interval": 1,
    "unacked_restore_throttle": 1,
    "unacked_mutex_expire": 30,
    "socket_timeout": 10,
    "socket_connect_timeout": 5,
    "socket_keepalive": True,
    "health_check_interval": 5,
    "priority_steps": [0],
}


def make_app(
    broker_url: str,
    *,
    schedule: Mapping[str, float] | None = None,
    lock_timeout: float = 6,
    schedule_url: str | None = None,
) -> Celery:
    """Make an app whose beat sends a tick to each queue of `schedule` every so many seconds."""
    app = Celery("guard_app", set_as_current=False)
    app.conf.update(
        broker_url=broker_url,
        broker_transport=register_transport(broker_url),
        broker_transport_options=TRANSPORT_OPTIONS,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_pool_acquire_timeout=10,
        task_acks_late=True,
        task_reject_on_worker_lost=False,
        task_ignore_result=True,
        result_expires=None,  # without it beat adds a task that cleans up results, which nobody keeps
        worker_consumer="queue_manager.broker.consumer:Consumer",
        worker_prefetch_multiplier=4,
        worker_disable_rate_limits=True,
        worker_cancel_long_running_tasks_on_connection_loss=False,
        beat_scheduler="queue_manager.beat.scheduler:LeaderScheduler",
        beat_max_loop_interval=1,
        beat_enable_remote_control=True,
        beat_remote_control_max_tick_age=30,
        beat_schedule={queue: every(period, queue) for queue, period in (schedule or {}).items()},
        redbeat_redis_url=schedule_url or broker_url,
        redbeat_redis_options={
            "socket_timeout": 5,
            "socket_connect_timeout": 2,
            "retry": Retry(NoBackoff(), 0),
        },
        redbeat_lock_timeout=lock_timeout,
        timezone="UTC",
    )
    return app


@contextmanager
def client_app(broker_url: str, **options: Any) -> Iterator[Celery]:
    """An app for the test's own process, whose connections are closed at the end."""
    app = make_app(broker_url, **options)
    try:
        yield app
    finally:
        app.pool.force_close_all()
        app.close()


def every(period: float, queue: str) -> dict[str, Any]:
    return {"task": "guard_app.tick", "schedule": period, "options": {"queue": queue}}


app = make_app(
    os.environ.get("GUARD_APP_BROKER_URL", "redis://127.0.0.1:6379/0"),
    schedule={
        queue: float(period)
        for queue, period in (pair.split("=") for pair in os.environ.get("GUARD_APP_SCHEDULE", "").split())
    },
    lock_timeout=float(os.environ.get("GUARD_APP_LOCK_TIMEOUT", "6")),
)
app.conf.update(json.loads(os.environ.get("GUARD_APP_SETTINGS", "{}")))
app.conf.broker_transport_options = {**TRANSPORT_OPTIONS, **json.loads(os.environ.get("GUARD_APP_TRANSPORT", "{}"))}


@app.task(name="guard_app.hold")
def hold(seconds: float, diary: str) -> None:
    """Run for `seconds`, and write into the file `diary` that it started and that it completed."""
    note(diary, "started")
    time.sleep(seconds)
    note(diary, "completed")


@app.task(name="guard_app.write")
def write(line: str, diary: str) -> None:
    """Write a line into the file `diary`."""
    note(diary, line)


def note(diary: str, line: str) -> None:
    # A file rather than Redis: the task completes while Redis is down.
    with Path(diary).open("a") as file:
        file.write(line + "\n")
