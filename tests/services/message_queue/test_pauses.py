"""An operator pauses a type: its messages wait, and everything but their delivery works as before."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from queue_manager.core.clock import EPOCH
from services.message_queue import Filter, InvalidMessage, Json, NewMessage
from services.message_queue.admin import MAX_PAUSED_TYPES
from tests.eventually import eventually
from tests.services.message_queue.message_lab import Lab


def enqueue(lab: Lab, *messages: str) -> None:
    """Enqueue messages, each as `type id` or `type id priority`, in different milliseconds."""
    for kind, id, *priority in map(str.split, messages):
        lab.queue.enqueue(kind, {"to": id}, priority=int(priority[0]) if priority else 0, id=id)
        lab.until_passed(lab.now_ms())


def pause(lab: Lab, *types: str) -> None:
    lab.contents.pause(types, by="ada", reason="spilling mail")


def received(lab: Lab, limit: int = 100, **wanted: Any) -> list[str]:
    """Receive and acknowledge all that can be; return the ids in their order."""
    ids: list[str] = []
    while messages := lab.queue.receive_many(limit, **wanted):
        assert all(lab.queue.ack_many([(one.id, one.lock_token) for one in messages]))
        ids += [one.id for one in messages]
    return ids


@pytest.fixture
def parked(lab: Lab) -> Lab:
    """A queue in which the group has passed over the messages m1 to m4 of the paused type `mail`."""
    enqueue(lab, "mail m1", "mail m2 2", "mail m3", "mail m4")
    pause(lab, "mail")
    assert received(lab) == []
    return lab


@pytest.mark.parametrize("limit", [1, 2, 100])
def test_messages_of_other_types_are_delivered_during_a_pause(lab: Lab, limit: int) -> None:
    enqueue(lab, "mail m1", "sms s1", "mail m2", "sms s2", "sms s3 1", "mail m3 1")
    pause(lab, "mail")

    assert received(lab, limit) == ["s3", "s1", "s2"]
    assert received(lab, type="mail") == []


@pytest.mark.parametrize("limit", [1, 2, 100])
def test_resumed_messages_are_delivered_in_order_before_newer_ones(lab: Lab, limit: int) -> None:
    enqueue(lab, "mail m1", "fax f1", "mail m2 1", "mail m3")
    pause(lab, "mail", "fax")
    assert received(lab, limit) == []
    enqueue(lab, "mail m4", "sms s1", "mail m5 1", "sms s2 1")

    lab.contents.resume(["mail", "fax"])

    assert received(lab, limit) == ["m2", "m5", "s2", "m1", "f1", "m3", "m4", "s1"]
    assert lab.client.exists("q:pauses", "q:parked:mail", "q:parked:fax") == 0


def test_resumed_messages_are_delivered_in_order_to_consumers_of_the_type(parked: Lab) -> None:
    enqueue(parked, "mail m5", "mail m6 3")
    assert received(parked, type="mail") == []

    parked.contents.resume(["mail"])

    assert received(parked, 1, type="mail") == ["m6", "m2", "m1", "m3", "m4", "m5"]
    assert parked.client.exists("q:pauses", "q:parked:mail", "q:type:mail") == 0


def test_message_requeued_during_a_pause_waits_for_the_resume(lab: Lab) -> None:
    enqueue(lab, "mail m1", "mail m2")
    message, late = lab.take(), lab.take()
    pause(lab, "mail")

    lab.queue.nack(message.id, message.lock_token)
    lab.lapse(late.id)
    assert lab.sweeper.sweep().requeued == ["m2"]

    assert received(lab) == []
    lab.contents.resume(["mail"])
    assert received(lab) == ["m1", "m2"]


def test_pause_stores_actor_time_and_reason_until_it_is_resumed(lab: Lab) -> None:
    pause(lab, "mail")
    lab.contents.pause(["mail"], by="bob")

    (found,) = lab.contents.pauses().items()
    assert (found[0], found[1].by, found[1].reason) == ("mail", "bob", None)
    assert found[1].at is not None
    assert abs((found[1].at - EPOCH).total_seconds() * 1000 - lab.now_ms()) < 60_000
    lab.contents.resume(["mail", "never paused"])
    assert lab.contents.pauses() == {}


def test_resumed_type_with_parked_messages_is_not_paused(parked: Lab) -> None:
    parked.contents.resume(["mail"])
    assert parked.contents.pauses() == {}
    enqueue(parked, "mail m5")

    pause(parked, "mail")
    assert received(parked) == []
    parked.contents.resume(["mail"])
    assert received(parked) == ["m2", "m1", "m3", "m4", "m5"]


def test_too_many_pauses_are_refused(lab: Lab) -> None:
    pause(lab, *(f"type {number}" for number in range(MAX_PAUSED_TYPES)))

    pause(lab, "type 0")
    with pytest.raises(
        InvalidMessage,
        match=r"^types: must be at most 30 in total, with those that are paused already; resume some first$",
    ):
        pause(lab, "mail")
    lab.contents.resume(["type 1"])
    with pytest.raises(InvalidMessage):
        pause(lab, "mail", "sms")
    assert "mail" not in lab.contents.pauses()
    pause(lab, "mail")


def test_types_that_an_earlier_release_paused_beyond_the_limit_are_resumed(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"type-{number}" for number in range(MAX_PAUSED_TYPES + 5)]
    enqueue(lab, *(f"{name} id-{name}" for name in names))
    with monkeypatch.context() as patch:
        patch.setattr("services.message_queue.admin.MAX_PAUSED_TYPES", 100)
        pause(lab, *names)
    assert received(lab) == []

    assert len(lab.everything("main")) == len(names)
    lab.contents.resume(names)
    assert received(lab) == [f"id-{name}" for name in names]


def test_a_slice_of_a_list_reads_little_with_the_most_paused_types(lab: Lab) -> None:
    names = [f"type-{number}" for number in range(MAX_PAUSED_TYPES)]
    with Lab(lab.url, name="deep", levels=10) as deep:
        for level in range(10):
            deep.queue.enqueue_batch([NewMessage(type=name, priority=level) for name in names])
        pause(deep, *names)
        assert received(deep) == []
        deep.contents.list("main", limit=10)  # loads the script
        deep.client.config_resetstat()
        assert len(deep.contents.list("main", limit=10).messages) == 10
        commands = dict(deep.commands())
    assert commands.pop("evalsha") == 1
    assert sum(commands.values()) < 1_000


# What operators do with parked messages


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ({}, ["s1", "m4", "m3", "m2", "m1"]),
        ({"ascending": True}, ["m1", "m2", "m3", "m4", "s1"]),
        ({"sort_by": "priority"}, ["m2", "s1", "m4", "m3", "m1"]),
        ({"sort_by": "priority", "ascending": True}, ["s1", "m4", "m3", "m1", "m2"]),
        ({"where": Filter(type="mail")}, ["m4", "m3", "m2", "m1"]),
        ({"where": Filter(type="sms")}, ["s1"]),
        ({"where": Filter(search="m3")}, ["m3"]),
        ({"where": Filter(priority=2)}, ["m2"]),
    ],
)
def test_parked_messages_are_listed_in_every_order_page_by_page(
    parked: Lab, order: dict[str, Any], expected: list[str]
) -> None:
    enqueue(parked, "sms s1")

    assert [one.id for one in parked.everything("main", **order)] == expected
    assert [one.id for one in parked.everything("main", limit=1, **order)] == expected


def test_parked_messages_are_counted_as_waiting(parked: Lab) -> None:
    counts = parked.contents.counts()
    assert (counts.waiting, counts.processing) == ([3, 0, 1, 0], 0)
    assert parked.contents.count("main", Filter(type="mail")).count == 4
    assert [id for ids in parked.contents.matching_ids("main", Filter()) for id in ids] == ["m1", "m2", "m3", "m4"]
    assert [one.id for page in parked.contents.export("main") for one in page] == ["m1", "m2", "m3", "m4"]


@pytest.mark.parametrize("to", ["dead", "archived", "acknowledged"])
def test_parked_messages_are_moved_and_deleted(parked: Lab, to: Any) -> None:
    assert parked.contents.move(["m1"], to=to) == {"m1": "MOVED"}
    assert parked.contents.delete(["m3"], source="main") == {"m3": "DELETED"}
    assert parked.contents.move(["m1"], to="main") == {"m1": "MOVED"}

    parked.contents.resume(["mail"])
    assert received(parked) == ["m2", "m4", "m1"]


def test_deletion_of_parked_messages_is_undone(parked: Lab) -> None:
    copies: list[Any] = []

    def keep(batch: Any) -> Any:
        copies.extend(batch)
        return lambda kept: None

    parked.contents.delete(["m1", "m2", "m3", "m4"], keep=keep)
    assert parked.contents.restore(copies) == 4

    assert received(parked) == []
    parked.contents.resume(["mail"])
    assert received(parked) == ["m2", "m1", "m3", "m4"]


@pytest.mark.parametrize("state", ["main", None])
def test_clear_deletes_parked_messages(parked: Lab, state: Any) -> None:
    enqueue(parked, "sms s1", "mail m5")

    assert parked.clear(state) == 6

    assert parked.ids("main") == []
    assert parked.client.exists("q:parked:mail") == 0
    parked.contents.resume(["mail"])
    assert parked.client.exists("q:pauses") == 0


def test_changed_parked_messages_are_delivered_last(parked: Lab) -> None:
    parked.contents.update("m3", {"ack_timeout": 60})
    parked.contents.update("m1", {"payload": Json('"changed"')})

    parked.contents.resume(["mail"])
    assert received(parked) == ["m2", "m4", "m3", "m1"]


def test_parked_message_changed_to_another_type_is_delivered(parked: Lab) -> None:
    enqueue(parked, "sms s1")
    parked.contents.update("m1", {"type": "sms"})

    assert received(parked) == ["s1", "m1"]
    assert set(parked.client.hkeys("q:pauses")) == {b"mail"}


def test_waiting_message_changed_to_a_paused_type_is_parked(lab: Lab) -> None:
    enqueue(lab, "sms s1", "sms s2")
    pause(lab, "mail")
    lab.contents.update("s1", {"type": "mail"})

    assert received(lab) == ["s2"]
    lab.contents.resume(["mail"])
    assert received(lab) == ["s1"]


# Other programs


def test_messages_of_other_programs_are_parked(lab: Lab) -> None:
    lab.client.xadd("q", {"data": '{"id":"x","type":"mail","payload":1}'})
    lab.client.xadd("q", {"data": "no JSON"})
    pause(lab, "mail")

    assert received(lab) == []
    assert (lab.ids("main"), lab.contents.counts().dead) == (["x"], 1)
    lab.contents.resume(["mail"])
    assert received(lab) == ["x"]


def test_parked_message_that_another_program_deletes_is_passed_over(parked: Lab) -> None:
    parked.client.delete("q_p2")
    parked.client.xdel("q", parked.client.xrange("q")[0][0])
    assert parked.ids("main") == ["m4", "m3"]

    parked.contents.resume(["mail"])
    assert received(parked) == ["m3", "m4"]
    assert parked.client.exists("q:pauses", "q:parked:mail") == 0


def test_clear_deletes_what_another_program_left_of_a_parked_message(parked: Lab) -> None:
    parked.client.xdel("q", parked.client.xrange("q")[0][0])
    parked.client.hdel("q_metadata", "m1")

    assert parked.clear("main") == 3
    assert parked.client.exists("q:parked:mail") == 0


def test_group_that_another_program_deletes_loses_no_parked_message(parked: Lab) -> None:
    parked.client.xgroup_destroy("q", "q_group")
    parked.contents.resume(["mail"])

    assert sorted(received(parked)) == ["m1", "m2", "m3", "m4"]


def test_parked_messages_keep_their_positions(parked: Lab) -> None:
    before = parked.dump()
    parked.heal()
    parked.heal()

    assert parked.dump() == before


# Consumers that wait, and the load


def test_message_changed_to_another_type_wakes_a_consumer_of_that_type(lab: Lab) -> None:
    id = lab.queue.enqueue("letter")
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(lab.queue.dequeue, timeout=60, type="mail")
        eventually(lambda: lab.arrivals._is_reading)
        lab.contents.update(id, {"type": "mail"})
        received = waiting.result(timeout=30)
    assert received is not None
    assert received.id == id


@pytest.mark.parametrize("type", [None, "mail"])
def test_resume_wakes_the_consumers_that_wait(parked: Lab, type: str | None) -> None:
    with ThreadPoolExecutor(2) as threads:
        waiting = [threads.submit(parked.queue.dequeue, timeout=60, type=type) for _ in range(2)]
        eventually(lambda: len(parked.arrivals._subscribers) == 2)
        eventually(lambda: parked.arrivals._is_reading)
        parked.contents.resume(["mail"])
        ids = [message.id for future in waiting if (message := future.result(timeout=30))]
    assert sorted(ids) == ["m1", "m2"]


def test_dequeue_reads_no_pause_keys_if_nothing_is_paused(lab: Lab) -> None:
    enqueue(lab, "mail m1", "sms s1", "sms s2")
    lab.client.config_resetstat()
    lab.take()
    without = lab.commands()
    assert without["exists"] == 1  # of higher priorities and pauses together
    assert not {"hgetall", "zrange", "xclaim"} & set(without)


@pytest.mark.scale
def test_100_000_messages_are_parked_and_resumed_in_order(lab: Lab, figure: Callable[[str], None]) -> None:
    for begin in range(0, 100_000, 500):
        lab.queue.enqueue_batch([NewMessage(type="mail", id=f"m{at:06}") for at in range(begin, begin + 500)])
    enqueue(lab, "sms s1")
    lab.client.config_set("slowlog-log-slower-than", 1_000)
    lab.client.config_set("slowlog-max-len", 100_000)
    lab.client.slowlog_reset()

    pause(lab, "mail")
    assert eventually(lambda: lab.queue.dequeue(), within=300).id == "s1"
    assert lab.contents.counts().main == 100_000
    assert [one.id for one in lab.contents.list("main", limit=3).messages] == ["m099999", "m099998", "m099997"]
    assert lab.contents.count("main", Filter(search="099999")).count == 1
    lab.contents.resume(["mail"])

    assert received(lab) == [f"m{at:06}" for at in range(100_000)]
    slowest = max((entry["duration"] for entry in lab.client.slowlog_get(100_000)), default=0)
    figure(f"message queue: 100,000 messages parked and resumed; slowest command {slowest / 1000:.1f} ms")
