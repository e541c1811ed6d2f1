"""Task events that are sent in bulk equal those of Celery on the wire."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pytest
from celery.events.dispatcher import EventDispatcher
from kombu.asynchronous import Hub, set_event_loop
from kombu.utils.json import loads

from queue_manager.batching.events import EVENT_BATCH_SIZE, Dispatcher, Events
from queue_manager.core.errors import ConfigurationError
from tasks import app

SAID = {"uuid": "an id", "name": 'päth\n"quoted"\ud800', "retries": 3, "runtime": 0.25, "eta": None, "is": True}
EVENTS: list[tuple[str, dict[str, Any]]] = [
    ("task-received", {**SAID, "args": "('x',)", "parts": [1, {"deep": None}]}),
    ("task-started", {"uuid": "an id"}),
    ("task-succeeded", {"uuid": "an id", "result": "None", "runtime": 1e-9}),
    ("task-custom", {"huge": 2**80, "endless": math.inf}),
]


class Producer:
    """Takes what is published, and writes it as kombu does."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, Any]] = []
        self.options: list[dict[str, Any]] = []
        self.error: Exception | None = None

    def publish(self, body: Any, *, routing_key: str, **options: Any) -> None:
        if self.error:
            raise self.error
        self.options.append({name: options[name] for name in ("exchange", "declare", "headers", "delivery_mode")})
        if "content_type" in options:
            assert (options["content_type"], options["content_encoding"]) == ("application/json", "utf-8")
            self.sent.append((routing_key, loads(body)))
        else:
            self.sent.append((routing_key, body))


def dispatcher(kind: type[EventDispatcher], **options: Any) -> tuple[Any, Producer]:
    with app.connection_for_write() as connection:
        one = kind(connection, "worker@here", app=app, buffer_group={"task"}, **options)
    producer = Producer()
    one.producer = producer
    return one, producer


@dataclass
class Consumer:
    """What a dispatcher knows of the worker's consumer."""

    hub: Hub

    def on_send_event_buffered(self) -> None:
        """Ours orders flushes itself."""


@pytest.fixture
def hub() -> Iterator[Hub]:
    with closing(Hub()) as hub:
        yield hub


def without_moments(event: dict[str, Any]) -> dict[str, Any]:
    assert isinstance(event.pop("timestamp"), float)
    assert isinstance(event.pop("clock"), int)
    return event


def test_the_application_uses_our_event_dispatcher() -> None:
    assert isinstance(app.events, Events)
    assert issubclass(app.events.Dispatcher, Dispatcher)


def test_events_equal_those_of_celery() -> None:
    told = []
    for kind in (EventDispatcher, Dispatcher):
        one, producer = dispatcher(kind)
        for type, fields in EVENTS:
            one.send(type, **fields)
        assert producer.sent == []
        one.flush()
        [(key, events)] = producer.sent
        assert key == "task.multi"
        told.append(([without_moments(dict(event)) for event in events], producer.options))
    assert told[0] == told[1]
    assert [event["type"] for event in told[1][0]] == [type for type, _ in EVENTS]


@pytest.mark.parametrize("groups", [[], ["task"], ["worker"]])
@pytest.mark.parametrize("buffered", [{"task"}, set[str]()])
@pytest.mark.parametrize(("type", "fields"), EVENTS)
def test_events_sent_in_bulk_equal_single_ones(
    type: str, fields: dict[str, Any], buffered: set[str], groups: list[str]
) -> None:
    told = []
    for sends_all in (False, True):
        one, producer = dispatcher(Dispatcher, groups=groups)
        one.buffer_group = buffered
        each = [{**fields, "uuid": f"id-{number}"} for number in range(3)]
        if sends_all:
            one.send_all(type, each)
        else:
            for these in each:
                one.send(type, **these)
        one.flush()
        told.append(
            [
                (key, [without_moments(dict(event)) for event in (events if isinstance(events, list) else [events])])
                for key, events in producer.sent
            ]
        )
    assert told[0] == told[1]
    assert bool(told[0]) == (groups != ["worker"])


def test_options_of_celery_and_text_that_looks_like_json_do_not_change_an_event() -> None:
    one, producer = dispatcher(Dispatcher)
    one.send("task-started", blind=True, retry=True, retry_policy={}, uuid="an id", timestamp=1.5, **{'"odd\\': None})
    one.flush()
    [(_, [event])] = producer.sent
    assert event.pop("timestamp") == 1.5
    assert without_moments({**event, "timestamp": 1.5}).keys() == {
        "type",
        "uuid",
        '"odd\\',
        "hostname",
        "utcoffset",
        "pid",
    }


def test_other_serializers_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="event_serializer: must be json, not 'yaml'"):
        dispatcher(Dispatcher, serializer="yaml")


def test_each_event_has_a_newer_clock_and_time() -> None:
    one, producer = dispatcher(Dispatcher)
    for _ in range(3):
        one.send("task-started", uuid="an id")
    one.flush()
    events = producer.sent[0][1]
    assert [event["clock"] - events[0]["clock"] for event in events] == [0, 1, 2]
    assert events[0]["timestamp"] <= events[2]["timestamp"]


def test_worker_events_are_sent_immediately() -> None:
    one, producer = dispatcher(Dispatcher)
    one.send("worker-heartbeat", freq=2.0)
    [(key, event)] = producer.sent
    assert (key, event["freq"]) == ("worker.heartbeat", 2.0)
    one.flush()
    assert len(producer.sent) == 1


def test_flush_is_scheduled_once_for_all_buffered_events(hub: Hub) -> None:
    one, producer = dispatcher(Dispatcher, on_send_buffered=Consumer(hub).on_send_event_buffered)
    for _ in range(2):
        for _ in range(10):
            one.send("task-started", uuid="an id")
        [scheduled] = hub.timer.queue
        scheduled.entry()
        hub.timer.clear()
    assert [len(events) for _, events in producer.sent] == [10, 10]


def test_flush_is_scheduled_after_the_connection_was_lost(hub: Hub) -> None:
    set_event_loop(hub)
    hub.reset()  # Celery does it then
    one, producer = dispatcher(Dispatcher, on_send_buffered=Consumer(hub).on_send_event_buffered)
    one.send("task-started", uuid="an id")
    [scheduled] = hub.timer.queue
    scheduled.entry()
    assert len(producer.sent) == 1


def test_events_beyond_the_limit_of_a_message_are_sent_in_several(hub: Hub) -> None:
    one, producer = dispatcher(Dispatcher, on_send_buffered=Consumer(hub).on_send_event_buffered)
    for _ in range(2 * EVENT_BATCH_SIZE + 1):
        one.send("task-started", uuid="an id")
    one.send_all("task-started", [{"uuid": "an id"} for _ in range(2 * EVENT_BATCH_SIZE)])
    one.flush()
    assert [len(events) for _, events in producer.sent] == [EVENT_BATCH_SIZE] * 4 + [1]


def test_unwanted_events_are_not_buffered() -> None:
    one, producer = dispatcher(Dispatcher, groups=["worker"])
    one.send("task-started", uuid="an id")
    one.groups.clear()
    one.disable()
    one.send("task-started", uuid="an id")
    one.enable()
    one.producer = producer
    one.flush()
    assert producer.sent == []


def test_events_that_wait_for_a_flush_survive_a_lost_connection() -> None:
    one, _ = dispatcher(Dispatcher)
    one.send("task-started", uuid="first")
    one.close()
    after, later = dispatcher(Dispatcher)
    after.extend_buffer(one)
    after.flush()
    after.send("task-started", uuid="second")
    after.flush()
    assert [[event["uuid"] for event in events] for _, events in later.sent] == [["first"], ["second"]]


@pytest.mark.parametrize("is_kept", [True, False])
def test_events_that_cannot_be_published_stay_buffered_if_configured(is_kept: bool) -> None:
    one, producer = dispatcher(Dispatcher, buffer_while_offline=is_kept)
    one.send("task-started", uuid="first")
    producer.error = ConnectionError("away")
    if not is_kept:
        with pytest.raises(ConnectionError):
            one.flush()
        return
    one.flush()
    producer.error = None
    after, later = dispatcher(Dispatcher)
    after.extend_buffer(one)
    after.flush()
    [(_, [event])] = later.sent
    assert event["uuid"] == "first"
    assert json.dumps(event)
