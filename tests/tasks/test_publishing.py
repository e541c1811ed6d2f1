"""Messages that are published in bulk equal those of Celery."""

from __future__ import annotations

import json
import os
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import wraps
from itertools import count, cycle
from multiprocessing import get_context
from pkgutil import resolve_name
from typing import Any

import pytest
import redis
from celery import signals
from celery._state import _task_stack
from celery.app.task import Context
from kombu import Connection

from queue_manager.batching.publish import PLACEHOLDER, _placeholder, publish
from queue_manager.broker.channel import Channel
from queue_manager.core.clock import minutes
from queue_manager.core.settings import settings
from queue_manager.items import DueItem
from tasks import app
from tasks.review_requests import create_review_request
from tasks.support_snooze import scan_expired_snoozes, unsnooze_room
from tests.real_servers import Servers

AT = datetime(2026, 1, 31, 9, 30, 0, 250_000, tzinfo=UTC)
ROOMS = [
    DueItem(task_id="mark-1", args=("65b9f0a2c3d4e5f6a7b8c9d0", "2026-01-31T09:25:00.000Z")),
    DueItem(task_id="mark-2", args=("65b9f0a2c3d4e5f6a7b8c9d1", "2026-01-31T09:30:00.250Z"), eta=AT),
    DueItem(task_id="mark-ß", args=("é\u2028 \"'\\", None), eta=AT + minutes(1)),
]
AGENCIES = [
    DueItem(task_id=f"agency-{number}", args=("a", [f"s{one}" for one in range(100 * number)], None, "2026-01-01"))
    for number in range(3)
]
LACKING = (
    *("shadow", "eta", "expires", "group", "group_index", "parent_id", "timelimit"),
    *("replaced_task_nesting", "stamped_headers", "stamps"),
)
"""Headers that a message of ours may lack."""
EMBEDDED = ("callbacks", "errbacks", "chain", "chord")


@pytest.fixture
def client(clean: Servers) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(clean.valkey.url) as client:
        yield client


@pytest.fixture(autouse=True)
def _one_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages that are compared have the same time of dispatch in their headers."""
    monkeypatch.setattr("queue_manager.batching.publish.estimated_now", lambda: AT)


@pytest.mark.parametrize("name", ["id", "due_at", "Due-At2"])
def test_a_placeholder_may_have_any_name(name: str) -> None:
    assert PLACEHOLDER.findall(json.dumps([_placeholder(name), "other"])) == [name]


def sent(client: redis.Redis, task: Any, items: list[DueItem]) -> list[dict[str, Any]]:
    """Send items; return what the messages say, in the order in which they are taken."""
    with app.producer_pool.acquire(block=True) as producer:
        publish(task, items, producer)
    messages = [json.loads(raw) for raw in reversed(client.lrange(task.queue_name, 0, -1))]
    client.delete(task.queue_name)
    tags = {message["properties"].pop("delivery_tag") for message in messages}
    assert len(tags) == len(items)
    return [as_read(message) for message in messages]


def as_read(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message with what Celery's worker assumes where a header, a property or a part of the body is missing.

    The properties that repeat headers, which no worker reads, are compared with these. A task without a result needs no
    address for it.
    """
    headers = {**{name: getattr(Context, name) for name in LACKING}, **message["headers"]}
    properties = {"body_encoding": None, **message["properties"]}
    for name in ("argsrepr", "kwargsrepr"):
        assert properties.pop(name, headers[name]) == headers[name]
    if headers["ignore_result"]:
        assert properties.pop("correlation_id", headers["id"]) == headers["id"]
        properties.pop("reply_to", None)
    if properties["body_encoding"] is None:
        args, kwargs, embed = json.loads(message["body"])
        message = {**message, "body": [args, kwargs, {name: embed.get(name) for name in EMBEDDED} | embed]}
    headers["timelimit"], headers["stamps"] = headers["timelimit"] or [None, None], headers["stamps"] or {}
    return {**message, "headers": headers, "properties": properties}


def sent_by_celery(client: redis.Redis, task: Any, items: list[DueItem]) -> list[dict[str, Any]]:
    heard = []

    def hear(headers: dict[str, Any], **_: Any) -> None:
        heard.append(headers["id"])

    signals.before_task_publish.connect(hear)
    try:
        return sent(client, task, items)
    finally:
        signals.before_task_publish.disconnect(hear)
        assert heard == [item.task_id for item in items]


@contextmanager
def within_a_scan() -> Iterator[None]:
    scan_expired_snoozes.push_request(id="scan-1", root_id="root-1", called_directly=False, delivery_info={})
    _task_stack.push(scan_expired_snoozes)
    try:
        yield
    finally:
        _task_stack.pop()
        scan_expired_snoozes.pop_request()


@pytest.mark.parametrize(
    ("task", "items"),
    [(unsnooze_room, ROOMS), (unsnooze_room, ROOMS[::-1]), (create_review_request, AGENCIES)],
    ids=["rooms", "rooms that are due later", "agencies"],
)
@pytest.mark.parametrize("is_in_a_scan", [False, True])
def test_bulk_messages_equal_those_of_celery(
    client: redis.Redis, task: Any, items: list[DueItem], is_in_a_scan: bool
) -> None:
    if not is_in_a_scan:
        assert sent(client, task, items) == sent_by_celery(client, task, items)
        return
    with within_a_scan():
        ours, of_celery = sent(client, task, items), sent_by_celery(client, task, items)
    assert ours == of_celery
    assert {(one["headers"]["root_id"], one["headers"]["parent_id"]) for one in ours} == {("root-1", "scan-1")}


def test_bulk_messages_that_cannot_be_copied_are_sent_by_celery(
    client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert app.amqp.send_task_message  # is made by the settings as they are, if nobody has sent before
    monkeypatch.setitem(app.conf, "task_compression", "gzip")
    monkeypatch.setattr(app.amqp, "send_task_message", app.amqp._create_task_sender())
    messages = sent(client, unsnooze_room, ROOMS)
    assert [message["headers"]["id"] for message in messages] == [item.task_id for item in ROOMS]
    assert messages == sent_by_celery(client, unsnooze_room, ROOMS)
    assert messages[0]["headers"]["compression"] == "application/x-gzip"


def test_many_messages_are_pushed_in_few_commands(client: redis.Redis) -> None:
    items = [DueItem(task_id=f"mark-{number}", args=(f"{number:024x}", None)) for number in range(1_200)]
    client.config_resetstat()
    assert len(sent(client, unsnooze_room, items)) == len(items)
    assert client.info("commandstats")["cmdstat_lpush"]["calls"] == 3


def test_messages_equal_those_of_the_stock_transport_except_for_base64(client: redis.Redis, clean: Servers) -> None:
    with Connection(clean.valkey.url) as connection, app.amqp.Producer(connection) as producer:
        publish(unsnooze_room, ROOMS, producer)
    messages = [json.loads(raw) for raw in reversed(client.lrange("support-snooze", 0, -1))]
    client.delete("support-snooze")
    for message in messages:
        del message["properties"]["delivery_tag"]
        assert message["properties"]["body_encoding"] == "base64"
        message["properties"]["body_encoding"], message["body"] = None, b64decode(message["body"]).decode()
    assert list(map(as_read, messages)) == sent(client, unsnooze_room, ROOMS)


def test_a_copied_message_is_two_fifths_shorter_than_that_of_celery(client: redis.Redis) -> None:
    with app.producer_pool.acquire(block=True) as producer:
        publish(unsnooze_room, ROOMS[:1], producer)
        ours = client.lpop("support-snooze")
        unsnooze_room.apply_async(ROOMS[0].args, task_id=ROOMS[0].task_id, producer=producer)
    assert isinstance(ours, bytes)
    stock = client.lpop("support-snooze")
    assert isinstance(stock, bytes)
    assert len(ours) < len(stock) * 0.6


def test_bulk_publish_sends_each_message_separately_without_batching(
    client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = settings().model_copy(update={"qm_batching": False})
    monkeypatch.setattr("queue_manager.batching.publish.settings", lambda: chosen)
    client.config_resetstat()
    messages = sent(client, unsnooze_room, ROOMS)
    assert client.info("commandstats")["cmdstat_lpush"]["calls"] == len(ROOMS)
    assert messages == sent_by_celery(client, unsnooze_room, ROOMS)


# Sent one by one


@pytest.fixture
def fresh(client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> redis.Redis:
    """The client, while nothing has been sent yet."""
    monkeypatch.setattr("queue_manager.batching.publish._originals", {})
    return client


@pytest.fixture
def by_celery(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ids of the tasks whose messages Celery makes."""
    ids = []
    create = app.amqp.create_task_message

    def record(id: str, *args: Any, **options: Any) -> Any:
        ids.append(id)
        return create(id, *args, **options)

    monkeypatch.setattr(app.amqp, "create_task_message", record)
    return ids


def delayed(client: redis.Redis, *args: Any) -> dict[str, Any]:
    """Call the task; return what its message says, with its id only where every message has one."""
    result = unsnooze_room.delay(*args)
    assert result.ignored
    (raw,) = client.lrange("support-snooze", 0, -1)
    client.delete("support-snooze")
    message = json.loads(raw)
    assert message["headers"]["id"] == result.id
    assert message["properties"].pop("delivery_tag")
    read: dict[str, Any] = json.loads(json.dumps(as_read(message)).replace(result.id, "ID"))
    return read


def delayed_by_celery(client: redis.Redis, *args: Any) -> dict[str, Any]:
    with_listener: list[Any] = []

    def hear(**_: Any) -> None:
        with_listener.append(1)

    signals.before_task_publish.connect(hear)
    try:
        return delayed(client, *args)
    finally:
        signals.before_task_publish.disconnect(hear)
        assert with_listener


@pytest.mark.parametrize(
    "args",
    [("65b9f0a2c3d4e5f6a7b8c9d0",), ("a", "2026-01-31T09:25:00.000Z"), ("é\u2028 \"'\\ %s", None), (5, 0.5), (True,)],
    ids=["an id", "with its time", "odd characters", "numbers", "a boolean"],
)
def test_delay_sends_the_same_message_as_celery(
    fresh: redis.Redis, by_celery: list[str], args: tuple[Any, ...]
) -> None:
    expected = delayed_by_celery(fresh, *args)
    expected["headers"]["argsrepr"] = repr(args)  # Celery shows some characters in another way
    del by_celery[:]
    assert delayed(fresh, *args) == expected
    assert len(by_celery) == 1  # from which the others are copied
    assert delayed(fresh, *args) == expected
    assert len(by_celery) == 1


def test_copy_has_its_own_arguments_and_id(fresh: redis.Redis) -> None:
    one, other = delayed(fresh, "a"), delayed(fresh, "b", None)
    assert [message["body"][0] for message in (one, other)] == [["a"], ["b", None]]
    assert [message["headers"]["argsrepr"] for message in (one, other)] == ["('a',)", "('b', None)"]
    first, second = unsnooze_room.delay("a"), unsnooze_room.delay("a")
    assert first.id != second.id


@pytest.mark.parametrize(
    ("args", "options"),
    [
        (("a",), {"countdown": 60}),
        (("a",), {"task_id": "mine"}),
        (("a",), {"headers": {"x": "y"}}),
        (("a",), {"priority": 3}),
        ((), {"kwargs": {"room_id": "a"}}),
        ((AT,), {}),
        ((["a"],), {}),
    ],
    ids=["countdown", "id", "header", "priority", "keywords", "a date", "a list"],
)
def test_celery_publishes_calls_with_options_or_complex_arguments(
    fresh: redis.Redis, by_celery: list[str], args: tuple[Any, ...], options: dict[str, Any]
) -> None:
    unsnooze_room.delay("a")
    del by_celery[:]
    result = unsnooze_room.apply_async(args, **options)
    assert by_celery == [result.id]


def test_celery_publishes_calls_made_within_a_task(fresh: redis.Redis, by_celery: list[str]) -> None:
    unsnooze_room.delay("a")
    fresh.delete("support-snooze")
    del by_celery[:]
    with within_a_scan():
        message = delayed(fresh, "a")
    assert len(by_celery) == 1
    assert (message["headers"]["root_id"], message["headers"]["parent_id"]) == ("root-1", "scan-1")


def test_wrong_arguments_are_refused_as_by_celery(fresh: redis.Redis) -> None:
    for _ in range(2):
        unsnooze_room.delay("a")  # the second is the first one that is not sent by Celery
    for args in (("a", "b", "c"), ("a", "b", "c", "d")):
        with pytest.raises(TypeError, match="positional argument"):
            unsnooze_room.delay(*args)
    assert fresh.llen("support-snooze") == 2


@pytest.mark.parametrize(
    "args",
    [{"room_id": "a"}, {"a"}, "ab", b"a", (one for one in "a")],
    ids=["a dict", "a set", "text", "bytes", "others"],
)
def test_arguments_that_are_not_a_list_are_refused_as_by_celery(fresh: redis.Redis, args: Any) -> None:
    unsnooze_room.delay("a")
    with pytest.raises(TypeError):
        unsnooze_room.apply_async(args)
    assert fresh.llen("support-snooze") == 1


def test_router_is_called_for_each_message(
    fresh: redis.Redis, by_celery: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    unsnooze_room.delay("connects")
    del by_celery[:]
    monkeypatch.setattr("queue_manager.batching.publish._originals", {})
    monkeypatch.setattr(app.amqp.router, "routes", [lambda name, args, *_, **__: {"queue": f"queue-{args[0]}"}])
    for room in ("a", "b", "a", "b"):
        unsnooze_room.delay(room)
    names: Any = fresh.keys("queue-*")
    assert {name.decode(): fresh.llen(name) for name in names} == {"queue-a": 2, "queue-b": 2}
    assert len(by_celery) == 3  # one is copied from; with another route, Celery makes each
    fresh.delete("queue-a", "queue-b")


def test_router_that_alternates_between_queues_is_followed(fresh: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    turns = cycle(("queue-a", "queue-b"))
    monkeypatch.setattr(app.amqp.router, "routes", [lambda *_, **__: {"queue": next(turns)}])
    for _ in range(6):
        unsnooze_room.delay("a")
    assert sum(fresh.llen(name) for name in ("queue-a", "queue-b")) == 6
    for name in ("queue-a", "queue-b"):
        assert {json.loads(raw)["properties"]["delivery_info"]["routing_key"] for raw in fresh.lrange(name, 0, -1)} == {
            name
        }
    fresh.delete("queue-a", "queue-b")


@pytest.mark.parametrize("owner", ["celery.app.task.Task.apply_async", "celery.app.base.Celery.send_task"])
def test_celery_publishes_if_instrumentation_has_wrapped_its_functions(
    fresh: redis.Redis, by_celery: list[str], monkeypatch: pytest.MonkeyPatch, owner: str
) -> None:
    for _ in range(2):
        unsnooze_room.delay("a")
    module, kind, name = owner.rsplit(".", 2)
    original, seen = getattr(resolve_name(f"{module}:{kind}"), name), []

    @wraps(original)
    def wrapped(*args: Any, **options: Any) -> Any:
        seen.append(1)
        return original(*args, **options)

    monkeypatch.setattr(owner, wrapped)
    del by_celery[:]
    for _ in range(2):
        unsnooze_room.delay("a")
    assert (len(seen), len(by_celery)) == (2, 2)


def test_header_that_is_not_from_celery_is_not_copied(fresh: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    unsnooze_room.delay("connects")
    fresh.delete("support-snooze")
    monkeypatch.setattr("queue_manager.batching.publish._originals", {})
    create, traces = app.amqp.create_task_message, count()

    def traced(*args: Any, **options: Any) -> Any:
        message = create(*args, **options)
        message.headers["trace"] = next(traces)
        return message

    monkeypatch.setattr(app.amqp, "create_task_message", traced)
    for _ in range(3):
        unsnooze_room.delay("a")
    found = [json.loads(raw)["headers"]["trace"] for raw in fresh.lrange("support-snooze", 0, -1)]
    assert len(set(found)) == 3


def test_forked_process_is_the_origin_of_its_messages(fresh: redis.Redis) -> None:
    def send() -> None:
        unsnooze_room.delay("connects")
        unsnooze_room.delay("a")

    send()
    child = get_context("fork").Process(target=send)
    child.start()
    child.join(30)
    origins = [json.loads(raw)["headers"]["origin"] for raw in fresh.lrange("support-snooze", 0, -1)]
    senders = [child.pid, child.pid, os.getpid(), os.getpid()]
    assert [one.partition("@")[0] for one in origins] == [f"gen{pid}" for pid in senders]


def test_shadow_name_is_computed_for_each_message(
    fresh: redis.Redis, by_celery: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = type(app.tasks[unsnooze_room.name])
    monkeypatch.setattr(kind, "shadow_name", lambda self, args, *_: f"open {args[0]}")
    ids = [unsnooze_room.delay(room).id for room in ("a", "b", "c")]
    assert by_celery == ids
    shown = [json.loads(raw)["headers"]["shadow"] for raw in fresh.lrange("support-snooze", 0, -1)]
    assert shown == ["open c", "open b", "open a"]


def test_celery_publishes_while_the_connection_is_closed(
    fresh: redis.Redis, by_celery: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Connection, "connected", False)
    ids = [unsnooze_room.delay("a").id for _ in range(2)]
    assert by_celery == ids
    assert fresh.llen("support-snooze") == 2


@pytest.mark.parametrize("attribute", [{"expires": 60}, {"ignore_result": False}, {"compression": "gzip"}])
def test_celery_publishes_tasks_whose_options_cannot_be_copied(
    fresh: redis.Redis, by_celery: list[str], monkeypatch: pytest.MonkeyPatch, attribute: dict[str, Any]
) -> None:
    for name, value in attribute.items():
        monkeypatch.setattr(unsnooze_room, name, value, raising=False)
    monkeypatch.setattr(unsnooze_room, "_exec_options", None)  # which Celery keeps
    results = [unsnooze_room.delay("a") for _ in range(3)]
    assert {result.id for result in results} <= set(by_celery)
    assert fresh.llen("support-snooze") == 3


def test_celery_publishes_again_if_redis_did_not_confirm(
    fresh: redis.Redis, by_celery: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        unsnooze_room.delay("a")
    fresh.delete("support-snooze")
    del by_celery[:]
    put_many = Channel.put_many

    def lose_the_reply(self: Channel, *args: Any) -> None:
        put_many(self, *args)
        raise redis.ConnectionError("lost")

    monkeypatch.setattr(Channel, "put_many", lose_the_reply)
    result = unsnooze_room.delay("b")
    assert by_celery == [result.id]
    ids = [json.loads(raw)["headers"]["id"] for raw in fresh.lrange("support-snooze", 0, -1)]
    assert ids == [result.id] * 2  # of which one has an effect


def test_celery_publishes_each_call_without_batching(
    fresh: redis.Redis, by_celery: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = settings().model_copy(update={"qm_batching": False})
    monkeypatch.setattr("queue_manager.batching.publish.settings", lambda: chosen)
    results = [unsnooze_room.delay("a") for _ in range(2)]
    assert by_celery == [result.id for result in results]
