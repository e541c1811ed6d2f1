"""Publish many items of one kind: messages are copied from the first one, and pushed together.

Celery makes the first and the last message, so each has what Celery, a router or a setting adds. A copy leaves out what
is as Celery takes it to be anyway, almost half of the message. Celery makes every message if a copy of the first
would differ from the last, if a program listens to publishing, or if the transport is kombu's own. With
QM_BATCHING=false each message is also published on its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from json.encoder import encode_basestring_ascii as quoted
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from celery import signals
from kombu.transport import virtual
from kombu.utils.json import dumps, loads

from models.database import estimated_now
from queue_manager.broker.channel import Channel
from queue_manager.core.clock import unix_ms
from queue_manager.core.settings import settings
from queue_manager.telemetry import tracing
from queue_manager.telemetry.latency import SENT_HEADER
from services.due_work import DueItem

if TYPE_CHECKING:
    from tasks.item import ItemTask

PUBLISH_SIGNALS = (signals.before_task_publish, signals.after_task_publish, signals.task_sent)
DEFAULTS = {"timelimit": [None, None], "replaced_task_nesting": 0, "stamps": {}}
"""Headers that a message may lack, besides those that are `None`."""
REPEATED = ("argsrepr", "kwargsrepr")
"""Properties that nobody reads, because headers have the same."""
FOR_RESULTS = ("correlation_id", "reply_to")
"""Properties that a task without a result does not need."""
NONCE = uuid4().hex
PLACEHOLDER = re.compile(f'"{NONCE}:([a-z]+)"')
ONE_RETRY = {"max_retries": 1, "interval_start": 0}
MAX_ARGS_REPR = 1024  # characters of the arguments, as Celery's own
KombuMessage = dict[str, Any]
MessageHeaders = dict[str, Any]
Captured = tuple[str, KombuMessage]
"""What Celery would push: the name of the list, and the message."""


def publish(task: ItemTask, items: Sequence[DueItem], producer: Any) -> None:
    """Publish all items. Raises errors of kombu and redis-py; it is uncertain then which items were sent."""
    if not items:
        return
    with tracing.publishing(task.queue_name, count=len(items), attributes={"celery.task": task.name}):
        _publish(task, items, producer)


def _publish(task: ItemTask, items: Sequence[DueItem], producer: Any) -> None:
    headers = {SENT_HEADER: unix_ms(estimated_now()), **tracing.message_headers()}
    if not settings().qm_batching:
        for item in items:
            _send(task, item, producer, headers)
        return
    ends = [items[0], items[-1]]
    is_copied = isinstance(producer.channel, Channel) and not _has_listeners(task)
    captured = _captured(task, ends, producer, headers) if is_copied else []
    if _can_be_copied(captured, ends):
        name, message = captured[0]
        producer.channel.put_many(name, _copies(message, items))
        return
    with producer.batch(len(items)):
        for item in items:
            _send(task, item, producer, headers)


def _has_listeners(task: ItemTask) -> bool:
    """Return True if a program listens to each message, or tasks are executed eagerly."""
    chosen = task.app.conf
    return any(one.receivers for one in PUBLISH_SIGNALS) or chosen.task_send_sent_event or chosen.task_always_eager


def _captured(task: ItemTask, items: Sequence[DueItem], producer: Any, headers: MessageHeaders) -> list[Captured]:
    captured: list[Captured]
    with producer.channel.capturing() as captured:
        for item in items:
            _send(task, item, producer, headers)
    return captured


def _send(task: ItemTask, item: DueItem, producer: Any, headers: MessageHeaders) -> None:
    # `retry` and the guessed representations would cost more than the message itself. Only AMQP needs it: there sending
    # shows that a pooled connection was lost. An item that is sent twice is done once.
    task.apply_async(
        item.args,
        task_id=item.token,
        eta=item.eta,
        producer=producer,
        retry=not isinstance(producer.channel, virtual.Channel),
        retry_policy=ONE_RETRY,
        argsrepr=_args_repr(item),
        kwargsrepr="{}",
        add_to_parent=False,
        headers=headers,
    )


def _args_json(item: DueItem) -> str:
    return f"[{','.join([quoted(one) if type(one) is str else dumps(one) for one in item.args])}]"


def _args_repr(item: DueItem) -> str:
    return repr(item.args)[:MAX_ARGS_REPR]


def _can_be_copied(captured: Sequence[Captured], items: Sequence[DueItem]) -> bool:
    """Return True if the messages that Celery made of these items say what copies of the first say."""
    if len(captured) != len(items) or len({name for name, _ in captured}) != 1:
        return False
    messages = [loads(dumps(message)) for _, message in captured]
    copies = [loads(copy) for copy in _copies(messages[0], items)]
    try:
        return [_content(copy) for copy in copies] == [_content(message) for message in messages]
    except ValueError:  # the body is compressed, or not JSON
        return False


def _content(message: KombuMessage) -> KombuMessage:
    """Return what a message says: its parts and its body without what they may lack, and without its tag."""
    short = _shortened(message)
    del short["properties"]["delivery_tag"]
    args, kwargs, embed = loads(short["body"])
    return {**short, "body": [args, kwargs, _without_nothing(embed)]}


def _shortened(message: KombuMessage) -> KombuMessage:
    """Return a message without headers and properties that are as Celery takes them to be where they are missing."""
    headers, properties = _without_nothing(message["headers"]), _without_nothing(message["properties"])
    needless = {*REPEATED, *(FOR_RESULTS if headers.get("ignore_result") else ())}
    return {
        **message,
        "headers": {name: value for name, value in headers.items() if value != DEFAULTS.get(name)},
        "properties": {name: value for name, value in properties.items() if name not in needless},
    }


def _without_nothing(members: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in members.items() if value is not None}


def _copies(message: KombuMessage, items: Sequence[DueItem]) -> Iterator[str]:
    """Yield the message of each item as JSON, copied from the first."""
    one = _shortened(message)
    headers, properties = one["headers"], one["properties"]
    if headers["root_id"] == headers["id"]:
        headers["root_id"] = _placeholder("token")
    headers["id"] = _placeholder("token")
    if "correlation_id" in properties:
        properties["correlation_id"] = _placeholder("token")
    headers["argsrepr"] = _placeholder("shown")
    if any(item.eta for item in items):
        headers["eta"] = _placeholder("eta")
    properties["delivery_tag"] = _placeholder("tag")
    one["body"] = _placeholder("body")
    text, tag = dumps(one, separators=(",", ":")), uuid4().hex
    names, template = PLACEHOLDER.findall(text), PLACEHOLDER.sub("%s", text.replace("%", "%%"))
    for number, item in enumerate(items):
        texts = {
            "token": quoted(item.token),
            "shown": quoted(_args_repr(item)),
            "eta": quoted(item.eta.isoformat()) if item.eta else "null",
            "tag": f'"{tag}-{number}"',
            "body": quoted(f"[{_args_json(item)},{{}},{{}}]"),
        }
        yield template % tuple([texts[name] for name in names])


def _placeholder(name: str) -> str:
    return f"{NONCE}:{name}"
