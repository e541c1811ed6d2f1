"""What an idle worker and an idle scan cost Redis, in commands; those inside of scripts count, too."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from queue import Empty

import pytest
from kombu import Connection
from msgspec.structs import replace
from redis import Redis

from dev.servers import Valkey
from queue_manager import leases
from queue_manager.beat import scan_ticks
from queue_manager.broker.backlog import Backlog
from queue_manager.core.clock import minutes
from queue_manager.leases import Leases
from queue_manager.telemetry import worker_heartbeats
from queue_manager.telemetry.worker_heartbeats import Activity, PoolProcess, RunningTask
from services import message_queue
from services.due_documents import work_of
from services.support_snooze import system as support_snooze
from tests.broker.taking import Taker, connected, held, send
from tests.real_servers import Servers

PRIORITIES = range(10)


@contextmanager
def counted(client: Redis) -> Iterator[Counter[str]]:
    """Count the commands within, without those that count."""
    counts: Counter[str] = Counter()
    client.config_resetstat()
    try:
        yield counts
    finally:
        stats = client.info("commandstats")
        counts.update({name.removeprefix("cmdstat_"): stats[name]["calls"] for name in stats})
        del counts["config|resetstat"]


@pytest.fixture
def all_priorities(server: Valkey) -> Iterator[Connection]:
    with connected(server.url, priority_steps=[*PRIORITIES]) as connection:
        yield connection


@pytest.mark.usefixtures("unpolled")
def test_a_poll_of_empty_lists_is_a_script_of_one_command(all_priorities: Connection, client: Redis) -> None:
    taker = Taker(all_priorities, "q", "another")
    taker.take(timeout=0.3)
    taker.channel.empty_queues._next_poll_at = 0.0
    with counted(client) as counts, suppress(Empty):
        all_priorities.transport.cycle.poll_lists()
        taker.channel._brpop_read()
    assert counts == {"evalsha": 1, "exists": 1}


def test_check_for_messages_of_killed_workers_is_one_command(connection: Connection, client: Redis) -> None:
    taker = Taker(connection, "q")
    taker.take(timeout=0.3)
    with counted(client) as counts:
        connection.transport.cycle.maybe_restore_messages()
    assert counts == {"exists": 1}


@pytest.mark.usefixtures("unpolled")
def test_a_message_of_any_priority_is_noticed_without_a_poll(all_priorities: Connection, client: Redis) -> None:
    taker = Taker(all_priorities, "q")
    taker.take(timeout=0.3)
    for priority in PRIORITIES:
        send(all_priorities, "q", priority, priority=priority)
        while priority not in taker.bodies:
            all_priorities.drain_events(timeout=20)
    assert held(client) == (len(PRIORITIES), len(PRIORITIES))


def test_lists_after_the_last_message_are_not_read(all_priorities: Connection, client: Redis) -> None:
    taker = Taker(all_priorities, "q")
    send(all_priorities, "q", "urgent", priority=9)
    send(all_priorities, "q", "first", "second", priority=0)
    with counted(client) as counts:
        assert sorted(taker.drain()) == ["first", "second", "urgent"]
    assert counts["rpop"] <= len(PRIORITIES)


def test_an_acknowledgement_is_two_commands(connection: Connection, client: Redis) -> None:
    send(connection, "q", "one")
    taker = Taker(connection, "q")
    taker.drain()
    with counted(client) as counts:
        taker.taken[0].ack()
    assert (counts["hdel"], counts["zrem"], counts["multi"]) == (1, 1, 0)
    assert held(client) == (0, 0)


@pytest.fixture
def quiet_server(clean: Servers, own_valkey: Valkey) -> Iterator[Valkey]:
    """A server of the leases and messages of this test alone."""
    clients = (leases._client, message_queue._scripts)
    for client in clients:
        client.take()
    yield own_valkey
    for client in clients:
        client.take()


def test_a_worker_that_changes_nothing_records_only_its_time(own_valkey: Valkey) -> None:
    with Redis.from_url(own_valkey.url, decode_responses=True) as client:
        worker_heartbeats.record("one@here", ["jobs"])
        with counted(client) as counts:
            worker_heartbeats.record("one@here", ["jobs"])
        assert counts == {"evalsha": 1, "time": 1, "zadd": 1}

        worker_heartbeats.record("one@here", ["jobs", "scans"])
        assert [worker.queues for worker in worker_heartbeats.online(client)] == [("jobs", "scans")]

        client.flushall()
        worker_heartbeats.record("one@here", ["jobs", "scans"])
        assert [worker.queues for worker in worker_heartbeats.online(client)] == [("jobs", "scans")]
        worker_heartbeats.remove("one@here")


def test_a_worker_that_executes_nothing_records_only_its_time(own_valkey: Valkey) -> None:
    idle = Activity(pool="prefork", size=2, busy=0, done_per_minute=0, processes=[PoolProcess(pid=7, memory_bytes=1)])
    with Redis.from_url(own_valkey.url, decode_responses=True) as client:
        worker_heartbeats.record("one@here", ["jobs"], activity=idle)
        with counted(client) as counts:
            grown = replace(idle, processes=[PoolProcess(pid=7, memory_bytes=2)])
            worker_heartbeats.record("one@here", ["jobs"], activity=grown)
        assert counts == {"evalsha": 1, "time": 1, "zadd": 1}

        (seen,) = worker_heartbeats.active(client)
        assert seen.activity == idle
        busy = replace(idle, busy=1, processes=[PoolProcess(pid=7, running=[running(elapsed_ms=600)])])
        for changed in (busy, replace(idle, done_per_minute=1), idle):
            with counted(client) as counts:
                worker_heartbeats.record("one@here", ["jobs"], activity=changed)
            assert counts == {"evalsha": 1, "time": 1, "zadd": 1, "zrangebyscore": 1, "hset": 2, "pexpire": 3}
            (seen,) = worker_heartbeats.active(client)
            assert seen.activity == changed
        worker_heartbeats.remove("one@here")


def running(id: str = "t", *, elapsed_ms: int) -> RunningTask:
    return RunningTask(task="a.task", id=id, elapsed_ms=elapsed_ms)


def test_significant_changes_of_an_activity_are_recorded_immediately() -> None:
    some = Activity(pool="prefork", size=2, busy=0, done_per_minute=100)
    rates = (0, 74, 80, 100, 130, 140)
    assert [replace(some, done_per_minute=rate).differs(some) for rate in rates] == [
        *(True, True, False, False, False, True)
    ]
    assert not replace(some, memory_bytes=1).differs(some)
    assert replace(some, size=3).differs(some)
    short, long, other = (
        replace(some, busy=1, processes=[PoolProcess(pid=7, running=[task])])
        for task in (running(elapsed_ms=20), running(elapsed_ms=600), running("other", elapsed_ms=20))
    )
    assert (short.differs(some), long.differs(some)) == (False, True)
    assert (long.differs(short), some.differs(short), other.differs(short)) == (False, True, True)


def test_a_scan_does_not_renew_its_lock_with_every_batch(quiet_server: Valkey) -> None:
    with Redis.from_url(quiet_server.url, decode_responses=True) as client:
        with counted(client) as counts, Leases("trial-end", minutes(1)).scan_lock() as holds_lock:
            assert all(holds_lock() for _ in range(20))
        assert counts["get"] == 2  # to take the lock, and to release it


def test_a_scan_that_finds_nothing_takes_no_lock_and_reads_no_backlog(quiet_server: Valkey) -> None:
    with Redis.from_url(quiet_server.url, decode_responses=True) as client:
        assert [*work_of(support_snooze).take_due(not_measured)] == []  # connects
        with counted(client) as counts:
            assert [*work_of(support_snooze).take_due(not_measured)] == []
    assert counts == {"hexists": 1, "zcard": 1}  # the pause, and the number of waiting items


def not_measured() -> Backlog:
    raise AssertionError("the backlog was read")


def test_a_sweep_without_messages_in_processing_reads_only_the_first_deadline(quiet_server: Valkey) -> None:
    with Redis.from_url(quiet_server.url, decode_responses=True) as client:
        message_queue.sweeper().sweep()  # loads the script
        with counted(client) as counts:
            message_queue.sweeper().sweep()
    assert counts == {"evalsha": 1, "zrange": 1}


def test_a_tick_is_numbered_by_one_command(own_valkey: Valkey) -> None:
    with Redis.from_url(own_valkey.url, decode_responses=True) as client:
        assert scan_ticks.issue(client, "an-entry") == {"entry": "an-entry", "number": 1}
        assert client.ttl("qm:scan-ticks:an-entry") > 0
        with counted(client) as counts:
            assert [scan_ticks.issue(client, "an-entry")["number"] for _ in range(15)] == [*range(2, 17)]
        assert counts == {"hincrby": 15}
