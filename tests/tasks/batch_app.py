"""The application with one more item task, which records its calls; `celery -A tests.tasks.batch_app worker`.

BATCH_APP_TIME_LIMIT  soft time limit of the worker, in seconds
BATCH_APP_SIGNALS     any value: a signal receiver records each task that succeeded

The beginning of an item's name says how it behaves. Keys in Redis: `calls` lists each call as JSON, [kind, names]; an
item named `hold` waits for `go`; items named `flaky` fail, and those named `late` are not yet due, until
`healthy` exists.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any

from celery import signals
from pymongo.errors import AutoReconnect

from models.database import server_now
from queue_manager import leases
from queue_manager.core.clock import seconds
from queue_manager.core.errors import NotYetDue, PermanentError
from queue_manager.core.redis_client import connect
from queue_manager.core.retry import RetryPolicy
from queue_manager.core.settings import settings
from queue_manager.items import DueItem, Verdict
from services.due_work import Due, DueWork, Limits, leases_of
from tasks import app
from tasks.item import REPEATS_HEADER, item_task
from tests.eventually import eventually

__all__ = ["app"]

QUEUE = "batches"

# What a lost process and a lost connection leave behind is seen within seconds.
app.conf.worker_lost_wait = 1
app.conf.broker_transport_options["visibility_timeout"] = 8
if "BATCH_APP_TIME_LIMIT" in os.environ:
    app.conf.task_soft_time_limit = int(os.environ["BATCH_APP_TIME_LIMIT"])


class Poison(Exception):
    """Can be pickled, and not be read again."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(first + second)


def record_call(kind: str, *names: str) -> None:
    with connect(settings().redis_url) as client:
        client.rpush("calls", json.dumps([kind, names]))


def is_first(what: str) -> bool:
    with connect(settings().redis_url) as client:
        return bool(client.set(f"seen:{what}", 1, nx=True))


def is_healthy() -> bool:
    with connect(settings().redis_url) as client:
        return bool(client.exists("healthy"))


def hold(sign: str = "go") -> None:
    with connect(settings().redis_url) as client:
        eventually(lambda: client.exists(sign))


def record_success(sender: Any, **_: Any) -> None:
    record_call("success signal", sender.request.id)


if "BATCH_APP_SIGNALS" in os.environ:
    signals.task_success.connect(record_success)


def outcome_in_batch(name: str, count: int) -> Any:
    if name.startswith("unreached") and is_first(name):
        return Verdict.UNREACHED
    return f"{name} with {count}" if name.startswith(("ok", "flaky", "unreached")) else None


class Works(DueWork):
    def find_due(self, until: datetime) -> Iterator[Due]:
        yield from ()

    def lease_of(self, args: Sequence[Any]) -> str:
        return leases.name(str(args[0]), None)

    @property
    def batch_function(self) -> Callable[[Sequence[DueItem]], Sequence[Any]]:
        return self.touch_many

    def touch_many(self, items: Sequence[DueItem]) -> list[Any]:
        names = [item.args[0] for item in items]
        record_call("many", *names)
        for name in names:
            kind = name.partition("-")[0]
            if kind == "die" and is_first("die"):
                os.kill(os.getpid(), signal.SIGKILL)
            if kind == "slow" and is_first("slow"):
                hold("never")
            if kind == "whole":
                raise RuntimeError("nothing at all was done")
            if kind == "short":
                return [None]
            if kind == "moment" and is_first("moment"):
                raise NotYetDue(seconds(0.05))
            if kind == "flaky" and not is_healthy():
                raise AutoReconnect("connection closed")
        return [outcome_in_batch(name, len(names)) for name in names]

    def touch(self, name: str, attempt: int) -> str:
        record_call("one", name, str(attempt))
        kind = name.partition("-")[0]
        if kind == "poison":
            raise Poison("it never", " works")
        if kind == "flaky" and not is_healthy():
            record_call("outage", name, str(touch.request.get(REPEATS_HEADER, 0)))
            raise AutoReconnect("connection closed")
        if kind == "memory":
            raise MemoryError
        if kind == "permanent":
            raise PermanentError("this is none")
        if kind == "late" and not is_healthy():
            raise NotYetDue(seconds(1))
        if kind == "early" and is_first(name):
            raise NotYetDue(seconds(1))
        if kind == "hold":
            hold()
        if kind == "holdshort":
            hold("goshort")
        return f"{name} by itself"

    def record_executed(self, items: Sequence[DueItem], results: Sequence[Any], *, took: timedelta) -> None:
        if len(items) > 1 and any(item.args[0].startswith("unrecorded") for item in items):
            raise RuntimeError("the batch cannot be recorded")

    def postpone(self, items: Sequence[DueItem], *, wait: timedelta) -> None:
        record_call("postpone", *[item.args[0] for item in items])

    def give_up(self, item: DueItem, *, error: str) -> None:
        record_call("give up", item.args[0], error)


def works() -> Works:
    return Works(leases=leases_of(QUEUE), clock=server_now, limits=Limits.from_settings())


@item_task(queue=QUEUE, work=works, retry=RetryPolicy(max_attempts=2, base=seconds(1)))
def touch(name: str) -> str:
    return works().touch(name, touch.request.retries + 1)
