"""The contract of a kombu channel, on the batched transport: delivery and acknowledgement."""

from __future__ import annotations

import json
import random
import socket
import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from kombu import Connection, Consumer, Exchange, Queue
from kombu.asynchronous import Hub
from redis import Redis
from redis.exceptions import InvalidResponse, ReadOnlyError, ResponseError

from dev.servers import Valkey
from queue_manager.broker import dead_letters, queue_lists, transport
from queue_manager.broker.channel import Channel
from queue_manager.broker.errors import BrokerRefuses, ConnectionLost
from queue_manager.broker.options import register_transport
from queue_manager.broker.queue_lists import PriorityList
from queue_manager.core.errors import ConfigurationError
from tests.broker.failing_disk import cannot_save
from tests.broker.taking import Taker, connected, envelope, held, send, waiting
from tests.eventually import eventually


def test_messages_are_delivered_in_order_and_acknowledged(connection: Connection, client: Redis) -> None:
    send(connection, "q", *range(600))

    taker = Taker(connection, "q")

    assert taker.drain() == [*range(600)]
    assert held(client) == (600, 600)
    for message in taker.taken:
        message.ack()
    assert held(client) == (0, 0)


def test_prefetch_count_is_honoured(connection: Connection, client: Redis) -> None:
    send(connection, "q", *range(9))
    taker = Taker(connection, "q", prefetch=4)
    assert taker.drain() == [0, 1, 2, 3]
    assert client.llen("q") == 5

    taker.taken[0].ack()
    taker.taken[2].reject()

    assert taker.drain() == [0, 1, 2, 3, 4, 5]


def test_broadcasts_are_not_read_from_an_outdated_connection(connection: Connection, client: Redis) -> None:
    channel = connection.default_channel
    broadcasts = Queue("mine", Exchange("broadcasts", type="fanout"), durable=False)(channel)
    with Consumer(channel, [broadcasts], no_ack=True):
        connection.transport.cycle._register_LISTEN(channel)
        assert not channel._receive()  # the confirmation
        client.replicaof("127.0.0.1", "1")  # as after a failover
        with channel.conn_or_acquire() as other, pytest.raises(ReadOnlyError):
            other.set("any", "value")
        client.replicaof("NO", "ONE")
        with pytest.raises(ConnectionLost):
            channel._receive()


def test_a_worker_that_connects_reconnects_if_the_server_refuses(connection: Connection, client: Redis) -> None:
    known, new = (
        Queue(name, Exchange("mailboxes", type="direct"), auto_delete=True)(connection.default_channel)
        for name in ("known", "new")
    )
    known.declare()
    client.config_set("min-replicas-to-write", 1)
    try:
        for step in (new.declare, known.delete):
            with pytest.raises(connection.connection_errors, match=r"Redis refuses: .*NOREPLICAS"):
                step()
    finally:
        client.config_set("min-replicas-to-write", 0)
    known.delete()
    assert client.keys("*mailboxes*") == []


def test_a_worker_whose_ping_is_refused_reconnects(tmp_path: Path) -> None:
    directory = tmp_path / "redis"
    with Valkey(directory) as server, connected(server.url) as connection, Redis.from_url(server.url) as admin:
        taker = Taker(connection, "q")
        taker.drain()
        cannot_save(admin, directory)
        taken_from = taker.channel.client.connection
        taken_from.disconnect()
        taken_from.next_health_check = 0  # as of a new one
        for step in (connection.transport.cycle.on_poll_start, connection.channel):
            with pytest.raises(BrokerRefuses, match="MISCONF"):
                step()
        server.kill()  # which cannot save, and so would not end at once


def test_higher_priority_is_delivered_first(server: Valkey, client: Redis) -> None:
    with connected(server.url, priority_steps=[0, 3, 6]) as connection:
        for priority in (7, 4, 0, 3):
            send(connection, "q", f"{priority}a", f"{priority}b", priority=priority)

        taker = Taker(connection, "q", prefetch=5)
        assert taker.drain() == ["0a", "0b", "4a", "4b", "3a"]
        assert client.llen("q\x06\x163") == 1

    assert waiting(client, "q") == ["0a", "0b"]
    assert waiting(client, "q\x06\x163") == ["4a", "4b", "3a", "3b"]
    assert waiting(client, "q\x06\x166") == ["7a", "7b"]


def test_long_queue_does_not_delay_others(connection: Connection) -> None:
    send(connection, "long", *["long"] * 50)
    send(connection, "short", *["short"] * 2)
    send(connection, "other", *["other"] * 2)

    bodies = Taker(connection, "long", "short", "other", prefetch=9).drain()

    assert sorted(bodies) == ["long"] * 5 + ["other"] * 2 + ["short"] * 2


def test_each_queue_of_tasks_that_are_not_batched_takes_a_part_of_the_prefetch_count(
    server: Valkey, client: Redis
) -> None:
    task = {"task": "t"}
    with connected(server.url, priority_steps=[0, 3]) as connection:
        taker = Taker(connection, "jobs", "scans", "rooms", prefetch=20)
        taker.channel.qos.batched_queues, taker.channel.qos.max_single = {"rooms"}, lambda: 3
        send(connection, "jobs", "later", headers={**task, "eta": "2030-01-01T00:00:00Z"})  # which does not count
        send(connection, "jobs", "old")  # nor does one of protocol 1, which may have an ETA in its body
        send(connection, "jobs", *["job"] * 4, headers=task)
        send(connection, "jobs", "job", headers=task, priority=3)
        send(connection, "rooms", *["room"] * 9)
        assert Counter(taker.drain()) == {"later": 1, "old": 1, "job": 3, "room": 9}
        send(connection, "scans", "scan", headers=task, priority=3)
        send(connection, "rooms", "room")
        assert Counter(taker.drain()) == {"later": 1, "old": 1, "job": 3, "room": 10, "scan": 1}

        settle(taker, "job", "job", "scan")
        assert Counter(taker.drain()) == {"later": 1, "old": 1, "job": 5, "room": 10, "scan": 1}
        send(connection, "jobs", "job", headers=task)
        send(connection, "scans", *["scan"] * 4, headers=task)
        assert Counter(taker.drain()) == {"later": 1, "old": 1, "job": 5, "room": 10, "scan": 4}
        assert (client.llen("jobs"), client.llen("scans")) == (1, 1)


def settle(taker: Taker, *bodies: str) -> None:
    """Acknowledge one message for each body."""
    for body in bodies:
        next(one for one in taker.taken if one.payload == body and not one.acknowledged).ack()


@pytest.fixture
def requested(monkeypatch: pytest.MonkeyPatch) -> list[set[str]]:
    """Record the queues of each request."""
    arguments, requested = Channel._take_arguments, []

    def record(self: Channel, lists: Sequence[PriorityList], *more: Any) -> Any:
        requested.append({one.queue for one in lists})
        return arguments(self, lists, *more)

    monkeypatch.setattr(Channel, "_take_arguments", record)
    return requested


@pytest.mark.usefixtures("unpolled")
def test_only_queues_that_have_changed_are_requested(
    connection: Connection, client: Redis, requested: list[set[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_lists, "FALLBACK_POLL_INTERVAL", 0)  # not used, because the server sends notifications
    monkeypatch.setattr(transport, "UPKEEP_INTERVAL", 0.05)
    taker = Taker(connection, "a", "b", "c")
    taker.drain(timeout=0.2)
    assert requested == [{"a", "b", "c"}]
    requested.clear()

    client.lpush("b", json.dumps(envelope("one")))
    assert taker.drain() == ["one"]
    assert requested == [{"b"}]

    with client.pipeline() as pipe:
        pipe.lpush("a", json.dumps(envelope("two")))
        pipe.lpush("c", json.dumps(envelope("three")))
        pipe.execute()
    assert sorted(taker.drain()[1:]) == ["three", "two"]
    assert set.union(*requested[1:]) == {"a", "c"}


@pytest.mark.usefixtures("unpolled")
def test_a_notification_is_not_a_delivered_event(connection: Connection, client: Redis) -> None:
    taker = Taker(connection, "q")
    taker.drain(timeout=0.2)
    client.lpush("q", json.dumps(envelope("one")))
    connection.drain_events(timeout=20)  # once, as who waits for one reply
    assert taker.bodies == ["one"]


@pytest.mark.usefixtures("unpolled")
def test_a_notification_that_came_with_a_reply_is_read(connection: Connection, client: Redis) -> None:
    taker = Taker(connection, "q")
    taker.drain(timeout=0.2)
    taker.channel.empty_queues.discard("q")
    connection.transport.cycle.on_poll_start()  # sends a request
    eventually(lambda: peek(taker) == b"*0\r\n")
    client.lpush("q", json.dumps(envelope("one")))
    eventually(lambda: b"invalidate" in peek(taker))

    assert taker.drain(timeout=0.2) == ["one"]


def peek(taker: Taker) -> bytes:
    """Return what the server has sent and was not read."""
    unread: bytes = taker.channel.client.connection._sock.recv(4096, socket.MSG_PEEK)
    return unread


@pytest.mark.usefixtures("unpolled")
def test_a_message_that_arrives_while_a_batch_is_delivered_is_noticed(
    connection: Connection, client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    taker = Taker(connection, "a", "b")
    taker.drain(timeout=0.2)
    received = taker.received

    def produce(message: Any) -> None:
        if not taker.taken:
            client.lpush("b", json.dumps(envelope("second")))
            client.lpush("a", json.dumps(envelope("third")))
        received(message)

    monkeypatch.setattr(taker.consumer, "on_message", produce)
    client.lpush("a", json.dumps(envelope("first")))
    assert sorted(taker.drain()) == ["first", "second", "third"]


@pytest.mark.usefixtures("unpolled")
@pytest.mark.parametrize("forget", ["flushall", "flushdb"])
def test_a_message_is_noticed_after_the_server_lost_its_data(
    connection: Connection, client: Redis, forget: str
) -> None:
    taker = Taker(connection, "q")
    taker.drain(timeout=0.2)
    getattr(client, forget)()
    taker.drain(timeout=0.2)
    client.lpush("q", json.dumps(envelope("one")))
    assert taker.drain() == ["one"]


def test_a_server_that_sends_no_notifications_is_polled(
    server: Valkey, client: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    password = "a-password"
    client.acl_setuser(
        "poor", enabled=True, passwords=[f"+{password}"], categories=["+@all"], keys=["*"], channels=["*"]
    )
    client.execute_command("ACL", "SETUSER", "poor", "-client|tracking")
    url = server.url.replace("redis://", f"redis://poor:{password}@")
    try:
        with connected(url) as connection:
            taker = Taker(connection, "q")
            taker.drain(timeout=0.2)
            client.lpush("q", json.dumps(envelope("one")))
            connection.drain_events(timeout=20)
            assert taker.bodies == ["one"]
    finally:
        client.acl_deluser("poor")
    assert "Redis sends no notifications" in caplog.text


def test_the_server_forgets_the_lists_of_deleted_queues(connection: Connection, client: Redis) -> None:
    def tracked() -> int:
        found: int = client.info("stats")["tracking_total_keys"]
        return found

    before = tracked()
    for number in range(4):
        channel, name = connection.default_channel, f"replies-{number}"
        queue = Queue(name, Exchange("replies"), routing_key=name, auto_delete=True)
        with Consumer(channel, [queue]):
            with suppress(TimeoutError):
                connection.drain_events(timeout=0.1)
            eventually(lambda: tracked() > before)
        channel.after_reply_message_received(name)  # as `celery inspect` ends
        assert tracked() == before


@pytest.mark.parametrize(
    ("error", "expected"),
    [(ResponseError("idle timeout"), BrokerRefuses), (InvalidResponse("Protocol error"), ConnectionLost)],
    ids=["error", "no reply"],
)
def test_an_unsolicited_error_is_a_lost_connection(
    connection: Connection, client: Redis, monkeypatch: pytest.MonkeyPatch, error: Exception, expected: type[Exception]
) -> None:
    taker = Taker(connection, "q")
    taker.drain()
    with monkeypatch.context() as patched:
        patched.setattr(taker.channel.client.connection, "read_response", Mock(side_effect=error))
        client.lpush("q", json.dumps(envelope("one")))
        with pytest.raises(expected):
            connection.drain_events(timeout=20)
    assert taker.drain() == ["one"]


def test_an_unexpected_reply_is_a_lost_connection(
    connection: Connection, client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.lpush("q", json.dumps(envelope("one")))
    taker = Taker(connection, "q")
    with monkeypatch.context() as patched:
        patched.setattr(taker.channel.client, "parse_response", Mock(side_effect=InvalidResponse("HTTP/1.0 503")))
        with pytest.raises(ConnectionLost, match="an invalid reply: HTTP"):
            connection.drain_events(timeout=20)
    assert not taker.channel.client.connection.is_connected


def test_closed_connections_leave_nothing_in_the_event_loop(server: Valkey) -> None:
    with closing(Hub()) as hub:
        for _ in range(3):
            with connected(server.url) as connection:
                connection.register_with_event_loop(hub)
                assert len(hub.on_tick) == 1
        assert not hub.on_tick


@pytest.mark.usefixtures("unpolled", "client")
def test_no_message_is_missed_while_queues_become_empty_and_fill(server: Valkey) -> None:
    names, sent = ["a", "b", "c"], 1_500

    def produce() -> None:
        chance = random.Random(1)
        with Redis.from_url(server.url) as producer:
            for number in range(sent):
                producer.lpush(chance.choice(names), json.dumps(envelope(number)))
                if chance.random() < 0.5 or number == sent - 1:
                    eventually(lambda: not producer.exists(*names), every=0.0002)

    with connected(server.url) as one, connected(server.url) as another, ThreadPoolExecutor() as threads:
        takers = [Taker(one, *names), Taker(another, *names[1:])]
        production = threads.submit(produce)

        def take(taker: Taker) -> None:
            while not production.done():
                with suppress(TimeoutError):
                    taker.connection.drain_events(timeout=0.1)

        for run in [production, *[threads.submit(take, taker) for taker in takers]]:
            run.result(110)
    assert sorted(body for taker in takers for body in taker.bodies) == [*range(sent)]


def test_message_is_awaited_without_polling(connection: Connection, client: Redis) -> None:
    taker = Taker(connection, "a", "b", "c")
    taker.drain(timeout=0.2)
    before = client.info("stats")["total_commands_processed"]
    taker.drain(timeout=0.2)
    threading.Timer(0.3, client.lpush, ("b", json.dumps(envelope("late")))).start()

    connection.drain_events(timeout=20)
    taker.drain(timeout=0.1)

    assert taker.bodies == ["late"]
    assert client.info("stats")["total_commands_processed"] - before < 60


@pytest.mark.parametrize("size", [1, 3, 7])
def test_full_queues_take_turns(connection: Connection, size: int) -> None:
    names = ["a", "b", "c", "d"]
    for name in names:
        send(connection, name, *[name] * 100)
    taker = Taker(connection, *names)
    taker.channel.take_batch_size = size
    while len(taker.taken) < 140:
        connection.drain_events(timeout=20)
    shares = Counter(taker.bodies)
    assert max(shares.values()) - min(shares[name] for name in names) <= size


def test_many_queues_and_priorities_are_awaited(server: Valkey, client: Redis) -> None:
    names = [f"q{number}" for number in range(12)]
    with connected(server.url, priority_steps=[0, 3, 6, 9]) as connection:
        taker = Taker(connection, *names)
        taker.drain(timeout=0.1)  # 48 lists, where a pool of kombu's has 10 connections
        for name in names:
            send(connection, name, name, priority=9)
        assert sorted(taker.drain()) == sorted(names)


def test_queues_are_requested_in_parts(server: Valkey, requested: list[set[str]]) -> None:
    names = [f"q{number}" for number in range(900)]  # whose lists together are too many for one script
    with connected(server.url, priority_steps=[*range(10)]) as connection:
        taker = Taker(connection, *names)
        send(connection, names[-1], "last", priority=9)
        send(connection, names[0], "first")
        eventually(lambda: sorted(taker.drain()) == ["first", "last"])
    assert max(map(len, requested)) <= 50


def test_messages_without_acknowledgement_are_not_registered_as_unacked(connection: Connection, client: Redis) -> None:
    send(connection, "q", *range(20))

    taker = Taker(connection, "q", prefetch=3, no_ack=True)

    assert taker.drain() == [*range(20)]
    assert held(client) == (0, 0)
    assert not taker.channel.qos._dirty


def test_basic_get_registers_the_message_atomically(connection: Connection, client: Redis) -> None:
    send(connection, "q", "first", "second", "third")
    client.rpush("q", b"\xff")
    channel = connection.default_channel

    message = channel.basic_get("q")
    assert message.payload == "first"
    assert held(client) == (1, 1)
    message.ack()
    assert channel.basic_get("q", no_ack=True).payload == "second"
    assert held(client) == (0, 0)
    channel.basic_get("q").reject(requeue=True)
    assert waiting(client, "q") == ["third"]
    assert channel.basic_get("other") is None
    assert dead_letters.count(client) == 1


def test_requeued_message_goes_to_the_tail_and_is_marked_redelivered(connection: Connection) -> None:
    send(connection, "q", "first", "second")
    taker = Taker(connection, "q", prefetch=1)
    assert taker.drain() == ["first"]

    taker.taken[0].requeue()
    taker.drain()
    taker.taken[1].ack()

    assert taker.drain() == ["first", "second", "first"]
    assert [message.delivery_info.get("redelivered", False) for message in taker.taken] == [False, False, True]


def test_rejected_message_is_kept_with_the_reason(connection: Connection, client: Redis) -> None:
    send(connection, "q", "one", "two")
    taker = Taker(connection, "q")
    taker.drain()

    taker.taken[0].reject_reason = "we had enough"
    for message in taker.taken:
        message.reject()

    two, one = dead_letters.latest(client)
    assert (one.queue, one.reason, two.reason) == ("q", "we had enough", "It was rejected")
    assert json.loads(one.message)["properties"]["delivery_info"]["routing_key"] == "q"
    assert held(client) == (0, 0)


def test_script_is_loaded_again_after_the_server_lost_it(connection: Connection, client: Redis) -> None:
    taker = Taker(connection, "q")
    send(connection, "q", "before")
    taker.drain()
    client.script_flush()

    send(connection, "q", "after")

    assert taker.drain() == ["before", "after"]


def test_key_of_another_type_does_not_block_other_queues(connection: Connection, client: Redis) -> None:
    taker = Taker(connection, "q", "odd")
    client.set("odd", "a text")
    send(connection, "q", *range(5))

    assert taker.drain() == [*range(5)]


def test_no_message_is_taken_if_it_cannot_be_registered(connection: Connection, client: Redis) -> None:
    client.set("unacked_index", "a text")
    send(connection, "q", *range(5))

    with pytest.raises(connection.recoverable_connection_errors, match="WRONGTYPE"):
        Taker(connection, "q").drain()

    assert waiting(client, "q") == [*range(5)]


def test_delivery_from_empty_queues_pops_from_no_list(connection: Connection, client: Redis) -> None:
    client.config_resetstat()

    assert connection.default_channel.basic_get("q") is None

    assert "cmdstat_rpop" not in client.info("commandstats")


def test_lost_connection_is_replaced(connection: Connection, client: Redis) -> None:
    taker = Taker(connection, "q")
    taker.drain()
    client.client_kill_filter(_type="normal", skipme=True)
    client.lpush("q", json.dumps(envelope("after")))

    with pytest.raises(connection.recoverable_connection_errors):
        taker.drain()  # it was idle

    assert taker.drain() == ["after"]


def test_connection_that_the_server_closes_while_no_message_is_wanted_is_opened_again(
    connection: Connection, client: Redis
) -> None:
    send(connection, "q", "first", "second")
    taker = Taker(connection, "q", prefetch=1)
    taker.drain()
    client.client_kill_filter(_type="normal", skipme=True)  # as its setting `timeout` does
    with suppress(TimeoutError):
        connection.drain_events(timeout=0.2)
    taker.taken[0].ack()
    connection.drain_events(timeout=20)
    assert taker.bodies == ["first", "second"]


def test_connection_that_the_server_closes_after_all_queues_were_cancelled_is_opened_again(
    connection: Connection, client: Redis
) -> None:
    taker = Taker(connection, "q")
    taker.drain()
    taker.consumer.cancel()
    client.client_kill_filter(_type="normal", skipme=True)
    with suppress(TimeoutError):
        connection.drain_events(timeout=0.2)
    send(connection, "q", "one")
    taker.consumer.consume()
    connection.drain_events(timeout=20)
    assert taker.bodies == ["one"]


def test_transport_has_its_own_url_scheme(server: Valkey, client: Redis) -> None:
    register_transport(server.url)
    with Connection(f"batched-{server.url}", transport_options={"priority_steps": [0]}) as connection:
        send(connection, "q", "one")

        assert isinstance(connection.transport, transport.Transport)
        assert Taker(connection, "q").drain() == ["one"]


@pytest.mark.parametrize("option", [{"global_keyprefix": "x"}, {"ack_emulation": False}])
def test_unknown_transport_options_are_refused(server: Valkey, option: dict[str, Any]) -> None:
    with connected(server.url, **option) as connection, pytest.raises(ConfigurationError, match="global_keyprefix"):
        connection.channel()
