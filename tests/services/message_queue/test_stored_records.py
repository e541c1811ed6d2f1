"""How records and type indexes are stored: small while a message waits, and readable as release 0.1 wrote them."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from services.message_queue import Message, NewMessage
from tests.services.message_queue.message_lab import Lab


def enqueue_as_release_0_1(lab: Lab, id: str, *, type: str = "job", priority: int = 0) -> None:
    stream = f"q_p{priority}" if priority else "q"
    about = {"type": type, "priority": priority, "created_at": 1763846400.123}
    sid = lab.client.xadd(
        stream, {"data": json.dumps({"id": id, **about, "payload": 1}, separators=(",", ":"))}
    ).decode()
    lab.client.hset("q_metadata", id, json.dumps({"stream": stream, "sid": sid, **about, "attempt_count": 0}))
    lab.client.zadd(f"q:type:{type}", {"-".join(part.zfill(20) for part in sid.split("-")) + f":{id}": -priority})


def test_waiting_message_needs_less_than_400_bytes(lab: Lab, kind: str, figure: Callable[[str], None]) -> None:
    count = 20_000
    for _ in range(0, count, 500):
        lab.queue.enqueue_batch([NewMessage(type="send_mail", payload="x" * 71, priority=n % 4) for n in range(500)])

    each = sum(lab.client.memory_usage(key, samples=0) or 0 for key in lab.client.scan_iter()) / count
    figure(f"message queue on {kind}: {each:.0f} bytes for a waiting message of 73 bytes")
    assert each <= 400


def test_first_consumer_of_a_type_gets_earlier_messages(lab: Lab) -> None:
    for number in range(250):
        lab.queue.enqueue("other", id=f"other-{number}", priority=number % 4)
    for number in range(3):
        lab.queue.enqueue("job", id=f"job-{number}", priority=number)
    assert not lab.client.exists("q:type:job")

    received: list[Message] = []
    while len(received) < 3:  # on a busy machine one dequeue may not get so far
        received += lab.queue.receive_many(10, type="job")

    assert [message.id for message in received] == ["job-2", "job-1", "job-0"]
    assert lab.client.zcard("q:type:other") == 250
    lab.queue.enqueue("job", id="later")
    assert lab.take(type="job").id == "later"


def test_requeued_message_is_delivered_to_a_later_consumer_of_its_type(lab: Lab) -> None:
    lab.queue.enqueue("job", id="a")
    lab.queue.nack("a", lab.take().lock_token)

    assert lab.take(type="job").id == "a"


@pytest.mark.parametrize("type", [None, "job"])
def test_messages_of_release_0_1_are_received_and_leave_nothing(lab: Lab, type: str | None) -> None:
    enqueue_as_release_0_1(lab, "a")
    enqueue_as_release_0_1(lab, "b", priority=2)
    lab.queue.enqueue("job", id="c")

    for id in ("b", "a", "c"):
        message = lab.take(type=type)
        assert (message.id, message.attempt) == (id, 1)
        lab.queue.ack(id, message.lock_token)

    assert not lab.client.exists("q:type:job", "q:deadlines")


def test_message_of_release_0_1_is_found_changed_and_deleted(lab: Lab) -> None:
    enqueue_as_release_0_1(lab, "a")
    enqueue_as_release_0_1(lab, "b")
    assert lab.ids("main") == ["b", "a"]
    lab.contents.update("a", {"priority": 1})
    assert lab.contents.delete(["b"]) == {"b": "DELETED"}
    assert lab.queue.enqueue_batch([NewMessage(type="job", id="a")])[0].is_new is False
    assert lab.take().id == "a"


def test_many_messages_are_received_and_acknowledged_in_one_script_each(lab: Lab) -> None:
    ids = [lab.queue.enqueue("job", number, priority=number % 4, id=f"m{number}") for number in range(120)]
    expected = sorted(ids, key=lambda id: (-(int(id[1:]) % 4), int(id[1:])))
    lab.queue.receive_many(1)
    lab.client.config_resetstat()

    received = lab.queue.receive_many(100, consumer_id="worker")
    assert [message.id for message in received] == expected[1:101]
    assert len({message.lock_token for message in received}) == 100
    assert lab.commands()["evalsha"] == 1
    assert len(lab.queue.receive_many(100)) == 19
    assert lab.queue.receive_many(100) == []

    locks = [(message.id, message.lock_token) for message in received]
    assert lab.queue.ack_many([*locks[:50], ("m1", "wrong"), locks[0]]) == [True] * 50 + [False, False]
    assert lab.queue.ack_many(locks) == [False] * 50 + [True] * 50
    assert lab.contents.counts().acknowledged == lab.contents.counts().total_acknowledged == 100
    assert lab.contents.counts().processing == 20
    assert lab.ids("acknowledged") == [id for id, _ in reversed(locks)]


def test_a_message_that_is_acknowledged_twice_in_one_call_counts_once(lab: Lab) -> None:
    lab.queue.enqueue_batch([NewMessage(type="job", id=id) for id in ("a", "b")])
    first, second = [(message.id, message.lock_token) for message in lab.queue.receive_many(2)]

    assert lab.queue.ack_many([first, second, first]) == [True, True, False]

    assert lab.contents.counts().total_acknowledged == 2
    assert lab.ids("acknowledged") == ["b", "a"]
    assert sorted(lab.client.hkeys("q_metadata")) == [b"a", b"b"]
    acknowledged = [event for event in map(json.loads, lab.events()) if "acknowledge" in event.values()]
    assert [event["payload"]["ids"] for event in acknowledged] == [["a", "b"]]


def test_a_message_that_another_program_requeued_without_its_record_is_lost_to_its_consumer(lab: Lab) -> None:
    lab.queue.enqueue("job", id="a")
    [message] = lab.queue.receive_many(1)
    for stream in lab.client.scan_iter("q*", _type="stream"):  # as the sweeper of Relay takes an entry away
        for group in lab.client.xinfo_groups(stream):
            for one in lab.client.xpending_range(stream, group["name"], "-", "+", 10):
                lab.client.xack(stream, group["name"], one["message_id"])
                lab.client.xdel(stream, one["message_id"])

    assert lab.queue.ack_many([(message.id, message.lock_token)]) == [False]
    assert lab.contents.counts().total_acknowledged == 0


def test_acknowledging_many_keeps_the_last_100_and_forgets_the_others(lab: Lab) -> None:
    lab.queue.enqueue_batch([NewMessage(type="job", id=f"m{number}") for number in range(250)])
    for _ in range(3):
        received = lab.queue.receive_many(100)
        lab.queue.ack_many([(message.id, message.lock_token) for message in received])

    assert lab.ids("acknowledged") == [f"m{number}" for number in range(249, 149, -1)]
    assert lab.client.hlen("q_metadata") == 100


def test_message_that_another_program_added_again_keeps_its_record_when_its_earlier_ack_is_forgotten(lab: Lab) -> None:
    for number in range(100):
        lab.queue.enqueue("job", id=f"m{number}")
        lab.queue.ack(f"m{number}", lab.take().lock_token)
    added = {"data": '{"id":"m0","type":"job","priority":0,"created_at":1,"payload":1}'}
    record = b'{"at":"0:%b"}' % lab.client.xadd("q", added)
    lab.client.hset("q_metadata", "m0", record)
    lab.queue.enqueue("job", id="last", priority=1)
    lab.queue.ack("last", lab.take().lock_token)

    assert lab.client.hget("q_metadata", "m0") == record
    assert lab.ids("acknowledged")[-1] == "m1"


@pytest.mark.slow
def test_receiving_many_large_messages_stops_early(lab: Lab) -> None:
    for _ in range(20):
        lab.queue.enqueue("job", "x" * 300_000)

    received = lab.queue.receive_many(100)

    assert 0 < len(received) < 20
    assert lab.contents.counts().processing == len(received)
