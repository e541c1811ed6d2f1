"""A Celery app with the settings that Queue Manager recommends, for processes that tests start and kill."""

from __future__ import annotations

import os
import time
from pathlib import Path

from celery import Celery
from redis.backoff import NoBackoff
from redis.retry import Retry

from queue_manager.transport.guard import install

BROKER_URL = os.environ.get("GUARD_APP_BROKER_URL", "redis://127.0.0.1:6379/0")

app = Celery("guard_app")
app.conf.update(
    broker_url=BROKER_URL,
    broker_transport=install(BROKER_URL),
    broker_transport_options={
        # 600 in production; a test does not wait that long for a message to come back.
        "visibility_timeout": 8,
        "unacked_restore_interval": 1,
        "unacked_restore_throttle": 1,
        "unacked_mutex_expire": 30,
        "socket_timeout": 10,
        "socket_connect_timeout": 5,
        "socket_keepalive": True,
        "health_check_interval": 5,
        "priority_steps": [0],
    },
    broker_connection_retry_on_startup=True,
    broker_connection_max_retries=None,
    broker_pool_acquire_timeout=10,
    task_acks_late=True,
    task_reject_on_worker_lost=False,
    task_ignore_result=True,
    worker_prefetch_multiplier=4,
    worker_disable_rate_limits=True,
    worker_cancel_long_running_tasks_on_connection_loss=False,
    beat_scheduler="queue_manager.transport.beat:LeaderScheduler",
    beat_max_loop_interval=1,
    beat_enable_remote_control=True,
    beat_remote_control_max_tick_age=30,
    beat_schedule={
        name: {"task": "guard_app.tick", "schedule": float(period), "options": {"queue": name}}
        for name, period in (pair.split("=") for pair in os.environ.get("GUARD_APP_SCHEDULE", "").split())
    },
    redbeat_redis_url=BROKER_URL,
    redbeat_redis_options={
        "socket_timeout": 5,
        "socket_connect_timeout": 2,
        "retry": Retry(NoBackoff(), 0),
    },
    redbeat_lock_timeout=float(os.environ.get("GUARD_APP_LOCK_TIMEOUT", "6")),
    timezone="UTC",
)


@app.task(name="guard_app.hold")
def hold(seconds: float, diary: str) -> None:
    """Run for `seconds`, and write down in the file `diary` when it started and that it completed."""
    note(diary, f"started {time.time()}")
    time.sleep(seconds)
    note(diary, "completed")


@app.task(name="guard_app.tick")
def tick() -> None:
    """What the beat sends; no worker runs it, the tests count the messages."""


def note(diary: str, line: str) -> None:
    # A file rather than Redis: the task ends while Redis is down.
    with Path(diary).open("a") as file:
        file.write(line + "\n")
