"""An event is published as python-socketio's own emitter publishes it, and a failure is seen."""

from __future__ import annotations

import json
from typing import Any

import pytest
import redis
import socketio

from dev.ports import free_port
from services.realtime import EmitFailed, RedisEvents
from tests.real_servers import Servers


def test_events_are_those_of_python_socketio(clean: Servers) -> None:
    url, data = clean.valkey.url, {"room_id": "1", "text": "é \u2028"}
    with redis.Redis.from_url(url) as client, client.pubsub(ignore_subscribe_messages=True) as pubsub:
        pubsub.subscribe("events")
        pubsub.get_message(timeout=5)  # subscribed
        socketio.RedisManager(url, channel="events", write_only=True).emit("updated", data, room="support-1")
        RedisEvents(url, channel="events").emit("updated", data, room="support-1")
        theirs, ours = (message_of(pubsub) for _ in range(2))
    assert len({theirs.pop("host_id"), ours.pop("host_id")}) == 2
    assert ours == theirs


def message_of(pubsub: redis.client.PubSub) -> dict[str, Any]:
    message = pubsub.get_message(timeout=5)
    assert message is not None
    read: dict[str, Any] = json.loads(message["data"])
    return read


def test_an_event_that_redis_does_not_take_is_an_error_without_a_password() -> None:
    events = RedisEvents(f"redis://:s3cret@127.0.0.1:{free_port()}/0", channel="events")
    with pytest.raises(EmitFailed) as error:
        events.emit("updated", {}, room="support-1")
    assert "s3cret" not in str(error.value)
