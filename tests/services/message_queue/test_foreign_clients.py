"""Foreign producers and consumers of the same streams: none of their messages is lost or blocks the queue."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from dev.servers import Valkey
from queue_manager.core.clock import seconds
from services.message_queue import Filter, InvalidMessage, LockLost, Message, MessageState
from services.message_queue.browser import SORT_FIELDS_BY_STATE
from tests.services.message_queue.message_lab import Lab

THEIRS = {"id": "theirs", "type": "job", "payload": {"n": [1.5, {}]}, "priority": 0, "created_at": 1704067200.25}


def data(**changes: Any) -> str:
    """Return a message as another producer writes it; `...` takes a member out."""
    return json.dumps({name: value for name, value in {**THEIRS, **changes}.items() if value is not ...})


def take_as_another(lab: Lab, stream: str = "q") -> bytes:
    """Take the next entry as a consumer of another kind, and return where it is."""
    for _ in range(2):
        try:
            answer = lab.client.xreadgroup("q_group", "another", {stream: ">"}, count=1)
            pairs = answer.items() if isinstance(answer, dict) else answer
            [(_, entries)] = pairs
            # The newer protocol has one more list around the entries of each stream.
            first = entries[0][0] if isinstance(entries[0], list) else entries[0]
            return bytes(first[0])
        except Exception as error:
            if "NOGROUP" not in str(error):
                raise
            lab.client.xgroup_create(stream, "q_group", "0", mkstream=True)
    raise AssertionError("there is no group")


# Producers


@pytest.mark.parametrize(
    "written",
    [
        data(),
        json.dumps(dict(reversed(THEIRS.items()))),
        data(trace="x", tags=[], nested={"id": "not me"}),
        data(custom_ack_timeout=None, custom_max_attempts=None, last_error=None, created_at=None),
        data(custom_ack_timeout="7", custom_max_attempts="2"),
        data(created_at=..., priority=..., payload=...),
        data(created_at="yesterday", priority="high", type=7),
        data(custom_ack_timeout=-1, custom_max_attempts=0, attempt_count=-7),
        data(custom_ack_timeout=1e300, attempt_count=1e300),
        data(custom_ack_timeout=999_999_999_999_999),
        data(custom_ack_timeout=[1], attempt_count={"a": 1}),
        " " + data().replace(":", " : "),
        data(payload="\ud83d\ude00 \x7f"),
        '{"id":"theirs","type":"job","n":' + "9" * 5000 + "}",
        '{"id":"theirs","id":"theirs","type":"job"}',
        '{"id":"first","type":"job","id":"theirs"}',
    ],
)
def test_message_of_another_producer_is_delivered_and_acknowledged(lab: Lab, written: str) -> None:
    lab.client.xadd("q", {"data": written})
    assert len(lab.contents.list("main").messages) == 1

    message = lab.take()

    assert message.fields["_stream_name"] == "q"
    assert message.attempt >= 0
    lab.queue.touch(message.id, message.lock_token)
    assert lab.contents.list("processing").messages[0].id == message.id
    lab.queue.nack(message.id, message.lock_token)
    lab.contents.replay([message.id])
    message = lab.take()
    lab.queue.ack(message.id, message.lock_token)
    assert lab.ids("acknowledged") == [message.id]
    assert lab.contents.counts().main == 0
    assert lab.client.hkeys("q_metadata") == [message.id.encode()]


def test_options_of_another_producer_are_used(lab: Lab) -> None:
    written = data(id="a", custom_ack_timeout=7, custom_max_attempts=1, attempt_count=0)
    lab.client.xadd("q_p2", {"data": written})
    lab.client.xadd("q", {"data": data(id="b")})

    message = lab.take()

    assert (message.id, message.type, message.priority, message.attempt) == ("a", "job", 2, 1)
    assert message.fields["created_at"] == 1704067200.25
    assert message.deadline_at == pytest.approx(message.fields["dequeued_at"] + 7, abs=0.002)
    assert lab.queue.nack("a", message.lock_token) is False


def test_deadline_of_a_message_taken_by_a_service_whose_clock_is_ahead_counts_from_now(lab: Lab) -> None:
    lab.queue.enqueue("job", id="held")
    take_as_another(lab)
    lab.client.hset("q_metadata", "held", json.dumps({"attempt_count": 1, "dequeued_at": lab.now_ms() / 1000 + 3600}))

    assert lab.heal() == 1

    [held] = lab.everything("processing")
    assert held.deadline_at is not None
    assert held.deadline_at <= lab.now_ms() / 1000 + lab.ack_timeout.total_seconds()


@pytest.mark.parametrize("others", [0, 250])
def test_message_of_another_producer_is_found_by_its_type(lab: Lab, others: int) -> None:
    with lab.client.pipeline() as pipe:
        for number in range(others):
            pipe.xadd("q_p1", {"data": data(id=f"other-{number}", type="other")})
        pipe.xadd("q_p1", {"data": data(id="wanted", type="rare")})
        pipe.execute()

    assert lab.take(type="rare").id == "wanted"
    assert lab.queue.dequeue(type="rare") is None
    assert lab.contents.counts().main == others


def test_consumer_of_a_type_gets_messages_in_stream_order_from_all_producers(lab: Lab) -> None:
    for number in range(6):
        if number % 2:
            lab.queue.enqueue("job", id=f"{number}")
        else:
            lab.client.xadd("q", {"data": data(id=f"{number}")})

    assert [lab.take(type="job").id for _ in range(6)] == ["0", "1", "2", "3", "4", "5"]


# Consumers


def test_message_abandoned_by_another_consumer_is_requeued(lab: Lab) -> None:
    lab.queue.enqueue("job", id="a", ack_timeout=0.05)
    take_as_another(lab)
    assert lab.queue.dequeue() is None
    assert lab.sweeper.sweep().requeued == []
    lab.until_passed(lab.now_ms() + 60)  # its timeout

    assert lab.heal() == 1
    assert lab.ids("processing") == ["a"]
    assert lab.sweeper.sweep().requeued == ["a"]

    message = lab.take()
    assert (message.id, message.attempt, message.fields["last_error"]) == ("a", 2, "Processing timeout")


def test_message_held_by_another_consumer_is_moved_with_its_delivery(lab: Lab) -> None:
    lab.queue.enqueue("job", id="a")
    lab.client.xgroup_create("q", "q_group", "0")
    lab.client.xreadgroup("q_group", "another", {"q": ">"})
    assert lab.contents.move(["a"], to="dead") == {"a": "MOVED"}
    assert lab.pending("q") == []


def test_touch_begins_the_time_anew_that_other_consumers_count(lab: Lab) -> None:
    def times() -> tuple[float, float]:
        record = json.loads(lab.client.hget("q_metadata", "a") or "")
        return record["processing_started_at"], record["dequeued_at"]

    lab.queue.enqueue("job", id="a")
    message = lab.take()
    started_at, _ = times()
    lab.until_passed(lab.now_ms())
    lab.queue.touch("a", message.lock_token)
    assert times()[0] == started_at < times()[1]


def test_message_held_by_another_consumer_gets_one_deadline(lab: Lab) -> None:
    lab.client.xadd("q_p1", {"data": data(id="a", custom_ack_timeout=500)})
    take_as_another(lab, "q_p1")

    assert lab.heal() == 1
    [(id, deadline)] = lab.client.zrange("q:deadlines", 0, -1, withscores=True)
    assert id == b"a"
    assert lab.now_ms() + 490_000 < deadline <= lab.now_ms() + 500_000
    before = lab.dump()
    assert lab.heal() == 0
    assert {key: value for key, value in lab.dump().items() if key != b"q:healed"} == {
        key: value for key, value in before.items() if key != b"q:healed"
    }


def test_deadlines_and_lost_records_are_handled_with_many_messages_in_processing(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [f"{number}" for number in range(10)]
    for id in ids:
        lab.queue.enqueue("job", id=id)
        lab.take()
    lab.client.zrem("q:deadlines", ids[-1])
    lab.client.xadd("q_p1", {"data": data(id="other")})
    take_as_another(lab, "q_p1")
    lab.queue.enqueue("job", id="lost", priority=2)
    lab.client.delete("q_p2")

    seconds_passed = count()  # a second at each look at the clock: each call has time for three pages of a stream
    module = import_module("services.message_queue.other_programs")
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: next(seconds_passed)))
    monkeypatch.setattr(module, "PENDING_PAGE_SIZE", 1)

    def heal() -> int:
        lab.client.delete("q:healed")
        return lab.others.heal(budget=seconds(8))

    assert heal() == 1
    assert lab.client.zscore("q:deadlines", "other")
    assert not lab.client.hexists("q_metadata", "lost")
    assert sum(heal() for _ in range(3)) == 1
    assert lab.client.zscore("q:deadlines", ids[-1])


def test_type_index_does_not_deliver_messages_held_by_another_consumer(lab: Lab) -> None:
    lab.queue.enqueue("job", id="a")
    lab.queue.enqueue("job", id="b")
    take_as_another(lab)

    assert lab.take(type="job").id == "b"
    assert lab.queue.dequeue(type="job") is None


@pytest.mark.parametrize("is_healed", [True, False])
@pytest.mark.parametrize("is_record_deleted", [True, False])
def test_message_that_another_consumer_acknowledged_stays_done(
    lab: Lab, is_healed: bool, is_record_deleted: bool
) -> None:
    lab.queue.enqueue("job", id="a")
    sid = take_as_another(lab)
    if is_healed:
        assert lab.heal() == 1
        lab.lapse("a")
    lab.client.xack("q", "q_group", sid)
    lab.client.xdel("q", sid)
    if is_record_deleted:
        lab.client.hdel("q_metadata", "a")

    assert lab.sweeper.sweep().requeued == []
    assert lab.heal() == 0

    assert lab.queue.dequeue() is None
    assert lab.client.hlen("q_metadata") == 0
    assert lab.client.zcard("q:deadlines") == lab.client.scard("q:pending_ids") == 0


def test_type_index_drops_messages_taken_by_other_consumers(lab: Lab) -> None:
    for number in range(50):
        id = lab.queue.enqueue("job", priority=number % 2)
        sid = take_as_another(lab, lab.streams[number % 2])
        lab.client.xack(lab.streams[number % 2], "q_group", sid)
        lab.client.xdel(lab.streams[number % 2], sid)
        lab.client.hdel("q_metadata", id)

    assert lab.client.zcard("q:type:job") <= 2


def test_record_of_an_entry_deleted_while_held_is_removed(lab: Lab) -> None:
    lab.queue.enqueue("job", id="a")
    message = lab.take()
    lab.client.xdel("q", message.fields["_stream_id"])

    lab.heal()

    assert lab.pending("q") == []
    assert lab.contents.find("a") is None
    assert lab.queue.enqueue("job", id="a") == "a"
    assert lab.take().id == "a"


def test_ack_of_a_message_whose_entry_was_deleted_leaves_no_deadline(lab: Lab) -> None:
    lab.queue.enqueue("job", id="a")
    message = lab.take()
    lab.client.xdel("q", message.fields["_stream_id"])

    with pytest.raises(LockLost):
        lab.queue.ack("a", message.lock_token)

    assert (lab.client.zcard("q:deadlines"), lab.client.scard("q:pending_ids")) == (0, 0)


def test_touch_of_a_message_whose_group_was_deleted_is_refused(lab: Lab) -> None:
    lab.queue.enqueue("job", id="a")
    message = lab.take()
    lab.client.xgroup_destroy("q", "q_group")

    with pytest.raises(LockLost):
        lab.queue.touch("a", message.lock_token)


LEAVE_PROCESSING: dict[str, tuple[Callable[[Lab, Message], object], MessageState]] = {
    "ack": (lambda lab, held: lab.queue.ack(held.id, held.lock_token), "acknowledged"),
    "acks": (lambda lab, held: lab.queue.ack_many([(held.id, held.lock_token), ("b", None)]), "acknowledged"),
    "nack": (lambda lab, held: lab.queue.nack(held.id, held.lock_token), "main"),
    "move": (lambda lab, held: lab.contents.move([held.id], to="dead", reason="by hand"), "dead"),
    "sweep": (lambda lab, held: lab.sweeper.sweep(), "main"),
}


@pytest.mark.parametrize(
    ("key", "name"),
    [
        (key, name)
        for key in (":deadlines", ":pending_ids")
        for name in LEAVE_PROCESSING
        if (key, name) != (":deadlines", "sweep")
    ],
)
def test_key_of_another_type_does_not_keep_messages_in_processing(lab: Lab, key: str, name: str) -> None:
    act, place = LEAVE_PROCESSING[name]
    lab.queue.enqueue("job", id="a")
    held = lab.take()
    lab.lapse("a")
    lab.client.delete(lab.key(key))
    lab.client.lpush(lab.key(key), "of another program")

    act(lab, held)

    lab.client.delete(lab.key(key))
    states: tuple[MessageState, ...] = ("main", "processing", "dead", "acknowledged")
    assert {state: lab.ids(state) for state in states} == {state: ["a"] * (state == place) for state in states}
    assert lab.heal() == 0


# Messages that the group has passed over


def forget_parked(lab: Lab) -> None:
    lab.client.delete("q:parked:mail")


def forget_pauses(lab: Lab) -> None:
    lab.client.delete("q:pauses")


def rename_stream_and_back(lab: Lab) -> None:
    lab.client.rename("q", "elsewhere")
    lab.contents.resume(["mail"])
    assert lab.queue.dequeue() is None  # its messages are not parked any more
    lab.client.rename("elsewhere", "q")


@pytest.mark.parametrize("interfere", [forget_parked, forget_pauses, rename_stream_and_back])
@pytest.mark.parametrize("is_index_kept", [False, True])
def test_parked_messages_with_lost_index_entries_are_delivered(
    lab: Lab, interfere: Callable[[Lab], None], is_index_kept: bool
) -> None:
    if is_index_kept:
        lab.queue.dequeue(type="mail")
    for id in ("a", "b"):
        lab.queue.enqueue("mail", id=id)
    lab.contents.pause(["mail"], by="test")
    assert lab.queue.dequeue() is None
    interfere(lab)

    lab.heal()
    lab.heal()
    lab.contents.resume(["mail"])

    assert sorted(lab.ids("main")) == ["a", "b"]
    assert sorted([lab.take().id, lab.take().id]) == ["a", "b"]
    assert lab.queue.dequeue() is None


@pytest.mark.parametrize("wanted", [None, "job"])
def test_message_whose_consumer_was_deleted_from_the_group_is_received_again(lab: Lab, wanted: str | None) -> None:
    lab.queue.enqueue("job", {"n": 1}, 2, id="a")
    stream = lab.take(type=wanted).fields["_stream_name"]
    assert lab.client.xgroup_delconsumer(stream, "q_group", "queue-manager") == 1  # and what it has received
    lab.lapse("a")
    lab.sweeper.sweep()
    lab.heal()
    lab.heal()

    message = lab.take()
    assert (message.id, message.payload, message.fields["priority"], message.fields["attempt_count"]) == (
        "a",
        {"n": 1},
        2,
        2,
    )
    lab.queue.ack("a", message.lock_token)
    assert lab.contents.counts().main == lab.contents.counts().processing == 0


def test_message_is_received_again_also_behind_many_parked_ones(lab: Lab) -> None:
    lab.queue.enqueue_batch([{"type": "parked"} for _ in range(250)])
    lab.contents.pause(["parked"], by="test")
    lab.queue.enqueue("job", id="a")
    lab.take()
    lab.client.xgroup_delconsumer("q", "q_group", "queue-manager")
    lab.lapse("a")
    lab.sweeper.sweep()
    assert lab.queue.dequeue() is None
    for _ in range(2 * (250 // 100 + 1)):
        lab.client.delete("q:healed")
        lab.others.heal(budget=seconds(0))  # one slice of 100 entries
    assert lab.take().id == "a"


def test_entry_deleted_shortly_after_its_ack_stays_acknowledged(lab: Lab) -> None:
    lab.queue.enqueue("job", id="a")
    sid = take_as_another(lab)
    lab.client.xack("q", "q_group", sid)
    lab.heal()
    lab.client.xdel("q", sid)
    lab.heal()

    assert lab.queue.dequeue() is None
    assert lab.contents.counts().main == 0


def test_acknowledged_entries_kept_by_another_program_are_not_redelivered(lab: Lab) -> None:
    lab.client.xadd("q", {"data": data()})
    lab.client.xack("q", "q_group", take_as_another(lab))
    lab.heal()
    lab.heal()

    assert lab.queue.dequeue() is None
    assert lab.client.xlen("q") == 1


@pytest.mark.parametrize("created_at", [9e14, -9e14])
def test_impossible_time_becomes_now(lab: Lab, created_at: float) -> None:
    lab.client.xadd("q", {"data": json.dumps({"id": "a", "type": "job", "payload": 1, "created_at": created_at})})
    (listed,) = lab.everything("main")
    assert abs(listed.fields["created_at"] - lab.now_ms() / 1000) < 60
    assert lab.take().id == "a"


def test_requeue_of_another_worker_keeps_the_attempts(lab: Lab) -> None:
    """The seed's worker: SREM, XADD, XACK, XDEL; the record stays as it is."""
    lab.queue.enqueue("job", {"n": 1}, id="a")
    for _ in range(lab.max_attempts - 1):
        message = lab.take()
        [(_, fields)] = lab.client.xrange("q")
        lab.lapse("a")
        with lab.client.pipeline() as pipe:
            pipe.srem("q:pending_ids", "a")
            pipe.xadd("q", fields)
            pipe.xack("q", "q_group", message.fields["_stream_id"])
            pipe.xdel("q", message.fields["_stream_id"])
            pipe.execute()
        assert lab.sweeper.sweep().requeued == []

    message = lab.take()
    assert message.attempt == lab.max_attempts
    lab.lapse("a")
    assert lab.sweeper.sweep().dead_lettered == ["a"]
    assert lab.sweeper.sweep().dead_lettered == []
    assert lab.contents.counts().dead == 1
    assert not lab.client.exists("q:type:job")


@pytest.mark.parametrize("ends", [True, False], ids=["ends", "dies"])
def test_message_that_another_worker_has_half_requeued_is_received_once(lab: Lab, ends: bool) -> None:
    """The older service's pipeline is not a transaction."""
    lab.queue.enqueue("job", id="a")
    old = lab.take().fields["_stream_id"]
    [(_, fields)] = lab.client.xrange("q")
    lab.client.set("q:overdue_requeue_lock", "theirs", px=30_000)
    lab.client.srem("q:pending_ids", "a")
    lab.client.xadd("q", fields)
    message = lab.take()
    if ends:
        lab.client.xack("q", "q_group", old)
        lab.client.xdel("q", old)
    lab.client.delete("q:overdue_requeue_lock")

    assert (message.id, message.attempt) == ("a", 2)
    lab.queue.ack("a", message.lock_token)
    lab.heal()
    assert lab.queue.dequeue() is None
    assert lab.ids("dead") == []
    assert lab.ids("acknowledged") == ["a"]


def test_sweep_does_nothing_while_another_sweeper_holds_the_lock(lab: Lab) -> None:
    lab.queue.enqueue("job", id="a")
    lab.take()
    lab.lapse("a")
    lab.client.set("q:overdue_requeue_lock", "theirs", px=30_000)
    before = lab.dump()

    swept = lab.sweeper.sweep()

    assert swept.is_locked
    assert not swept.requeued
    assert lab.dump() == before
    lab.client.delete("q:overdue_requeue_lock")
    assert lab.sweeper.sweep().requeued == ["a"]


def test_deleted_consumer_group_loses_no_message(lab: Lab) -> None:
    for id in ("a", "b"):
        lab.queue.enqueue("job", id=id)
    message = lab.take()
    lab.client.xgroup_destroy("q", "q_group")
    lab.lapse(message.id)
    lab.sweeper.sweep()

    assert [lab.take().id, lab.take().id] == ["a", "b"]


# Records that others wrote

RECORDS = [
    b"",
    b"garbage",
    b"\xff\xfe",
    b"null",
    b"7",
    b'"text"',
    b"[]",
    b"[1,2]",
    b"{}",
    b'{"attempt_count":null,"custom_ack_timeout":null,"last_error":null}',
    b'{"attempt_count":"1","custom_ack_timeout":"30","custom_max_attempts":"5","dequeued_at":"1704067200"}',
    b'{"attempt_count":NaN,"custom_ack_timeout":NaN,"dequeued_at":NaN}',
    b'{"foo":NaN}',
    b'{"foo":{"bar":[NaN,-Infinity]}}',
    b'{"failed_at":NaN,"acknowledged_at":Infinity,"processing_started_at":NaN,"deadline_at":NaN}',
    b'{"failed_at":"x","acknowledged_at":{},"processing_started_at":[],"last_error":{"a":1},"consumer_id":7}',
    b'{"last_error":true,"lock_token":1,"history":"none"}',
    b'{"history":{"a":[]}}',
    b'{"history":[1,"x",null,{"attempt_count":"x","failed_at":{},"last_error":[]}]}',
    b'{"id":"another","payload":{"not":"mine"},"data":1,"_stream_id":5}',
    b'{"stream":"q:deadlines","sid":"1-1"}',
    b'{"stream":7,"sid":7}',
    b'{"stream":"q","sid":"garbage"}',
    b'{"stream":"q","sid":{}}',
    b'{"stream":"q_dlq","sid":"1-1"}',
    b'{"undecodable":true}',
    b'{"undecodable":"yes"}',
    b'{"priority":99,"type":[]}',
    b'{"priority":-1.5,"type":null}',
    b'{"deadline_at":1}',
    b'{"history":' + b"[" * 900 + b"]" * 900 + b"}",
    b'{"foo":' + b"[" * 900 + b"]" * 900 + b"}",
    b'{"foo":"' + b"\xff" * 20 + b'"}',
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record[:50].decode("latin-1"))
def test_malformed_record_of_another_program_does_not_stop_its_message(lab: Lab, record: bytes) -> None:
    """The message goes all the way, once as it is taken, once by its type, once as another's consumer took it."""
    for way in ("any", "type", "healed"):
        id = f"of-{way}"
        lab.client.xadd("q", {"data": data(id=id)})
        lab.client.hset("q_metadata", id, record)
        lab.contents.list("main", sort_by="priority", where=Filter(search="o"))
        assert lab.ids("main") == [id]
        assert lab.contents.find(id) is not None  # what is seen can be acted on
        if way == "healed":
            take_as_another(lab)
            lab.heal()
        else:
            message = lab.take(type="job" if way == "type" else None)
            assert message.id == id
            assert message.payload == THEIRS["payload"]
        lab.lapse(id)
        swept = lab.sweeper.sweep()
        assert [*swept.requeued, *swept.dead_lettered] == [id]
        lab.contents.move([id], to="dead")
        lab.contents.list("dead", sort_by="failed_at", where=Filter(search="o"))
        assert lab.contents.replay([id]) == {id: "MOVED"}
        message = lab.take()
        assert (message.id, message.attempt) == (id, 1)
        lab.queue.ack(id, message.lock_token)
        assert lab.ids("acknowledged") == [id]
        lab.clear()
        assert lab.client.hlen("q_metadata") == 0


@pytest.mark.parametrize("character", ["\x80", "\x85", "\x9f", "\u2028", "\u2029"])
def test_types_with_invisible_controls_are_read_and_not_written(lab: Lab, character: str) -> None:
    type = f"job{character}"
    lab.client.xadd("q", {"data": data(id="theirs", type=type)})
    message = lab.take(type=type)
    assert (message.id, message.type) == ("theirs", type)
    lab.queue.nack("theirs", message.lock_token)
    lab.contents.update("theirs", {"priority": 1})
    with pytest.raises(InvalidMessage, match=r"^type: must be a string without control characters and line separators"):
        lab.contents.update("theirs", {"type": type})
    with pytest.raises(InvalidMessage, match=r"^type: must be a string without control characters and line separators"):
        lab.queue.enqueue(type)


# Entries that are no messages

NO_MESSAGES: dict[str, dict[Any, Any]] = {
    "garbage": {"data": "garbage"},
    "bytes": {"data": b"\x00\xff\xfe"},
    "empty": {"data": ""},
    "null": {"data": "null"},
    "list": {"data": '[{"id":"a"}]'},
    "text": {"data": '"{}"'},
    "no id": {"data": data(id=...)},
    "id is a number": {"data": data(id=7)},
    "id is null": {"data": data(id=None)},
    "id is empty": {"data": data(id="")},
    "id is long": {"data": data(id="x" * 257)},
    "id has control characters": {"data": data(id="a\nb")},
    "id is half a pair": {"data": data(id="\ud800")},
    "cut off": {"data": '{"id":"a","type":"job","payload":'},
    "more behind": {"data": data() + "}"},
    "NaN": {"data": data(payload=float("nan"))},
    "no UTF-8 in the payload": {"data": b'{"id":"a","payload":"\xff"}'},
    "no UTF-8 in the id": {"data": b'{"id":"a\xff","payload":1}'},
    "nested": {"data": '{"id":"a","payload":' + "[" * 2000 + "]" * 2000 + "}"},
    "nested less": {"data": '{"id":"a","payload":' + "[" * 990 + "]" * 990 + "}"},
    "single quotes": {"data": "{'id':'a'}"},
    "hexadecimal": {"data": '{"id":"a","payload":0x10}'},
    "no data": {"body": "x"},
    "no data but id": {"id": "live"},
    "bytes and no data": {b"\xff": b"\xfe\x00"},
}


@pytest.mark.parametrize("kind_of_taking", ["any", "type", "heal"])
@pytest.mark.parametrize("fields", NO_MESSAGES.values(), ids=NO_MESSAGES)
def test_malformed_entry_is_dead_lettered_and_does_not_block_others(
    lab: Lab, fields: dict[Any, Any], kind_of_taking: str
) -> None:
    lab.queue.enqueue("job", id="live")
    lab.client.xadd("q", fields)
    lab.queue.enqueue("job", id="next")

    if kind_of_taking == "any":
        assert [lab.take().id, lab.take().id] == ["live", "next"]
    elif kind_of_taking == "type":
        assert [lab.take(type="job").id, lab.take(type="job").id] == ["live", "next"]
    else:
        lab.take()
        take_as_another(lab)
        lab.heal()
        assert lab.take().id == "next"
    assert lab.queue.dequeue() is None
    lab.heal()
    for id in lab.ids("processing"):
        lab.lapse(id)
    lab.sweeper.sweep()
    while (message := lab.queue.dequeue()) is not None:
        lab.queue.ack(message.id, message.lock_token)

    assert sorted(lab.ids("acknowledged")) == ["live", "next"]
    [dead] = lab.contents.list("dead").messages
    assert dead.fields["last_error"] == "Undecodable message"
    assert dead.fields["undecodable"] is True
    assert dead.fields["failed_at"] == pytest.approx(lab.now_ms() / 1000, abs=60)
    [(_, kept)] = lab.client.xrange("q_dlq")
    if "data" in fields:
        raw = fields["data"]
        assert kept[b"data"] == (raw if isinstance(raw, bytes) else raw.encode())
    else:
        for text in (text for pair in fields.items() for text in pair if isinstance(text, str)):
            assert text.encode() in kept[b"data"]
    json.loads(dead.to_json())
    assert lab.contents.delete([dead.id]) == {dead.id: "DELETED"}
    assert lab.contents.counts().dead == 0


def test_undecodable_entry_can_be_archived_but_not_replayed(lab: Lab) -> None:
    lab.client.xadd("q", {"data": "garbage"})
    assert lab.queue.dequeue() is None
    [id] = lab.ids("dead")

    assert lab.contents.replay([id]) == {id: "UNDECODABLE"}
    assert lab.contents.move([id], to="archived") == {id: "MOVED"}
    assert lab.ids("archived") == [id]
    assert lab.ids("dead") == []
    for _ in range(2):
        assert lab.contents.move([id], to="acknowledged") == {id: "MOVED"}
        assert lab.contents.move([id], to="dead") == {id: "MOVED"}
    [(_, fields)] = lab.client.xrange("q_dlq")
    assert fields == {b"data": b"garbage", b"id": id.encode()}


@pytest.mark.parametrize("stream", ["q", "q_p2", "q_dlq", "q_archived"])
def test_malformed_entry_can_be_found_moved_deleted_and_restored(lab: Lab, stream: str) -> None:
    place: Any = {"q_dlq": "dead", "q_archived": "archived"}.get(stream, "main")
    lab.client.xadd(stream, {"data": "garbage"})
    [listed] = lab.everything(place)
    assert lab.ids(place) == [listed.id]
    assert lab.contents.find(listed.id) == listed
    kept: list[Any] = []

    def keep(copies: Any) -> Any:
        kept.extend(copies)
        return kept.__delitem__

    assert lab.contents.delete([listed.id], source=place, keep=keep) == {listed.id: "DELETED"}
    assert lab.client.xlen(stream) == lab.client.hlen("q_metadata") == 0
    assert lab.contents.restore(kept) == 1
    assert lab.ids(place) == [listed.id]
    assert lab.queue.dequeue() is None
    assert lab.contents.move([listed.id], to="acknowledged") == {listed.id: "MOVED"}
    assert lab.everything("acknowledged")[0].payload == "garbage"


@pytest.mark.parametrize("where", ["main", "processing", "dead", "acknowledged", "archived"])
def test_second_message_with_the_same_id_is_dead_lettered_separately(lab: Lab, where: Any) -> None:
    lab.queue.enqueue("job", "first", id="twin")
    if where == "processing":
        lab.take()
    elif where != "main":
        lab.contents.move(["twin"], to=where)
    lab.client.xadd("q_p1", {"data": data(id="twin", payload="second")})

    message = lab.queue.dequeue()

    assert (message is not None) == (where == "main")
    found = lab.contents.find("twin")
    assert found is not None
    assert found.payload == "first"
    dead = [message for message in lab.contents.list("dead").messages if message.id != "twin"]
    assert [message.fields["last_error"] for message in dead] == ["Duplicate id"]
    assert json.loads(json.loads(dead[0].payload_json))["payload"] == "second"
    lab.contents.move(["twin"], to="archived")
    assert lab.contents.counts().archived == 1


def test_one_of_two_new_messages_with_the_same_id_is_delivered(lab: Lab) -> None:
    for stream, payload in [("q_p1", "first"), ("q", "second"), ("q", "third")]:
        lab.client.xadd(stream, {"data": data(id="twin", payload=payload)})

    (message,) = lab.queue.receive_many(10)

    assert message.payload == "first"
    assert [dead.fields["last_error"] for dead in lab.contents.list("dead").messages] == ["Duplicate id"] * 2
    lab.queue.ack("twin", message.lock_token)


def test_message_whose_entry_was_deleted_is_added_again_also_if_a_batch_has_it_twice(lab: Lab) -> None:
    lab.queue.enqueue("job", id="a")
    lab.client.delete("q")

    added = lab.queue.enqueue_batch([{"type": "job", "id": "a"}] * 2)

    assert [one.is_new for one in added] == [True, False]
    assert lab.take().id == "a"


# Anything at all

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["a", "b", "live", "q", "1-1"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
SAID = (
    *("payload", "priority", "created_at", "custom_ack_timeout", "custom_max_attempts", "attempt_count"),
    *("stream", "sid", "history", "undecodable", "deadline_at", "lock_token", "last_error", "failed_at"),
)
almost_messages = st.fixed_dictionaries(
    {},
    optional={
        "id": st.sampled_from(["a", "b", "live"]) | json_values,
        "type": st.sampled_from(["job", "other"]) | json_values,
        **dict.fromkeys(SAID, json_values),
    },
)
any_data = st.binary(max_size=30) | st.one_of(almost_messages, json_values).map(
    lambda value: json.dumps(value).encode()
)
any_fields = st.dictionaries(
    st.sampled_from([b"data", b"data", b"id", b"x"]) | st.binary(max_size=4), any_data, min_size=1, max_size=3
)
entries = st.tuples(st.sampled_from(["q", "q_p1", "q_p3", "q_dlq", "q_acknowledged", "q_archived"]), any_fields)
ids = st.sampled_from([b"a", b"b", b"live"]) | st.binary(min_size=1, max_size=4)
records = st.dictionaries(ids, any_data, max_size=3)
STREAMS = ("q", "q_p1", "q_p2", "q_p3", "q_typed", "q_dlq", "q_acknowledged", "q_archived")


def stored(lab: Lab) -> int:
    return sum(lab.client.xlen(stream) for stream in STREAMS)


def look_everywhere(lab: Lab) -> None:
    """Read every page and sort it in every way."""
    for place, fields in SORT_FIELDS_BY_STATE.items():
        for sort_by in (None, *fields):
            page = lab.contents.list(place, limit=1000, sort_by=sort_by, where=Filter(since=0.0))
            for message in page.messages:
                json.loads(message.to_json(), parse_int=str)
    lab.contents.counts()


def fuzz(lab: Lab, examples: int) -> None:
    @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(entries=st.lists(entries, max_size=8), records=records, types=st.booleans(), theirs=st.integers(0, 3))
    @example(entries=[("q", {b"data": b'{"id":"\xff"}'})], records={}, types=False, theirs=0)
    def check(
        entries: list[tuple[str, dict[bytes, bytes]]], records: dict[bytes, bytes], types: bool, theirs: int
    ) -> None:
        lab.client.flushall()
        lab.queue.enqueue("job", id="live")
        for stream, fields in entries:
            lab.client.xadd(stream, fields)
        for id, text in records.items():
            lab.client.hset("q_metadata", id, text)
        count = stored(lab)

        for _ in range(theirs):
            if lab.client.exists("q") and not is_drained(lab, "q"):
                take_as_another(lab)
        look_everywhere(lab)
        held = []
        while types and (message := lab.queue.dequeue(type="job")) is not None:
            held.append(message)
        while (message := lab.queue.dequeue()) is not None:
            held.append(message)
        assert stored(lab) == count
        look_everywhere(lab)
        lab.heal()
        for id, _ in lab.client.zrange("q:deadlines", 0, -1, withscores=True)[::2]:
            lab.client.zadd("q:deadlines", {id: 1}, xx=True)
        lab.sweeper.sweep()
        assert stored(lab) == count
        for message in held[:2]:
            lab.contents.move([message.id], to="archived")
        for message in lab.contents.list("dead", limit=1000).messages:
            with suppress(InvalidMessage):  # others may have given it an id that is none
                lab.contents.replay([message.id])
        assert stored(lab) == count
        look_everywhere(lab)
        while lab.queue.dequeue() is not None:
            pass
        lab.heal()
        assert stored(lab) == count
        held_in = {stream: lab.client.xlen(stream) for stream in (*lab.streams, "q_typed")}
        assert {stream: len(lab.pending(stream)) for stream in held_in} == held_in
        assert lab.client.zcard("q:deadlines") == sum(held_in.values())

    check()


def is_drained(lab: Lab, stream: str) -> bool:
    end = lab.client.xinfo_stream(stream)["last-generated-id"]
    return any(group["last-delivered-id"] == end for group in lab.client.xinfo_groups(stream))


@pytest.mark.slow
def test_arbitrary_foreign_entries_are_not_lost_and_do_not_stop_the_queue(server: Valkey) -> None:
    with Lab(server.url) as lab:
        fuzz(lab, examples=30)


@pytest.mark.stress
@pytest.mark.timeout(1800)
def test_arbitrary_foreign_entries_are_not_lost_and_do_not_stop_the_queue_in_many_tries(
    server: Valkey, figure: Callable[[str], None], kind: str
) -> None:
    with Lab(server.url) as lab:
        fuzz(lab, examples=5_000)
    figure(f"message queue on {kind}: 5,000 lists of any entries and records, nothing lost")


def test_id_of_a_message_finished_by_another_consumer_can_be_used_again(lab: Lab) -> None:
    lab.queue.enqueue("job", 1, id="again")
    sid = take_as_another(lab)
    lab.client.xack("q", "q_group", sid)
    lab.client.xdel("q", sid)
    lab.queue.enqueue("job", 2, id="again")
    assert lab.take().payload == 2


@pytest.mark.parametrize("record", [b"garbage", b"{}", b'{"attempt_count":1,"dequeued_at":1704067200}'])
def test_id_with_only_a_leftover_record_can_be_used_again(lab: Lab, record: bytes) -> None:
    lab.client.hset("q_metadata", "again", record)

    added = lab.queue.enqueue_batch([{"type": "job", "id": "again"}] * 2)

    assert [one.is_new for one in added] == [True, False]
    assert lab.take().id == "again"


def test_id_of_a_message_held_by_another_consumer_cannot_be_used_again(lab: Lab) -> None:
    lab.queue.enqueue("job", id="held")
    take_as_another(lab)
    lab.client.hset("q_metadata", "held", json.dumps({"attempt_count": 1, "dequeued_at": lab.now_ms() / 1000}))

    (added,) = lab.queue.enqueue_batch([{"type": "job", "id": "held"}])

    assert not added.is_new
    assert lab.heal() == 1
    assert lab.ids("processing") == ["held"]
