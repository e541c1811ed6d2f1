"""An app like `guard_app` whose tasks have results, for canvases, revoked tasks and shutdowns."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from celery import Celery, Task, states
from celery.canvas import Signature
from celery.exceptions import Reject

from tests.broker.guard_app import make_app, note


def make_results_app(broker_url: str) -> Celery:
    app = make_app(broker_url)
    app.conf.update(
        result_backend=broker_url,
        task_ignore_result=False,
        task_track_started=True,
        worker_pool_restarts=True,
        worker_prefetch_multiplier=2,
    )
    app.conf.update(json.loads(os.environ.get("GUARD_APP_SETTINGS", "{}")))
    function: Callable[..., object]
    for function in (add, total, fail, hold, wait_for, write, die):
        app.task(name=function.__name__)(function)
    for function in (try_again, reject_first, store_and_reject, replace_with, stamps):
        app.task(name=function.__name__, bind=True)(function)
    app.task(name="die_again", max_retries=2, default_retry_delay=0)(die)
    return app


@contextmanager
def results_app(broker_url: str) -> Iterator[Celery]:
    """An app for the test's own process, whose connections are closed at the end."""
    app = make_results_app(broker_url)
    try:
        yield app
    finally:
        disconnect(app)
        app.backend.result_consumer.subscribed_to.clear()  # a result that is collected later asks the server nothing
        app.backend.result_consumer.stop()
        app.backend.client.close()
        app.close()


def disconnect(app: Celery) -> None:
    """Close the pooled connections; kombu keeps the pool for the next app with this broker."""
    app.pool.force_close_all(close_pool=False)
    app.pool.setup()  # closing empties the pool, and acquiring from an empty pool would block


def call(app: Celery, name: str, *arguments: Any, **options: Any) -> Signature:
    """Return the signature of a task on the queue `q`."""
    return app.tasks[name].s(*arguments).set(**{"queue": "q", **options})


def add(x: int, y: int) -> int:
    return x + y


def total(numbers: Sequence[int]) -> int:
    return sum(numbers)


def fail() -> None:
    raise ValueError("expected")


def hold(seconds: float, diary: str) -> str:
    note(diary, "started")
    time.sleep(seconds)
    note(diary, "completed")
    return "completed"


def wait_for(mark: str) -> str:
    """Run until this file exists."""
    while not os.path.exists(mark):
        time.sleep(0.01)
    return "completed"


def write(line: str, diary: str) -> None:
    note(diary, line)


def die(by: str) -> None:
    """End the process of the pool."""
    os.kill(os.getpid(), signal.SIGKILL) if by == "kill" else sys.exit(1)


def try_again(self: Task, failures: int) -> int:
    """Fail as often as told; return the number of the attempt that succeeded."""
    if self.request.retries < failures:
        raise self.retry(countdown=0.2, max_retries=failures)
    return int(self.request.retries)


def reject_first(self: Task) -> str:
    """Put the message back when it comes for the first time."""
    if not self.request.delivery_info.get("redelivered"):
        raise Reject(requeue=True)
    return "redelivered"


def store_and_reject(self: Task) -> str:
    """Store a success, and put the message back: as if the worker had died before the acknowledgement."""
    if not self.request.delivery_info.get("redelivered"):
        self.backend.store_result(self.request.id, "stored", states.SUCCESS)
        raise Reject(requeue=True)
    return "run twice"


def replace_with(self: Task, number: int, queue: str) -> None:
    """Become `add(number, 1)` on another queue."""
    self.replace(call(self.app, "add", number, 1, queue=queue))


def stamps(self: Task, *_: Any) -> Any:
    return self.request.stamps


app = make_results_app(os.environ.get("GUARD_APP_BROKER_URL", "redis://127.0.0.1:6379/0"))
