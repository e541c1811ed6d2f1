"""Publishes items: messages are copies of one that Celery made, so they have what Celery, a router or a setting adds.

Many items of one kind are pushed together; Celery makes the first and the last message. Of items that are sent one by
one, by `.delay()`, Celery makes the first message of a process. A copy omits members with Celery's default value,
almost half of the message.

Celery makes every message if a copy would differ from it, if a signal receiver for publishing is installed, if the
transport is kombu's own, or with QM_BATCHING=false. Then each message is also published on its own.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from json.encoder import encode_basestring_ascii as quoted
from pathlib import Path
from types import FunctionType
from typing import Any
from uuid import uuid4
from weakref import WeakKeyDictionary

import celery
from celery import Celery, Task, signals
from kombu.exceptions import BatchPublishError, OperationalError
from kombu.transport import virtual
from kombu.utils.json import dumps, loads

from models.database import estimated_now
from queue_manager.batching.task import BatchedTask
from queue_manager.broker.channel import Channel
from queue_manager.core.clock import unix_ms
from queue_manager.core.redis_client import REDIS_OUTAGES
from queue_manager.core.settings import settings
from queue_manager.items import DueItem
from queue_manager.telemetry import tracing
from queue_manager.telemetry.latency import SENT_HEADER

PUBLISH_SIGNALS = (signals.before_task_publish, signals.after_task_publish, signals.task_sent)
DEFAULTS = {"timelimit": [None, None], "replaced_task_nesting": 0, "stamps": {}}
"""Headers that a message may lack, besides those that are `None`."""
REPEATED = ("argsrepr", "kwargsrepr")
"""Properties that are never read, because headers of the same names are."""
FOR_RESULTS = ("correlation_id", "reply_to")
"""Properties that a task without a result does not need."""
NONCE = uuid4().hex
PLACEHOLDER = re.compile(f'"{NONCE}:([^"]+)"')
ONE_RETRY = {"max_retries": 1, "interval_start": 0}
KNOWN_HEADERS = {
    *("lang", "task", "id", "shadow", "eta", "expires", "group", "group_index", "retries", "timelimit", "root_id"),
    *("parent_id", "argsrepr", "kwargsrepr", "origin", "ignore_result", "replaced_task_nesting", "stamped_headers"),
    "stamps",
}
"""Celery's own headers. A message with others, such as the trace of one call, must not be copied."""
CELERY = str(Path(celery.__file__).parent)
PLAIN = (str, int, float, bool, type(None))  # types of arguments that Celery sends unchanged
MAX_ARGS_REPR = 1024  # characters, as in Celery
UNCERTAIN = (OperationalError, BatchPublishError, *REDIS_OUTAGES)
"""Errors of `publish` after which the broker may have some of the messages, or all."""
KombuMessage = dict[str, Any]
MessageHeaders = dict[str, Any]
Captured = tuple[str, KombuMessage]
"""What Celery would push: the name of the list, and the message."""


def publish(task: BatchedTask, items: Sequence[DueItem], producer: Any) -> None:
    """Publish all items. Raises errors of kombu and redis-py: after `UNCERTAIN` ones some items may have been sent."""
    if not items:
        return
    with tracing.publishing(task.queue_name, count=len(items), attributes={"celery.task": task.name}):
        _publish(task, items, producer)


def _publish(task: BatchedTask, items: Sequence[DueItem], producer: Any) -> None:
    headers = {SENT_HEADER: unix_ms(estimated_now()), **tracing.message_headers()}
    if not settings().qm_batching:
        for item in items:
            _send(task, item, producer, headers)
        return
    ends = [items[0], items[-1]]
    is_copied = isinstance(producer.channel, Channel) and not _has_listeners(task)
    captured = _captured(task, ends, producer, headers) if is_copied else []
    if template := _template(captured, ends, has_eta=any(item.eta for item in items)):
        tag = uuid4().hex
        copies = (template.filled(one.task_id, one.args, f"{tag}-{at}", one.eta) for at, one in enumerate(items))
        producer.channel.put_many(template.list_name, copies)
        return
    with producer.batch(len(items)):
        for item in items:
            _send(task, item, producer, headers)


def is_json(args: Sequence[Any]) -> bool:
    """Return True if a message can have these arguments."""
    try:
        dumps(args)
    except Exception:  # such as a RecursionError, or one of `__json__`
        return False
    return True


def publish_copy(task: BatchedTask, args: Sequence[Any], task_id: str) -> bool:
    """Publish one item as a copy; return False if Celery must publish it.

    Raises the errors of redis-py; it is uncertain then whether it was sent.
    """
    app = task.app
    if not _may_be_copied(task, args) or app.current_worker_task or _has_listeners(task):
        return False
    route = app.amqp.router.route(dict(task._get_exec_options()), task.name, args, {}, task)
    with app.producer_or_acquire() as producer:
        # Without a connection, Celery opens one and retries as its settings say.
        if not producer.connection.connected or not isinstance(producer.channel, Channel):
            return False
        if task not in _originals:
            _originals[task] = route, _template_of_one(task, args, producer, route)
        first_route, template = _originals[task]
        if template is None or first_route != route:
            return False
        # The tag of a message is not read before it is delivered, so any text will do.
        producer.channel.put_many(template.list_name, [template.filled(task_id, args, task_id)])
        return True


def _may_be_copied(task: BatchedTask, args: Sequence[Any]) -> bool:
    """Return True if nothing but the settings, a router and a listener could change the message that Celery makes."""
    are_celerys = all(map(_is_celerys, (Task.apply_async, Celery.send_task)))  # which instrumentation replaces
    is_named_plainly = type(task).shadow_name is Task.shadow_name
    return are_celerys and is_named_plainly and settings().qm_batching and all(isinstance(one, PLAIN) for one in args)


def _is_celerys(function: Any) -> bool:
    return type(function) is FunctionType and function.__code__.co_filename.startswith(CELERY)


_originals = WeakKeyDictionary[BatchedTask, tuple[Any, "Template | None"]]()
"""By task, for single messages: the route of its first message in this process, and the template of that message.

`None`: a copy would differ from what Celery makes. A message with another route is left to Celery.
"""
os.register_at_fork(after_in_child=lambda: _originals.clear())  # a message names the process that sent it


def _template_of_one(task: BatchedTask, args: Sequence[Any], producer: Any, route: Any) -> Template | None:
    queue = route.get("queue")
    if getattr(queue, "exchange", None) is None or queue.exchange.type != "direct":
        return None
    item = DueItem(task_id=str(uuid4()), args=tuple(args))
    captured = _captured(task, [item], producer, {})
    if (template := _template(captured, [item], has_eta=False)) is None:
        return None
    ((_, message),) = captured
    headers, delivery = message["headers"], message["properties"]["delivery_info"]
    is_always_so = headers["ignore_result"] and headers["expires"] is None and headers.keys() <= KNOWN_HEADERS
    return template if is_always_so and delivery["routing_key"] == queue.routing_key else None


def _has_listeners(task: BatchedTask) -> bool:
    """Return True if a signal receiver or event must see each message, or tasks are executed eagerly."""
    chosen = task.app.conf
    return any(one.receivers for one in PUBLISH_SIGNALS) or chosen.task_send_sent_event or chosen.task_always_eager


def _captured(task: BatchedTask, items: Sequence[DueItem], producer: Any, headers: MessageHeaders) -> list[Captured]:
    captured: list[Captured]
    with producer.channel.capturing() as captured:
        for item in items:
            _send(task, item, producer, headers)
    return captured


def _send(task: BatchedTask, item: DueItem, producer: Any, headers: MessageHeaders) -> None:
    # `retry` and Celery's representations of the arguments would cost more than the message itself. Only AMQP needs
    # `retry`: a lost connection of the pool is noticed when a message is sent. An item that is sent twice is done once.
    task.apply_async(
        item.args,
        task_id=item.task_id,
        eta=item.eta,
        producer=producer,
        retry=not isinstance(producer.channel, virtual.Channel),
        retry_policy=ONE_RETRY,
        argsrepr=_args_repr(item.args),
        kwargsrepr="{}",
        add_to_parent=False,
        headers=headers,
    )


def _args_json(args: Sequence[Any]) -> str:
    return f"[{','.join([quoted(one) if type(one) is str else dumps(one) for one in args])}]"


def _args_repr(args: Sequence[Any]) -> str:
    return repr(args)[:MAX_ARGS_REPR]


def _template(captured: Sequence[Captured], items: Sequence[DueItem], *, has_eta: bool) -> Template | None:
    """Return the template of the first of the messages that Celery made of these items; `None` if copies differ."""
    if len(captured) != len(items) or len({name for name, _ in captured}) != 1:
        return None
    list_name, messages = captured[0][0], [loads(dumps(message)) for _, message in captured]
    if any("root_id" not in one["headers"] for one in messages):  # `task_protocol` is 1
        return None
    template = Template.of(list_name, messages[0], has_eta=has_eta)
    copies = [loads(template.filled(item.task_id, item.args, "", item.eta)) for item in items]
    try:
        are_equal = [_content(copy) for copy in copies] == [_content(message) for message in messages]
    except ValueError:  # the body is compressed, or not JSON
        return None
    return template if are_equal else None


def _content(message: KombuMessage) -> KombuMessage:
    """Return a message in a form to compare: its body decoded, without default values and without its tag."""
    short = _shortened(message)
    del short["properties"]["delivery_tag"]
    args, kwargs, embed = loads(short["body"])
    return {**short, "body": [args, kwargs, _without_nothing(embed)]}


def _shortened(message: KombuMessage) -> KombuMessage:
    """Return a message without the headers and properties that have Celery's default values."""
    headers, properties = _without_nothing(message["headers"]), _without_nothing(message["properties"])
    needless = {*REPEATED, *(FOR_RESULTS if headers.get("ignore_result") else ())}
    return {
        **message,
        "headers": {name: value for name, value in headers.items() if value != DEFAULTS.get(name)},
        "properties": {name: value for name, value in properties.items() if name not in needless},
    }


def _without_nothing(members: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in members.items() if value is not None}


@dataclass(frozen=True)
class Template:
    """A message as JSON, with placeholders for what differs between two items of a task."""

    list_name: str
    """The list that Celery would push it on."""
    text: str
    places: Sequence[str]
    """The names of the placeholders, in their order in the text."""

    @classmethod
    def of(cls, list_name: str, message: KombuMessage, *, has_eta: bool) -> Template:
        """Return the template of a message; without `has_eta` its copies have the ETA of the message."""
        one = _shortened(message)
        headers, properties = one["headers"], one["properties"]
        if headers["root_id"] == headers["id"]:
            headers["root_id"] = _placeholder("id")
        headers["id"] = _placeholder("id")
        if "correlation_id" in properties:
            properties["correlation_id"] = _placeholder("id")
        headers["argsrepr"] = _placeholder("shown")
        if has_eta:
            headers["eta"] = _placeholder("eta")
        properties["delivery_tag"] = _placeholder("tag")
        one["body"] = _placeholder("body")
        text = dumps(one, separators=(",", ":"))
        return cls(list_name, PLACEHOLDER.sub("%s", text.replace("%", "%%")), PLACEHOLDER.findall(text))

    def filled(self, task_id: str, args: Sequence[Any], tag: str, eta: datetime | None = None) -> str:
        """Return the message of an item."""
        texts = {
            "id": quoted(task_id),
            "shown": quoted(_args_repr(args)),
            "eta": quoted(eta.isoformat()) if eta else "null",
            "tag": quoted(tag),
            "body": quoted(f"[{_args_json(args)},{{}},{{}}]"),
        }
        return self.text % tuple([texts[name] for name in self.places])


def _placeholder(name: str) -> str:
    return f"{NONCE}:{name}"
