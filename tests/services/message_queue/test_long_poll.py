"""Waiting consumers: woken immediately, on one shared connection, and not made to wait for available messages."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import pytest
import redis

from dev.ports import LOOPBACK
from dev.servers import Valkey
from services.message_queue import InvalidMessage, Message, QueueUnavailable
from services.message_queue import arrivals as arrivals_module
from services.message_queue.scripts import source
from tests.eventually import eventually
from tests.pace import paced
from tests.services.message_queue import message_lab
from tests.services.message_queue.message_lab import Lab

PATIENT = 20.0  # seconds
LONGER = 3 * PATIENT
LATE = 2.5  # a message that is missed is found twice as late
MOMENTS = 200


@contextmanager
def waiting(lab: Lab, *of_each: dict[str, Any]) -> Iterator[list[Future[Message | None]]]:
    """Let consumers wait, each in a thread of its own, and look on when all of them do."""
    lab.client.script_load(source("dequeue"))
    lab.client.config_resetstat()
    with ThreadPoolExecutor(len(of_each)) as threads:
        futures = [threads.submit(lab.queue.dequeue, **{"timeout": PATIENT, **wanted}) for wanted in of_each]
        # Each has looked, and found nothing.
        eventually(lambda: lab.commands().get("evalsha", 0) >= len(of_each) and is_blocked(lab))
        yield futures


def subscribed(lab: Lab, *types: str | None) -> list[Future[str | None]]:
    """Subscribe consumers of these types, `None` for any, and wait until they miss no message."""
    arrivals = [lab.arrivals.subscribe(type) for type in types]
    for arrival in arrivals:
        lab.arrivals.wait_for_reader(arrival)
    return arrivals


def is_blocked(lab: Lab) -> bool:
    return any(client["cmd"] == "xread" and "b" in client["flags"] for client in connections(lab))


def connections(lab: Lab) -> list[dict[str, Any]]:
    return [client for client in lab.client.client_list() if client["name"] == lab.waiting_name]


@pytest.fixture
def long_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a read that no message ends take longer than a test waits."""
    for module in (arrivals_module, message_lab):  # the latter bounds the socket by it
        monkeypatch.setattr(module, "READ_BLOCK_TIMEOUT", LONGER)


@pytest.mark.parametrize("type", [None, "job"])
@pytest.mark.parametrize("priority", [0, 3])
def test_waiting_consumer_is_woken(long_reads: None, lab: Lab, type: str | None, priority: int) -> None:
    with waiting(lab, {"type": type, "timeout": LONGER}) as [consumer]:
        lab.queue.enqueue("job", id="a", priority=priority)
        message = consumer.result(PATIENT)
        assert message is not None
        assert message.id == "a"
        assert lab.commands()["evalsha"] == 3  # it looked, the message came, it looked again


@pytest.mark.slow
def test_waiting_consumers_dequeue_only_when_they_are_woken(lab: Lab) -> None:
    with waiting(lab, {}, {"type": "job"}) as consumers:
        eventually(lambda: lab.commands().get("xread", 0) >= 2)  # one of them, at least, lasted two seconds
        assert lab.commands()["evalsha"] == 2
        for _ in consumers:
            lab.queue.enqueue("job")
        assert all(consumer.result(PATIENT) for consumer in consumers)


def test_waiting_consumer_is_woken_by_a_requeued_message(lab: Lab) -> None:
    lab.queue.enqueue("job", id="a")
    held = lab.take()
    with waiting(lab, {}) as [consumer]:
        lab.queue.nack("a", held.lock_token)
        message = consumer.result(PATIENT)
        assert message is not None
    lab.lapse("a")
    with waiting(lab, {"type": "job"}) as [consumer]:
        lab.sweeper.sweep()
        message = consumer.result(PATIENT)
        assert message is not None
        assert message.attempt == 3


def test_consumer_that_did_not_wait_for_a_slow_reader_misses_no_message(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect, may_connect = lab.arrivals._connect, threading.Event()

    def connect_late() -> redis.Redis:
        may_connect.wait(PATIENT)
        return connect()

    monkeypatch.setattr(arrivals_module, "READ_BLOCK_TIMEOUT", 0.1)
    monkeypatch.setattr(lab.arrivals, "_connect", connect_late)
    lab.client.script_load(source("dequeue"))
    lab.client.config_resetstat()
    with ThreadPoolExecutor(1) as threads:
        consumer = threads.submit(lab.queue.dequeue, timeout=PATIENT)
        eventually(lambda: lab.commands().get("evalsha") == 1)  # it has found nothing
        lab.queue.enqueue("job", id="a")
        may_connect.set()
        message = consumer.result(2 * PATIENT)
    assert message is not None


def test_available_message_is_delivered_without_waiting(long_reads: None, lab: Lab) -> None:
    lab.queue.enqueue("job")
    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(lab.queue.dequeue, timeout=LONGER).result(PATIENT) is not None


def test_dequeue_returns_nothing_after_its_timeout(long_reads: None, lab: Lab) -> None:
    began = time.monotonic()
    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(lab.queue.dequeue, timeout=0.2).result(PATIENT) is None
    assert time.monotonic() - began >= 0.2
    lab.queue.enqueue("job", id="later")
    assert lab.take().id == "later"


def test_fifty_waiting_consumers_share_one_connection_and_get_each_message_once(lab: Lab) -> None:
    kinds: list[dict[str, Any]] = [{}] * 30 + [{"type": "job"}] * 20
    with waiting(lab, *kinds) as consumers:
        assert len(connections(lab)) == 1
        for number in range(50):
            lab.queue.enqueue("job", id=f"{number}", priority=number % 4)
        taken = [consumer.result(PATIENT) for consumer in consumers]
        assert sorted(message.id for message in taken if message) == sorted(f"{number}" for number in range(50))
        assert len(connections(lab)) <= 1


def test_one_message_wakes_one_of_the_consumers_that_wait_for_types(lab: Lab) -> None:
    kinds = [f"t{number}" for number in range(20)]
    with waiting(lab, *({"type": kind} for kind in kinds)) as consumers:
        lab.queue.enqueue("t0", id="first")
        message = consumers[0].result(PATIENT)
        assert message is not None
        assert message.id == "first"
        assert lab.commands()["evalsha"] == 22  # each looked, the message came, one looked again
        lab.queue.enqueue_batch([{"type": kind, "id": kind} for kind in reversed(kinds[1:])])
        taken = [consumer.result(PATIENT) for consumer in consumers[1:]]
        assert [message.id for message in taken if message] == kinds[1:]


def test_message_wakes_the_longest_waiting_consumer_of_any_type_and_of_its_type(lab: Lab) -> None:
    """Either may take another message that has arrived, so that the other one must look."""
    kinds = ("a", None, "b", None, "b", "c", "c")
    arrivals = subscribed(lab, *kinds)
    lab.queue.enqueue("b")
    eventually(arrivals[2].done)
    assert [arrival.done() for arrival in arrivals] == [False, True, True, False, False, False, False]
    for used_up in arrivals[1:3]:  # they time out, or their clients have gone
        lab.arrivals.unsubscribe(used_up)
    assert [arrival.done() for arrival in arrivals] == [False, True, True, True, True, False, False]
    for arrival in arrivals:
        lab.arrivals.unsubscribe(arrival)


@pytest.mark.parametrize("data", ['{"id": "x", "type": "b", "payload": 1}', '{"type":"b","id":"x"}', "no JSON"])
def test_message_of_another_program_wakes_one_consumer_of_each_type(lab: Lab, data: str) -> None:
    kinds = ("a", None, "b", None, "b", "a")
    arrivals = subscribed(lab, *kinds)
    lab.client.xadd("q", {"data": data})
    eventually(arrivals[2].done)
    assert [arrival.done() for arrival in arrivals] == [True, True, True, False, False, False]
    for arrival in arrivals:
        lab.arrivals.unsubscribe(arrival)


@pytest.mark.parametrize("state", ["processing", "dead"])
def test_requeued_message_of_a_changed_type_wakes_a_consumer_of_that_type(lab: Lab, state: str) -> None:
    lab.queue.enqueue("letter", id="a")
    if state == "dead":
        lab.contents.move(["a"], to="dead")
    lab.contents.update("a", {"type": "mail"})  # its entry has the old type
    held = lab.take(type="mail") if state == "processing" else None
    with waiting(lab, {"type": "mail"}) as [consumer]:
        if held:
            lab.queue.nack("a", held.lock_token)
        else:
            lab.contents.replay(["a"])
        message = consumer.result(PATIENT)
        assert message is not None
        assert (message.id, message.type) == ("a", "mail")


@pytest.mark.parametrize("type", ['"quoted" \\ /', "größe", "a b"])
def test_consumer_of_a_type_with_special_characters_is_woken(long_reads: None, lab: Lab, type: str) -> None:
    with waiting(lab, {"type": "other"}, {"type": type, "timeout": LONGER}) as [_, consumer]:
        lab.queue.enqueue(type, id="a", ack_timeout=5, max_attempts=2)
        message = consumer.result(PATIENT)
        assert message is not None
        assert message.type == type
        lab.queue.enqueue("other")


def test_consumer_that_times_out_when_woken_passes_the_wake_up_on(lab: Lab) -> None:
    """A consumer's time may end in the moment in which it is woken: the message is for the next one."""
    with waiting(lab, {}) as [patient]:
        (impatient,) = subscribed(lab, None)
        with lab.arrivals._changed:
            lab.arrivals._subscribers.reverse()  # it has waited longest
        lab.queue.enqueue("job", id="a")
        eventually(impatient.done)
        assert not patient.done()

        lab.arrivals.unsubscribe(impatient)

        message = patient.result(PATIENT)
        assert message is not None
        assert message.id == "a"


@pytest.mark.parametrize("type", [None, "job"])
def test_consumer_that_fails_when_woken_passes_the_wake_up_on(
    lab: Lab, type: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only its own connection may have been lost."""
    search = lab.queue.search
    failures = iter([QueueUnavailable("its connection was lost")])

    def failing_once(**options: Any) -> list[Message]:
        for failure in failures:
            raise failure
        return search(**options)

    with waiting(lab, {"type": type}, {"type": type}) as consumers:
        monkeypatch.setattr(lab.queue, "search", failing_once)
        lab.queue.enqueue("job", id="a")
        errors = [consumer.exception(2 * PATIENT) for consumer in consumers]
        assert sorted(map(repr, errors)) == ["None", "QueueUnavailable('its connection was lost')"]
        (message,) = [consumer.result() for consumer, error in zip(consumers, errors, strict=True) if error is None]
        assert message is not None
        assert message.id == "a"


def test_consumer_of_an_invalid_type_is_refused_before_it_waits(lab: Lab) -> None:
    types: Any = ["job"]
    with waiting(lab, {}) as [consumer]:
        with pytest.raises(InvalidMessage, match="type"):
            lab.queue.dequeue(timeout=1, type=types)
        assert len(lab.arrivals._subscribers) == 1
        lab.queue.enqueue("job", id="a")
        message = consumer.result(PATIENT)
        assert message is not None


@pytest.mark.slow
def test_no_message_is_missed_at_any_time_of_arrival(lab: Lab) -> None:
    """The moments at which somebody begins to wait, and the reader stops, are hit often."""
    taken: list[str] = []
    is_over = threading.Event()

    def consume() -> None:
        while len(taken) < MOMENTS and not is_over.is_set():
            message = lab.queue.dequeue(timeout=random.choice([0.002, 2 * LATE]))
            if message is not None:
                taken.append(message.id)

    consumer = threading.Thread(target=consume)
    consumer.start()
    slowest = 0.0
    try:
        with paced() as pace:
            for number in range(MOMENTS):
                time.sleep(random.random() * 0.004)  # a moment that is not always the same
                sent = time.monotonic()
                lab.queue.enqueue("job", id=f"{number}")
                eventually(lambda: len(taken) > number, every=0.0005)  # noqa: B023
                slowest = max(slowest, time.monotonic() - sent)
    finally:
        is_over.set()  # or else it would take the messages of later tests
        consumer.join()

    assert taken == [f"{number}" for number in range(MOMENTS)]
    assert slowest < pace.allowed(LATE)


def test_waiting_consumers_survive_a_restart_of_the_server(
    kind: str, server_of: Callable[[str], Valkey], tmp_path: Path
) -> None:
    with type(server_of(kind))(tmp_path / "server") as server:
        with Lab(server.url) as lab:
            with waiting(lab, {}, {"type": "job"}) as consumers:
                server.kill()
                server.start()
                eventually(lambda: all(consumer.done() or is_blocked(lab) for consumer in consumers))
                for _ in consumers:
                    lab.queue.enqueue("job")
                for consumer in consumers:
                    try:
                        assert consumer.result(PATIENT) is not None
                    except QueueUnavailable:  # it looked again while the server was unavailable
                        assert lab.queue.dequeue(timeout=PATIENT) is not None


def test_unavailable_server_is_reported_immediately(
    kind: str, server_of: Callable[[str], Valkey], tmp_path: Path
) -> None:
    with type(server_of(kind))(tmp_path / "server") as server:
        with Lab(server.url) as lab:
            assert lab.queue.dequeue(timeout=0.01) is None
            server.kill()
            began = time.monotonic()
            with pytest.raises(QueueUnavailable):
                lab.queue.dequeue(timeout=PATIENT)
            with pytest.raises(QueueUnavailable):
                lab.queue.enqueue("job")
            assert time.monotonic() - began < PATIENT


def test_waiting_consumers_try_again_after_the_reader_lost_its_connection() -> None:
    def connect() -> NoReturn:
        raise redis.ConnectionError("refused")

    arrivals = arrivals_module.ArrivalNotifier(connect, ["q"])
    for type in (None, "job"):
        assert arrivals.subscribe(type).result(PATIENT) == type


@pytest.mark.parametrize("timeout", [-1, 61, float("nan"), "5", None])
def test_invalid_timeout_is_refused(lab: Lab, timeout: Any) -> None:
    with pytest.raises(InvalidMessage) as refusal:
        lab.queue.dequeue(timeout=timeout)
    assert refusal.value.field == "timeout"


def test_server_that_became_a_replica_is_unavailable(
    kind: str, server_of: Callable[[str], Valkey], tmp_path: Path
) -> None:
    with type(server_of(kind))(tmp_path / "server") as server, Lab(server.url) as lab:
        lab.queue.enqueue("job", id="before")
        lab.client.replicaof(LOOPBACK, "1")
        with pytest.raises(QueueUnavailable, match=r"refused .*read only"):
            lab.queue.enqueue("job")
        with pytest.raises(QueueUnavailable, match=r"refused .*read only"):
            lab.queue.dequeue(timeout=PATIENT)
        lab.client.replicaof("NO", "ONE")
        assert lab.take().id == "before"
