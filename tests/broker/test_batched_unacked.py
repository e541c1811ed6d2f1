"""Unacked messages of a channel on the batched transport: kept, acknowledged, or released."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from kombu import Connection
from redis import Redis

from dev.servers import Valkey
from queue_manager.broker import dead_letters
from queue_manager.broker.unacked import TAGS_PER_COMMAND
from tests.broker.taking import Taker, connected, envelope, held, send, waiting
from tests.eventually import eventually


def test_closing_requeues_unacked_messages_in_order(server: Valkey, client: Redis) -> None:
    with connected(server.url) as connection:
        send(connection, "q", *range(1300))
        taker = Taker(connection, "q", prefetch=1100)
        taker.drain()
        taker.taken[1].ack()

    assert waiting(client, "q") == [0, *range(2, 1300)]
    assert held(client) == (0, 0)
    last: Any = client.lindex("q", -1)
    assert json.loads(last)["properties"]["delivery_info"]["redelivered"] is True


def test_closing_requeues_prefetched_messages(server: Valkey, client: Redis) -> None:
    with connected(server.url) as connection:
        send(connection, "q", *range(20))
        taker = Taker(connection, "q", prefetch=10)
        connection.transport.cycle.on_poll_start()  # asks
        assert taker.channel._in_poll

    assert taker.taken == []
    assert waiting(client, "q") == [*range(20)]
    assert held(client) == (0, 0)


def test_consumer_cancelled_within_a_batch_gets_no_more_messages(server: Valkey, client: Redis) -> None:
    class Once(Taker):
        def received(self, message: Any) -> None:
            super().received(message)
            self.channel._basic_cancel(next(iter(self.channel._consumers)))

    with connected(server.url) as connection:
        send(connection, "q", *range(20))
        taker = Once(connection, "q")
        connection.drain_events(timeout=20)

        assert taker.bodies == [0]
        assert waiting(client, "q") == [*range(1, 20)]
        assert held(client) == (1, 1)


def test_message_that_was_acknowledged_before_its_dispatch_failed_is_not_delivered_again(
    connection: Connection, client: Redis
) -> None:
    class Failing(Taker):
        def received(self, message: Any) -> None:
            super().received(message)
            message.ack()
            raise ValueError("after the ack")

    taker = Failing(connection, "q")
    connection.transport.has_event_loop = True  # acks are collected
    send(connection, "q", "one")
    assert taker.drain() == ["one"]
    taker.channel.qos.flush_acks()
    assert (held(client), client.llen("q"), dead_letters.count(client)) == ((0, 0), 0, 0)


def test_message_that_failed_dispatch_twice_does_not_count_as_prefetched(connection: Connection, client: Redis) -> None:
    class Failing(Taker):
        def received(self, message: Any) -> None:
            if message.payload == "bad":
                raise ValueError("bad")
            super().received(message)
            message.ack()

    taker = Failing(connection, "q", prefetch=1)
    send(connection, "q", "bad", "good")
    taker.drain()
    assert dead_letters.count(client) == 1
    send(connection, "q", "later")
    assert taker.drain() == ["good", "later"]


def test_acknowledged_messages_are_not_kept_in_memory(connection: Connection) -> None:
    class Acknowledging(Taker):
        def received(self, message: Any) -> None:
            message.ack()

    taker = Acknowledging(connection, "q")
    send(connection, "q", *range(2 * TAGS_PER_COMMAND + 1))
    taker.drain()
    assert len(taker.channel.qos._delivered) <= TAGS_PER_COMMAND


def test_name_of_a_queue_may_be_any_text(server: Valkey, client: Redis) -> None:
    names = ["größe", 'quo"te', "back\\slash", "100%d", "日本"]
    with connected(server.url) as connection:
        for name in names:
            send(connection, name, name)
        assert sorted(Taker(connection, *names).drain()) == sorted(names)

    assert {name: waiting(client, name) for name in names} == {name: [name] for name in names}
    assert held(client) == (0, 0)


def test_overdue_messages_are_requeued_and_renewed_ones_are_not(server: Valkey, client: Redis) -> None:
    with connected(server.url) as theirs, connected(server.url) as ours:
        send(theirs, "q", *range(1200))
        Taker(theirs, "q", prefetch=1100).drain()
        send(ours, "kept", "kept")
        keeper = Taker(ours, "kept")
        keeper.drain()
        overdue(client)

        keeper.channel.qos.renew()
        keeper.channel.qos.restore_visible()

        assert waiting(client, "q") == [*range(1200)]
        assert held(client) == (1, 1)
        theirs.transport.cycle._channels.clear()  # their worker is dead


def renewed_at(client: Redis) -> float:
    """Return when the only message was renewed, by the clock of Redis."""
    [(_, at)] = index(client)
    return at


def index(client: Redis) -> list[tuple[str, float]]:
    """Return the tag of each message and when it was renewed."""
    found: Any = client.zrange("unacked_index", 0, -1, withscores=True)
    return found


def overdue(client: Redis) -> None:
    """Let all messages have been renewed long ago."""
    client.zadd("unacked_index", dict.fromkeys(dict(index(client)), 1))


@pytest.mark.slow
def test_a_thread_renews_messages_while_the_event_loop_runs(connection: Connection, client: Redis) -> None:
    taker, poller = Taker(connection, "q"), connection.transport.cycle
    send(connection, "q", "one")
    assert taker.drain() == ["one"]
    poller.renew_in_thread(0.5, max_pause=30)
    seen = {renewed_at(client)}

    def is_renewed_again_and_again() -> bool:
        poller.poll_lists()
        seen.add(renewed_at(client))
        return len(seen) > 3

    eventually(is_renewed_again_and_again)


@pytest.mark.slow
def test_a_thread_renews_no_messages_while_the_event_loop_hangs(connection: Connection, client: Redis) -> None:
    taker, poller = Taker(connection, "q"), connection.transport.cycle
    send(connection, "q", "one")
    assert taker.drain() == ["one"]
    poller.renew_in_thread(0.5, max_pause=0.1)

    def is_left_alone() -> bool:
        now, microseconds = client.time()
        return bool(now + microseconds / 1e6 - renewed_at(client) > 6)

    eventually(is_left_alone)


def test_requeued_messages_are_marked_as_by_stock_kombu(server: Valkey, connection: Connection, client: Redis) -> None:
    send(connection, "q", "with", headers={"task": "t"})
    client.lpush("q", json.dumps(envelope("without")))
    client.lpush("q", json.dumps(envelope("compact", task="t"), separators=(",", ":")))
    taker = Taker(connection, "q")
    taker.drain()

    taker.channel.qos.requeue_first([message.delivery_tag for message in taker.taken])

    assert waiting(client, "q") == ["with", "without", "compact"]
    for raw in client.lrange("q", 0, -1):
        message = json.loads(raw)
        assert message["headers"]["redelivered"] is True
        assert message["properties"]["delivery_info"]["redelivered"] is True


def test_overdue_messages_are_detected_with_fractions_of_a_second(connection: Connection, client: Redis) -> None:
    send(connection, "q", "late", "not yet")
    taker = Taker(connection, "q")
    taker.drain()
    now, micros = eventually(lambda: (time := client.time())[1] > 200_000 and time)
    overdue_since = {"late": now + micros / 1_000_000 - 30, "not yet": now - 10}
    for message in taker.taken:
        client.zadd("unacked_index", {message.delivery_tag: overdue_since[message.payload]})

    taker.channel.qos.restore_visible()

    assert waiting(client, "q") == ["late"]


def test_messages_registered_by_the_stock_transport_are_requeued(
    server: Valkey, connection: Connection, client: Redis
) -> None:
    client.sadd("_kombu.binding.shop", "orders\x06\x16\x06\x16q")
    for tag, exchange in (("bound", "shop"), ("unbound", "gone"), ("direct", "")):
        client.hset("unacked", tag, json.dumps([envelope(tag), exchange, "orders"]))
        client.zadd("unacked_index", {tag: 1})
    for tag, garbage in (("garbage", b"\xff garbage"), ("half", b'[{}, "", "\xff\\q"]')):
        client.hset("unacked", tag, garbage)
        client.zadd("unacked_index", {tag: 1})

    connection.default_channel.qos.restore_visible()

    assert (waiting(client, "q"), waiting(client, "orders")) == (["bound"], ["direct"])
    assert held(client) == (0, 0)
    assert sorted(letter.queue for letter in dead_letters.latest(client)) == ["", "", "orders"]


def test_message_of_the_stock_transport_stays_registered_while_the_memory_is_full(
    connection: Connection, client: Redis
) -> None:
    client.hset("unacked", "direct", json.dumps([envelope("direct"), "", "orders"]))
    client.zadd("unacked_index", {"direct": 1})
    client.config_set("maxmemory", 1)
    connection.default_channel.qos.restore_visible()
    assert (held(client), dead_letters.count(client)) == ((1, 1), 0)

    client.config_set("maxmemory", 0)
    connection.default_channel.qos.restore_visible()
    assert waiting(client, "orders") == ["direct"]


def test_stock_transport_requeues_messages_held_by_ours(server: Valkey, client: Redis) -> None:
    with connected(server.url) as ours:
        send(ours, "q", *range(3))
        Taker(ours, "q").drain()
        with Connection(server.url, transport_options={"visibility_timeout": 1}) as stock:
            overdue(client)
            stock.default_channel.qos.restore_visible()

        assert sorted(waiting(client, "q")) == [0, 1, 2]
        assert held(client) == (0, 0)
        ours.transport.cycle._channels.clear()


@pytest.mark.slow
def test_full_server_is_emptied(connection: Connection, client: Redis) -> None:
    send(connection, "q", *range(300))
    client.rpush("q", b"no message")
    client.config_set("maxmemory", 1)

    taker = Taker(connection, "q", prefetch=100)
    taker.drain()
    taker.channel.qos.renew()
    for message in taker.taken[:50]:
        message.ack()
    taker.drain(timeout=2.5)  # longer than it pauses
    taker.channel.basic_recover(requeue=True)

    assert taker.bodies == [*range(150)]
    assert dead_letters.count(client) == 1
    assert waiting(client, "q") == [*range(50, 300)]


def test_threads_may_acknowledge(connection: Connection, client: Redis) -> None:
    send(connection, "q", *range(2000))
    taker = Taker(connection, "q")
    taker.drain()
    connection.transport.has_event_loop = True  # collects, as with one

    threads = [threading.Thread(target=acknowledge, args=(taker.taken[start::4],)) for start in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        taker.channel.qos.flush_acks()
    taker.channel.qos.flush_acks()

    assert held(client) == (0, 0)


def test_pending_acks_are_sent_when_closing(server: Valkey, client: Redis) -> None:
    with connected(server.url) as connection:
        send(connection, "q", "one")
        taker = Taker(connection, "q")
        taker.drain()
        connection.transport.has_event_loop = True
        taker.taken[0].ack()
        assert held(client) == (1, 1)

    assert held(client) == (0, 0)
    assert client.llen("q") == 0


def test_task_that_outlives_its_connection_is_acknowledged(tmp_path: Path) -> None:
    with Valkey(tmp_path) as server, connected(server.url) as connection, Redis.from_url(server.url) as client:
        send(connection, "q", "one", "two")
        taker = Taker(connection, "q")
        taker.drain()
        server.kill()
        taker.channel.close()
        server.start()

        taker.taken[0].ack()

        assert held(client) == (1, 1)  # the other comes back by the timeout


def acknowledge(messages: list[Any]) -> None:
    for message in messages:
        message.ack()
