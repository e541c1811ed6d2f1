"""A worker that executes one message per call: real messages and tracing, no waiting for countdowns."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import redis
from celery.app.trace import build_tracer

from tasks import app
from tests.broker.taking import body


@dataclass(frozen=True)
class Message:
    id: str
    task: str
    args: list[Any]
    kwargs: dict[str, Any]
    retries: int
    eta: datetime | None
    expires: str | None
    headers: dict[str, Any]


def waiting_messages(url: str, queue: str) -> list[Message]:
    """Return what waits in `queue`, first to be delivered first; it stays there."""
    with redis.Redis.from_url(url) as client:
        return [_decode(raw) for raw in reversed(client.lrange(queue, 0, -1))]


def take(url: str, queue: str) -> Message:
    """Take the next message from `queue`."""
    with redis.Redis.from_url(url) as client:
        raw = client.rpop(queue)
    assert raw is not None, f"no message waits in {queue}"
    return _decode(raw)


def run(message: Message) -> Any:
    """Run `message` as a worker would; return the task's result, or the exception of its failure or retry."""
    app.loader.import_default_modules()
    task = app.tasks[message.task]
    request = {
        **message.headers,
        "args": message.args,
        "kwargs": message.kwargs,
        "is_eager": False,
        "delivery_info": {},
    }
    outcome = build_tracer(task.name, task, app=app)(message.id, message.args, message.kwargs, request)
    return outcome.retval if outcome.info is None else outcome.info.retval


def _decode(raw: bytes) -> Message:
    message = json.loads(raw)
    headers = message["headers"]
    args, kwargs, _ = body(raw)
    return Message(
        id=headers["id"],
        task=headers["task"],
        args=args,
        kwargs=kwargs,
        retries=headers["retries"],
        eta=datetime.fromisoformat(headers["eta"]) if headers.get("eta") else None,
        expires=headers.get("expires"),
        headers=headers,
    )
