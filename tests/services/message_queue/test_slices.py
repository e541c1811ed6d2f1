"""Operations on many messages run in slices: no script blocks the other clients of the server."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import pytest
import redis

from queue_manager.core.redis_client import CLIENT_OPTIONS
from services.message_queue import Filter, InvalidMessage, LockLost, MessageState, MessageTooLarge, NewMessage
from services.message_queue.fields import MAX_ENQUEUED_MESSAGES
from services.message_queue.operations import MAX_ENQUEUED_BYTES
from tests.services.message_queue.message_lab import Lab

pytestmark = pytest.mark.scale

MANY = 100_000
MAX_HANDLED = 100
MAX_INDEXED_TYPES = 100
SOME, TOO_MANY = 300, 1_000
"""Messages that need several slices when they are changed, and when they are read."""
LARGE = 300_000
"""Bytes of a payload of which four are a slice."""


def enqueue(lab: Lab, count: int, payload: str = "") -> list[str]:
    ids = [f"{number:06}" for number in range(count)]
    at_once = 500 if len(payload) < 1000 else 1
    for begin in range(0, count, at_once):
        lab.queue.enqueue_batch(
            [
                NewMessage(type="job", id=id, payload=payload, priority=int(id) % lab.levels)
                for id in ids[begin : begin + at_once]
            ]
        )
    return ids


def cleared_per_script(lab: Lab) -> list[int]:
    events = [json.loads(event) for event in lab.events()]
    return [event["payload"]["count"] for event in events if event["type"] == "clear"]


@pytest.mark.smoke
def test_clear_of_100_000_does_not_block_other_clients(lab: Lab, figure: Callable[[str], None], kind: str) -> None:
    assert lab.queue.dequeue(type="job") is None  # from now on type indexes are kept
    enqueue(lab, MANY)
    lab.client.config_set("slowlog-log-slower-than", 1_000)
    lab.client.config_set("slowlog-max-len", 1_000)
    lab.client.slowlog_reset()
    is_over = Event()
    added: list[str] = []

    def work() -> int:
        pings = 0
        with redis.Redis.from_url(lab.url, **CLIENT_OPTIONS) as other:
            while not is_over.is_set():
                other.ping()
                pings += 1
                if pings % 10 == 1:
                    added.append(lab.queue.enqueue("job", priority=pings % lab.levels))
        return pings

    slices = lab.contents.clear_in_batches("main")
    cleared = next(slices)  # from now on nothing that is added may be deleted
    with ThreadPoolExecutor(1) as thread:
        pings = thread.submit(work)
        try:
            cleared += sum(slices)
        finally:
            is_over.set()

    slowest = max((entry["duration"] for entry in lab.client.slowlog_get(1_000)), default=0)
    figure(
        f"message queue on {kind}: {MANY:,} messages cleared while another client sent {pings.result():,} pings; "
        f"slowest command of the server {slowest / 1000:.1f} ms"
    )
    assert cleared == MANY
    assert max(cleared_per_script(lab)) <= MAX_HANDLED + 7  # it reads up to 8 entries at once
    assert pings.result() > 20  # and none took the 5 s at which a client gives up
    assert sorted(lab.ids("main")) == sorted(added)
    assert lab.client.hlen(lab.key("_metadata")) == lab.client.zcard(lab.key(":type:job")) == len(added)


# What comes while a place is cleared


@pytest.mark.parametrize("place", ["main", None])
def test_message_enqueued_or_taken_during_a_clear_is_kept(lab: Lab, place: MessageState | None) -> None:
    enqueue(lab, SOME)

    slices = lab.contents.clear_in_batches(place)
    cleared = next(slices)
    new = lab.queue.enqueue("job", priority=0)
    taken = lab.take(type="job")
    cleared += sum(slices)

    assert cleared == SOME - 1
    assert lab.ids("main") == [new]
    lab.queue.ack(taken.id, taken.lock_token)
    assert lab.ids("acknowledged") == [taken.id]


@pytest.mark.parametrize("place", ["main", "processing", "dead", None])
def test_message_enqueued_during_an_undoable_clear_is_kept(lab: Lab, place: MessageState | None) -> None:
    with Lab(lab.url, levels=3) as lower:  # so that what comes with priority 3 is taken first
        enqueue(lower, SOME)
    old = lab.ids("main")
    lab.until_passed(lab.now_ms())  # they are older than what comes, by the milliseconds that Redis counts

    slices = lab.contents.clear_in_batches(place, keep=lambda copies: lambda kept: None)
    next(slices, None)
    new = [lab.queue.enqueue("job", priority=priority) for priority in (3, 2, 2)]
    taken = lab.take()
    assert taken.id == new[0]
    lab.contents.move([new[1]], to="dead")
    sum(slices)

    assert [lab.ids("main"), lab.ids("dead")] == [[new[2], *(old if place in ("processing", "dead") else [])], [new[1]]]
    lab.queue.ack(taken.id, taken.lock_token)


def test_message_taken_while_processing_is_cleared_is_kept(lab: Lab) -> None:
    enqueue(lab, SOME + 1)
    held = [lab.take() for _ in range(SOME)]

    slices = lab.contents.clear_in_batches("processing")
    cleared = next(slices)
    taken = lab.take()
    cleared += sum(slices)

    assert cleared == SOME
    with pytest.raises(LockLost):
        lab.queue.ack(held[0].id, held[0].lock_token)
    lab.queue.ack(taken.id, taken.lock_token)
    assert lab.contents.counts().processing == 0


def test_dead_letter_added_during_a_clear_is_kept(lab: Lab) -> None:
    ids = enqueue(lab, SOME)
    lab.contents.move(ids[1:], to="dead")

    slices = lab.contents.clear_in_batches("dead")
    cleared = next(slices)
    lab.contents.move(ids[:1], to="dead")
    cleared += sum(slices)

    assert cleared == SOME - 1
    assert lab.ids("dead") == ids[:1]


@pytest.mark.parametrize("place", ["main", "processing", "dead"])
def test_interrupted_clear_leaves_a_working_queue_and_can_be_continued(lab: Lab, place: MessageState) -> None:
    ids = enqueue(lab, SOME)
    if place == "dead":
        lab.contents.move(ids, to="dead")
    elif place == "processing":
        for _ in ids:
            lab.take()

    slices = lab.contents.clear_in_batches(place)
    assert isinstance(slices, Generator)
    cleared = next(slices)
    slices.close()

    left = SOME - cleared
    assert 0 < left < SOME
    assert lab.contents.counts().of(place) == len(lab.ids(place)) == lab.client.hlen(lab.key("_metadata")) == left
    assert set(lab.contents.replay(ids).values()) == ({"MOVED", "NOT_FOUND"} if place == "dead" else {"NOT_FOUND"})
    if place == "dead":
        place = "main"
    assert lab.clear(place) == left
    assert lab.clear() == 0
    assert lab.client.hlen(lab.key("_metadata")) == lab.client.zcard(lab.key(":deadlines")) == 0


# How much one script does

Act = Callable[[Lab, list[str]], int]


def sweep(lab: Lab, ids: list[str]) -> int:
    for _ in ids:
        lab.take()
    lab.client.zadd(lab.key(":deadlines"), dict.fromkeys(ids, 1.0))
    lab.client.config_resetstat()
    return len(lab.sweeper.sweep().requeued)


def heal(lab: Lab, ids: list[str]) -> int:
    for _ in ids:
        lab.take()
    lab.client.delete(lab.key(":deadlines"))
    lab.client.config_resetstat()
    return lab.heal()


def forget_lost(lab: Lab, ids: list[str]) -> int:
    for stream in lab.streams:
        lab.client.xtrim(stream, maxlen=0, approximate=False)
    lab.client.config_resetstat()
    lab.heal()
    return len(ids) - lab.client.hlen(lab.key("_metadata"))


def replay(lab: Lab, ids: list[str]) -> int:
    lab.contents.move(ids, to="dead")
    lab.client.config_resetstat()
    *_, replayed = lab.contents.replay_matching(Filter(type="job"))
    return replayed.moved


def delete_range(lab: Lab, _: list[str]) -> int:
    found = [*lab.contents.delete_matching(["main"], Filter(since=0.0))][-1]
    return found.deleted["main"]


def archive(lab: Lab, ids: list[str]) -> int:
    return list(lab.contents.move(ids, to="archived").values()).count("MOVED")


def add_as_another(lab: Lab, to: str) -> None:
    """Delete the messages, and add their entries again as another program does."""
    entries = [fields for stream in lab.streams for _, fields in lab.client.xrange(stream)]
    lab.clear()
    for fields in entries:
        lab.client.xadd(to, fields)
    lab.client.config_resetstat()


def drain(lab: Lab, _: list[str]) -> int:
    add_as_another(lab, "q_manual")
    lab.heal()
    return lab.contents.counts().main


def adopt(lab: Lab, _: list[str]) -> int:
    add_as_another(lab, "q_dlq")
    lab.others.adopt()
    return int(lab.client.hlen("q_metadata"))


OPERATIONS: dict[str, Act] = {
    "drain": drain,
    "adopt": adopt,
    "export": lambda lab, _: sum(len(page) for page in lab.contents.export("main")),
    "delete a date range": delete_range,
    "move": archive,
    "delete": lambda lab, ids: list(lab.contents.delete(ids).values()).count("DELETED"),
    "replay": replay,
    "sweep": sweep,
    "heal": heal,
    "forget lost": forget_lost,
    "clear": lambda lab, _: lab.clear(),
    "locate": lambda lab, ids: len(list(lab.contents.locate(ids))),
    "list": lambda lab, _: len(lab.contents.list("main", limit=1000).messages),
    "count": lambda lab, _: lab.contents.count("main", Filter(search="job")).count,
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_many_messages_need_several_scripts(lab: Lab, name: str, kind: str, figure: Callable[[str], None]) -> None:
    with Lab(lab.url, batch=10_000) as lab:
        ids = enqueue(lab, TOO_MANY)
        log_all_commands(lab)
        lab.client.config_resetstat()

        assert OPERATIONS[name](lab, ids) == TOO_MANY
        assert lab.commands()["evalsha"] >= (2 if name in ("list", "count") else 3)
        figure(f"message queue on {kind}: {name} of {TOO_MANY:,} messages, slowest script {slowest_script(lab):.1f} ms")


def log_all_commands(lab: Lab) -> None:
    lab.client.config_set("slowlog-log-slower-than", 0)
    lab.client.config_set("slowlog-max-len", 10_000)
    lab.client.slowlog_reset()


def slowest_script(lab: Lab) -> float:
    """Return the milliseconds of the slowest script since `log_all_commands`."""
    log = lab.client.slowlog_get(10_000)
    return max(entry["duration"] for entry in log if entry["command"].startswith(b"EVALSHA")) / 1000


# A batch is one script, because it is added as a whole: its size is limited instead.


@pytest.mark.parametrize("types", [1, 100, MAX_ENQUEUED_MESSAGES])
def test_largest_batch_needs_one_command_a_message_and_one_of_each_type(
    lab: Lab, types: int, kind: str, figure: Callable[[str], None]
) -> None:
    payload = "x" * (MAX_ENQUEUED_BYTES // MAX_ENQUEUED_MESSAGES - 2)  # two quotes
    batch = [NewMessage(type=f"t{number % types}", payload=payload) for number in range(MAX_ENQUEUED_MESSAGES)]
    lab.queue.dequeue(type="none")  # from now on type indexes are kept
    lab.queue.enqueue_batch(batch)  # loads the script
    log_all_commands(lab)
    lab.client.config_resetstat()

    lab.queue.enqueue_batch(batch)

    commands = lab.commands()
    assert (commands["evalsha"], commands["xadd"]) == (1, MAX_ENQUEUED_MESSAGES + 1)  # one is the event
    assert sum(commands.values()) < MAX_ENQUEUED_MESSAGES + min(types, MAX_INDEXED_TYPES) + 50
    figure(
        f"message queue on {kind}: {MAX_ENQUEUED_MESSAGES:,} messages of {types} types in {slowest_script(lab):.1f} ms"
    )


@pytest.mark.parametrize("is_shared", [True, False])
def test_every_type_of_a_large_batch_can_be_received(lab: Lab, is_shared: bool) -> None:
    with Lab(lab.url, is_shared=is_shared) as lab:
        assert lab.queue.dequeue(type="none") is None  # from now on type indexes are kept
        lab.queue.enqueue_batch([NewMessage(type=f"t{number}") for number in range(MAX_ENQUEUED_MESSAGES)])
        assert lab.client.zcard("q:type:t0") == 1
        for type in ("t0", "t250", "t499"):
            received = None
            while received is None:  # on a busy machine one dequeue may not get so far
                received = lab.queue.dequeue(type=type)
            assert received.type == type
        assert lab.client.zcard("q:type:t498") == 1


def test_too_large_batch_is_refused_but_a_single_large_message_accepted(lab: Lab) -> None:
    large = NewMessage(type="job", payload="x" * (lab.queue.options.max_payload_bytes - 2))

    for batch, error in (
        ([NewMessage(type="job")] * (MAX_ENQUEUED_MESSAGES + 1), InvalidMessage),
        ([large, NewMessage(type="job")], MessageTooLarge),
    ):
        with pytest.raises(error):
            lab.queue.enqueue_batch(batch)
    assert lab.contents.counts().main == 0
    assert len(lab.queue.enqueue_batch([large])) == 1


@pytest.mark.parametrize("messages", ["mail", [("mail", {})], [None]])
def test_batch_of_something_else_is_refused(lab: Lab, messages: Any) -> None:
    with pytest.raises(InvalidMessage, match="messages: must be a list of messages such as"):
        lab.queue.enqueue_batch(messages)


@pytest.mark.parametrize(
    "name", [name for name in OPERATIONS if name not in ("delete", "forget lost")]
)  # these read no payload
def test_large_messages_need_several_scripts(lab: Lab, name: str) -> None:
    with Lab(lab.url, batch=10_000) as lab:
        ids = enqueue(lab, 24, "x" * LARGE)
        lab.client.config_resetstat()

        assert OPERATIONS[name](lab, ids) == 24
        assert lab.commands()["evalsha"] >= 3


def test_large_messages_are_acknowledged_in_several_scripts(lab: Lab) -> None:
    ids = enqueue(lab, 24, "x" * LARGE)
    held = [lab.take() for _ in ids]
    locks = [(message.id, message.lock_token) for message in held]
    lab.client.config_resetstat()

    assert lab.queue.ack_many([*locks[:12], ("unknown", None), *locks[12:]]) == [True] * 12 + [False] + [True] * 12

    assert lab.commands()["evalsha"] == len(ids) / 4
    assert sorted(lab.ids("acknowledged")) == ids


def test_newest_messages_of_several_streams_with_one_entry_id_are_all_deleted(lab: Lab) -> None:
    for stream in lab.streams:
        text = json.dumps({"id": f"of-{stream}", "type": "job", "payload": "x" * 2 * LARGE})
        lab.client.xadd(stream, {"data": text}, id="1700000000000-0")

    assert delete_range(lab, []) == lab.levels


def test_typed_consumer_finds_a_message_of_another_producer_behind_many(lab: Lab) -> None:
    with lab.client.pipeline(transaction=False) as pipe:
        for number in range(1_000):
            pipe.xadd("q", {"data": f'{{"type":"other","payload":1,"id":"foreign-{number}"}}'})
        pipe.xadd("q", {"data": '{"type":"wanted","payload":1,"id":"wanted"}'})
        pipe.execute()
    lab.client.config_resetstat()

    found = None
    while found is None:  # on a busy machine one dequeue may not get so far
        found = lab.queue.dequeue(type="wanted")

    assert found.id == "wanted"
    assert lab.commands()["evalsha"] >= 1_000 / MAX_HANDLED


def test_history_stream_of_another_service_is_trimmed_gradually(lab: Lab) -> None:
    with lab.client.pipeline(transaction=False) as pipe:
        for number in range(1_000):
            pipe.xadd("q_acknowledged", {"data": f'{{"id":"old-{number}","type":"job","payload":1}}'})
        pipe.execute()

    lab.queue.enqueue("job", id="new")
    with lab.queue.receive():
        pass

    assert 900 < lab.contents.counts().acknowledged < 1_000
    assert lab.ids("acknowledged")[0] == "new"
