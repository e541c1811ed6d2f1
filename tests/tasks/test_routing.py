"""The queue to which Celery sends a task that is called without one."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import redis
from celery import signature

from tasks import app
from tasks.support_snooze import unsnooze_room

CALLS: dict[str, Callable[[], Any]] = {
    "by name": lambda: app.send_task(unsnooze_room.name, ["a"]),
    "map": lambda: unsnooze_room.map(["a"]).apply_async(),
    "starmap": lambda: unsnooze_room.starmap([["a"]]).apply_async(),
    "chunks": lambda: unsnooze_room.chunks([["a"]], 10).apply_async(),
    "map from JSON": lambda: signature(json.loads(json.dumps(unsnooze_room.map(["a"]))), app=app).apply_async(),
}
"""A signature is read from JSON if another task is followed by it."""


@pytest.mark.parametrize("call", CALLS)
def test_task_is_sent_to_the_queue_of_its_system(call: str, broker: str) -> None:
    CALLS[call]()

    with redis.Redis.from_url(broker, decode_responses=True) as client:
        assert {key: client.llen(key) for key in client.scan_iter(_type="list")} == {"support-snooze": 1}


def test_unknown_task_is_routed_to_the_default_queue() -> None:
    assert app.amqp.router.route({}, "shop.charge")["queue"].name == "queue-manager"
