"""Events are sent in the form of each adapter, many in one round trip; failures are errors."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
import socketio
from msgspec import msgpack

from dev.ports import LOOPBACK, free_port
from dev.servers import Valkey
from queue_manager.core.clock import seconds
from services import realtime
from services.realtime import RESUBSCRIBE_TIME, EmitFailed, RedisEvents
from tests.real_servers import Servers

DATA = {"room_id": "1", "text": "é \u2028"}
ADAPTERS = ("python", "redis", "redis-streams")


def test_events_are_those_of_python_socketio(clean: Servers) -> None:
    url = clean.valkey.url
    with subscribed(url, "events") as message:
        socketio.RedisManager(url, channel="events", write_only=True).emit("updated", DATA, room="support-1")
        RedisEvents(url, channel="events").emit_all("updated", [("support-1", DATA)])
        theirs, ours = json.loads(message()), json.loads(message())
    assert len({theirs.pop("host_id"), ours.pop("host_id")}) == 2
    assert ours == theirs


def test_events_for_the_redis_adapter_are_published_to_the_channel_of_their_room(clean: Servers) -> None:
    url = clean.valkey.url
    with subscribed(url, "app#/#support-1#") as message:
        RedisEvents(url, adapters=["redis"], node_key="app").emit_all("updated", [("support-1", DATA)])
        sender, packet, options = msgpack.decode(message())
    assert sender == "emitter"
    assert packet == {"type": 2, "data": ["updated", DATA], "nsp": "/"}
    assert options == {"rooms": ["support-1"], "except": [], "flags": {}}


def test_events_for_the_streams_adapter_are_entries_of_its_stream(clean: Servers) -> None:
    url = clean.valkey.url
    RedisEvents(url, adapters=["redis-streams"], node_key="app").emit_all("updated", [("support-1", DATA)])
    with redis.Redis.from_url(url, decode_responses=True) as client:
        ((_, entry),) = client.xrange("app")
    message = json.loads(entry.pop("data"))
    assert entry == {"uid": "emitter", "nsp": "/", "type": "3"}
    assert message["packet"] == {"type": 2, "data": ["updated", DATA], "nsp": "/"}
    assert message["opts"] == {"rooms": ["support-1"], "except": [], "flags": {}}


def test_the_stream_is_bounded(clean: Servers) -> None:
    events = RedisEvents(clean.valkey.url, adapters=["redis-streams"], stream_max_length=100)
    events.emit_all("updated", [("support-1", {"number": number}) for number in range(1_000)])
    with redis.Redis.from_url(clean.valkey.url) as client:
        kept = client.xrange("socket.io")
        assert 100 <= len(kept) <= 200  # Redis trims whole nodes of 100 entries
    assert json.loads(kept[-1][1][b"data"])["packet"]["data"] == ["updated", {"number": 999}]


def test_many_events_for_all_adapters_need_one_round_trip(clean: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    events = RedisEvents(clean.valkey.url, adapters=ADAPTERS)
    sent = []
    send = redis.Connection.send_packed_command

    def record(connection: redis.Connection, command: Any, check_health: bool = True) -> None:
        sent.append(command)
        send(connection, command, check_health)

    monkeypatch.setattr(redis.Connection, "send_packed_command", record)
    events.emit_all("updated", [("support-1", {})])  # connects
    sent.clear()
    events.emit_all("updated", [(f"support-{number}", {}) for number in range(100)])
    assert len(sent) == 1


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_an_event_that_redis_does_not_take_is_an_error_without_a_password(adapter: str) -> None:
    events = RedisEvents(f"redis://:s3cret@127.0.0.1:{free_port()}/0", adapters=[adapter])
    with pytest.raises(EmitFailed) as error:
        events.emit_all("updated", [("support-1", {})])
    assert "s3cret" not in str(error.value)
    assert error.value.args[0].server == "Redis"  # so that an outage is logged once, and without a traceback


def test_a_stream_that_takes_no_events_is_an_error(clean: Servers) -> None:
    with redis.Redis.from_url(clean.valkey.url) as client:
        client.set("socket.io", "not a stream")
    with pytest.raises(EmitFailed, match="WRONGTYPE"):
        RedisEvents(clean.valkey.url, adapters=ADAPTERS).emit_all("updated", [("support-1", {})])


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_an_event_that_only_a_replica_would_publish_is_an_error(adapter: str, tmp_path: Path) -> None:
    with Valkey(tmp_path / "redis") as server, redis.Redis.from_url(server.url) as client:
        events = RedisEvents(server.url, adapters=[adapter])
        events.emit_all("updated", [("support-1", DATA)])
        client.replicaof(LOOPBACK, str(free_port()))  # a failover that leaves the connections open
        with client.pubsub(ignore_subscribe_messages=True) as pubsub:
            pubsub.psubscribe("*")
            assert pubsub.get_message(timeout=20) is None
            with pytest.raises(EmitFailed):
                events.emit_all("updated", [("support-1", DATA)])
            assert pubsub.get_message(timeout=0.2) is None
        client.replicaof("NO", "ONE")
        events.emit_all("updated", [("support-1", DATA)])


def test_a_primary_without_the_replicas_that_it_needs_publishes_no_event(tmp_path: Path) -> None:
    with Valkey(tmp_path / "redis", config={"min-replicas-to-write": "1"}) as server:
        with pytest.raises(EmitFailed, match="NOREPLICAS"):
            RedisEvents(server.url).emit_all("updated", [("support-1", DATA)])


def test_events_are_sent_though_the_memory_of_redis_is_full(tmp_path: Path) -> None:
    with Valkey(tmp_path / "redis") as server, redis.Redis.from_url(server.url) as client:
        events = RedisEvents(server.url, adapters=["python", "redis"])
        events.emit_all("updated", [("support-1", DATA)])
        client.config_set("maxmemory", 1)
        events.emit_all("updated", [("support-1", DATA)])


def test_events_are_emitted_again_a_minute_after_redis_started(tmp_path: Path) -> None:
    assert seconds(60) == RESUBSCRIBE_TIME
    with Valkey(tmp_path / "redis") as server:
        events = RedisEvents(server.url)
        for _ in range(2):  # also by a server that kept its data
            assert seconds(30) < events.emit_all("updated", [("support-1", DATA)]) <= RESUBSCRIBE_TIME
            with redis.Redis.from_url(server.url, decode_responses=True) as client:
                run_id, since_ms = str(client.get(realtime.SERVER_KEY)).split(":")
                client.set(realtime.SERVER_KEY, f"{run_id}:{int(since_ms) - 60_000}")
            assert not events.emit_all("updated", [("support-1", DATA)])
            server.kill()
            server.start()


def test_events_are_not_emitted_again_hours_after_the_clock_of_redis_was_set_back(clean: Servers) -> None:
    events = RedisEvents(clean.valkey.url)
    with redis.Redis.from_url(clean.valkey.url) as client:
        in_three_hours_ms = (client.time()[0] + 3 * 3600) * 1000
        client.set(realtime.SERVER_KEY, f"{client.info('server')['run_id']}:{in_three_hours_ms}")
        assert events.emit_all("updated", [("support-1", DATA)]) <= RESUBSCRIBE_TIME


@contextmanager
def subscribed(url: str, channel: str) -> Iterator[Callable[[], bytes]]:
    """Subscribe to a channel, and give a function that returns the next message."""
    with redis.Redis.from_url(url) as client, client.pubsub(ignore_subscribe_messages=True) as pubsub:
        pubsub.subscribe(channel)
        pubsub.get_message(timeout=20)  # subscribed

        def next_message() -> bytes:
            message = pubsub.get_message(timeout=20)
            assert message is not None
            data: bytes = message["data"]
            return data

        yield next_message
