"""Moves messages from the broker keys of release 0.1: by workers of the default queue, one at a time, in a thread."""

from __future__ import annotations

from threading import Event
from typing import Any

from celery import signals

from queue_manager.broker.keys import DEFAULT_QUEUE
from queue_manager.broker.old_keys import OldKeys
from queue_manager.core import redis_client
from queue_manager.core.background import ServiceThread
from queue_manager.core.errors import reason
from queue_manager.core.log import get_logger
from queue_manager.core.settings import settings
from tasks.app import app

PERIOD = 3.0  # seconds
DRAIN_LOCK = "qm:old_keys:turn"

log = get_logger("QM/broker")


def queues_by_task() -> dict[str, str]:
    """Return the queue of each of our tasks. Tasks that another application shares with ours have none."""
    return {name: task.queue_name for name, task in app.tasks.items() if hasattr(task, "queue_name")}


@signals.worker_ready.connect
def start(sender: Any, **_: Any) -> None:
    if settings().broker_redis_url is not None and DEFAULT_QUEUE in sender.app.amqp.queues.consume_from:
        _thread.start()


@signals.worker_shutdown.connect
def stop(**_: Any) -> None:
    _thread.stop()


def _run(is_over: Event) -> None:
    old, url = OldKeys(queues_by_task()), settings().broker_redis_url
    assert url is not None
    with redis_client.connect(url) as client:
        while not is_over.wait(PERIOD):
            try:
                # The lock expires a little before the next turn: the worker that comes first takes it.
                if (
                    old.exist(client)
                    and client.set(DRAIN_LOCK, 1, nx=True, px=int(PERIOD * 900))
                    and (moved := old.empty(client))
                ):
                    log.info("Messages of release 0.1 and of callers without a queue were moved", messages=moved)
            except redis_client.RedisError as error:
                log.debug("The keys of release 0.1 could not be read", error=reason(error))


_thread = ServiceThread(_run, name="old-keys")
