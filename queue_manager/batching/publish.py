"""Sending many items of one kind: one message each, made of the message of the first and pushed together.

Celery makes the first and the last, so each has whatever Celery, a router or a setting puts into it. Where a copy of
the first would not be the last, a program wants to hear of each message, or the transport is kombu's own, Celery
makes every one on its own. With QM_BATCHING=false each is also published on its own.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterator, Sequence
from copy import deepcopy
from json.encoder import encode_basestring_ascii as quoted
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from celery import signals
from kombu.transport import virtual
from kombu.utils.json import dumps, loads

from queue_manager.broker import bulk_publish
from queue_manager.core.settings import settings
from services.due_work import DueItem

if TYPE_CHECKING:
    from tasks.base import ItemTask

SIGNALS = (signals.before_task_publish, signals.after_task_publish, signals.task_sent)
EMBED = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}
NONCE = uuid4().hex
MARK = re.compile(f'"{NONCE}:([a-z]+)"')
ONE_RETRY = {"max_retries": 1, "interval_start": 0}
LONGEST_SHOWN = 1024  # characters of the arguments, as Celery's own
Message = dict[str, Any]
Captured = tuple[str, Message]
"""What Celery would have pushed on a list of Redis: its name, the message."""


def publish(task: ItemTask, items: Sequence[DueItem], producer: Any) -> None:
    """Send each item. Raises what kombu and redis-py raise: whether any was sent is uncertain then."""
    if not items:
        return
    if not settings().qm_batching:
        for item in items:
            _send(task, item, producer)
        return
    ends = [items[0], items[-1]]
    is_copied = isinstance(producer.channel, bulk_publish.Channel) and not _each_is_heard(task)
    captured = _captured(task, ends, producer) if is_copied else []
    if _can_be_copied(captured, ends):
        name, message = captured[0]
        producer.channel.put_many(name, _copies(message, items))
        return
    with producer.batch(len(items)):
        for item in items:
            _send(task, item, producer)


def _each_is_heard(task: ItemTask) -> bool:
    """Tell whether somebody hears of each message that is sent, or executes it here and now."""
    chosen = task.app.conf
    return any(one.receivers for one in SIGNALS) or chosen.task_send_sent_event or chosen.task_always_eager


def _captured(task: ItemTask, items: Sequence[DueItem], producer: Any) -> list[Captured]:
    captured: list[Captured]
    with producer.channel.capturing() as captured:
        for item in items:
            _send(task, item, producer)
    return captured


def _send(task: ItemTask, item: DueItem, producer: Any) -> None:
    # `retry` and the guessed representations would cost more than the message itself. Only AMQP needs it: there sending
    # shows that a pooled connection was lost. An item that is sent twice is done once.
    task.apply_async(
        item.args,
        task_id=item.token,
        eta=item.eta,
        producer=producer,
        retry=not isinstance(producer.channel, virtual.Channel),
        retry_policy=ONE_RETRY,
        argsrepr=_shown(item),
        kwargsrepr="{}",
        add_to_parent=False,
    )


def _shown(item: DueItem) -> str:
    return repr(item.args)[:LONGEST_SHOWN]


def _can_be_copied(captured: Sequence[Captured], items: Sequence[DueItem]) -> bool:
    """Tell whether the messages that Celery made of these items are copies of the first."""
    if len(captured) != len(items) or len({name for name, _ in captured}) != 1:
        return False
    messages = [loads(dumps(message)) for _, message in captured]
    copies = [loads(copy) for copy in _copies(messages[0], items)]
    for copy, message in zip(copies, messages, strict=True):
        copy["properties"]["delivery_tag"] = message["properties"]["delivery_tag"]
    return copies == messages


def _copies(message: Message, items: Sequence[DueItem]) -> Iterator[str]:
    """Give the message of each item, as JSON, made of that of the first."""
    one = deepcopy(message)
    headers, properties = one["headers"], one["properties"]
    if headers["root_id"] == headers["id"]:
        headers["root_id"] = _mark("token")
    headers["id"] = properties["correlation_id"] = _mark("token")
    headers["argsrepr"] = properties["argsrepr"] = _mark("shown")
    headers["eta"] = _mark("eta")
    properties["delivery_tag"] = _mark("tag")
    one["body"] = _mark("body")
    parts = MARK.split(dumps(one))  # every second one is the name of a mark
    for item in items:
        texts = {
            "token": quoted(item.token),
            "shown": quoted(_shown(item)),
            "eta": quoted(item.eta.isoformat()) if item.eta else "null",
            "tag": quoted(str(uuid4())),
            "body": quoted(b64encode(dumps([item.args, {}, EMBED]).encode()).decode()),
        }
        yield "".join([texts[part] if index % 2 else part for index, part in enumerate(parts)])


def _mark(name: str) -> str:
    return f"{NONCE}:{name}"
