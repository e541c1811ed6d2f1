"""Streams and metadata that Relay wrote: every message is listed, delivered and found by its id at once."""

from __future__ import annotations

import json

import pytest

from dev.servers import Valkey
from services.message_queue import MessageState
from tests.predecessors.relay import Relay
from tests.services.message_queue.message_lab import Lab


def manual(lab: Lab) -> int:
    return lab.client.xlen("q_manual")


# Messages that were taken by type


def test_message_taken_by_type_is_in_processing_and_requeued_by_its_priority(lab: Lab, relay: Relay) -> None:
    relay.enqueue("mail", {"n": 1}, 5, id="a")
    taken = relay.take("mail", ack_timeout=60)
    assert lab.contents.counts().processing == 1

    assert lab.heal() == 1

    [message] = lab.everything("processing")
    assert message.fields["custom_ack_timeout"] == 60
    assert message.fields["consumer_id"] == "consumer-1"
    assert message.deadline_at == pytest.approx(taken["dequeued_at"] + 60, abs=0.01)
    lab.lapse("a")
    assert lab.sweeper.sweep().requeued == ["a"]
    message = lab.take()
    assert (message.id, message.attempt, message.priority, message.payload) == ("a", 2, 5, {"n": 1})
    assert message.fields["_stream_name"] == "q_p5"
    assert manual(lab) == 0


def test_consumer_of_the_old_service_acknowledges_here(lab: Lab, relay: Relay) -> None:
    relay.enqueue("mail", id="a")
    taken = relay.take("mail")
    lab.heal()

    lab.queue.ack("a", taken["lock_token"])

    assert lab.ids("acknowledged") == ["a"]
    assert manual(lab) == lab.contents.counts().processing == 0


def test_message_of_this_queue_that_the_old_service_takes_by_type_keeps_its_options(lab: Lab, relay: Relay) -> None:
    lab.queue.enqueue("mail", id="a", priority=2, max_attempts=1)
    relay.take("mail")
    lab.heal()
    lab.lapse("a")

    assert lab.sweeper.sweep().dead_lettered == ["a"]
    assert lab.contents.replay(["a"]) == {"a": "MOVED"}
    assert lab.take().priority == 2


@pytest.mark.parametrize("priority", [0, 4, 9, 50])
def test_message_that_waits_in_the_manual_stream_is_delivered_by_its_priority(
    lab: Lab, relay: Relay, priority: int
) -> None:
    relay.enqueue("mail", id="a", priority=min(priority, 9))
    taken = relay.take("mail")
    relay.nack({**taken, "priority": priority})

    lab.heal()

    assert lab.ids("main") == ["a"]
    assert manual(lab) == 0
    message = lab.take(type="mail")
    assert (message.id, message.attempt, message.priority) == ("a", 2, min(priority, 9))


def test_manual_stream_of_any_length_is_drained(lab: Lab, relay: Relay) -> None:
    for number in range(250):
        relay._add("q_manual", {"type": "mail", "payload": None, "id": f"{number}", "created_at": 1.0, "priority": 1})
    lab.client.xadd("q_manual", {"data": "garbage"})

    lab.heal()

    assert lab.contents.counts().waiting[1] == 250
    assert lab.contents.counts().dead == 1
    assert manual(lab) == 0
    assert [lab.take(type="mail").id for _ in range(3)] == ["0", "1", "2"]


@pytest.mark.parametrize("state", ["main", "processing", None])
def test_manual_stream_is_cleared_with_its_state(lab: Lab, relay: Relay, state: MessageState | None) -> None:
    for id in ("a", "b"):
        relay.enqueue("mail", id=id)
    held = relay.take("mail")
    relay.nack(relay.take("mail"))
    lab.client.hdel("q_metadata", "b")
    lab.others.heal()  # sets the deadline of the held one, and drains
    relay._add("q_manual", {**relay._content(held), "id": "c"})

    cleared = lab.clear(state)

    lab.heal()
    left = {"main": ["a"], "processing": ["b", "c"], None: []}[state]
    assert sorted([*lab.ids("main"), *lab.ids("processing")]) == left
    assert cleared == 3 - len(left)


# Dead letters and archived messages


def dead_letter(relay: Relay, id: str, priority: int = 0) -> None:
    relay.enqueue("mail", {"n": id}, priority, id=id)
    relay.dead_letter(relay.take(), "Max attempts exceeded (Stream)")


@pytest.mark.parametrize("others", [0, 300])
def test_dead_letter_is_replayed_by_its_id_immediately(lab: Lab, relay: Relay, others: int) -> None:
    for number in range(others):
        dead_letter(relay, f"{number}")
    dead_letter(relay, "a", 7)

    assert lab.contents.replay(["a", "unknown"]) == {"a": "MOVED", "unknown": "NOT_FOUND"}

    message = lab.take()
    assert (message.id, message.attempt, message.priority, message.payload) == ("a", 1, 7, {"n": "a"})
    assert message.fields["history"][0]["last_error"] == "Max attempts exceeded (Stream)"
    assert message.fields["history"][0]["attempt_count"] == 1
    assert lab.contents.counts().dead == others


@pytest.mark.parametrize("source", ["dead", None])
def test_dead_letter_is_deleted_by_its_id_immediately(lab: Lab, relay: Relay, source: MessageState | None) -> None:
    dead_letter(relay, "a")

    assert lab.contents.delete(["a"], source=source) == {"a": "DELETED"}

    assert lab.contents.counts().dead == lab.client.hlen("q_metadata") == 0


def test_any_message_is_found_and_changed_by_its_id_immediately(lab: Lab, relay: Relay) -> None:
    relay.enqueue("mail", id="waiting", priority=3)
    relay.enqueue("mail", id="old", priority=4)
    relay.archive(relay.take())

    for id in ("waiting", "old"):
        found = lab.contents.find(id)
        assert found is not None
        assert found.type == "mail"
    lab.contents.update("waiting", {"priority": 1})
    assert lab.take().priority == 1
    assert lab.contents.move(["old"], to="main") == {"old": "MOVED"}
    assert lab.take().priority == 4


def test_unknown_id_is_searched_only_once(lab: Lab, relay: Relay) -> None:
    for number in range(300):
        dead_letter(relay, f"{number}")
    assert lab.contents.find("unknown") is None
    lab.client.config_resetstat()

    assert lab.contents.find("unknown") is None

    calls = lab.commands()
    assert calls["evalsha"] == 2
    assert calls["xrange"] <= 3 + lab.levels


def test_ack_timeout_of_the_delivery_is_kept_with_the_dead_letter(lab: Lab) -> None:
    for id, own in (("a", None), ("b", 7.0)):
        lab.queue.enqueue("mail", id=id, ack_timeout=own, max_attempts=1)
        lab.take(ack_timeout=60)
        lab.lapse(id)
    lab.sweeper.sweep()

    timeouts = {message.id: message.fields["custom_ack_timeout"] for message in lab.everything("dead")}
    assert timeouts == {"a": 60, "b": 7}


# Times in milliseconds, signed messages


def test_times_in_milliseconds_are_recognised(lab: Lab, relay: Relay) -> None:
    now = lab.now_ms()
    relay.enqueue("mail", id="waiting", created_at=now - 5_000)
    relay.enqueue("mail", id="held", priority=1, created_at=now)
    taken = relay.take()
    relay.set_metadata("held", {"attempt_count": 1, "created_at": now, "dequeued_at": now - 10_000})
    relay._add("q_dlq", {**relay._content(taken), "id": "dead", "failed_at": now - 1_000})

    lab.heal()

    [held] = lab.everything("processing")
    assert held.fields["created_at"] == now / 1000
    assert held.deadline_at == pytest.approx((now - 10_000) / 1000 + lab.ack_timeout.total_seconds(), abs=0.01)
    assert lab.everything("main")[0].fields["created_at"] == (now - 5_000) / 1000
    assert lab.everything("dead")[0].fields["failed_at"] == (now - 1_000) / 1000


def test_signed_message_is_refused_with_the_reason(lab: Lab) -> None:
    Relay(lab.client, "q", secret="a secret").enqueue("mail", {"pipe": "|"}, id="a")
    lab.queue.enqueue("mail", id="b")

    assert lab.take().id == "b"

    [dead] = lab.everything("dead")
    assert "signed" in dead.fields["last_error"].lower()
    assert "ENABLE_ENCRYPTION" in dead.fields["last_error"]
    raw = json.loads(dead.payload_json)
    assert json.loads(raw.rpartition("|")[0])["id"] == "a"
    assert lab.contents.replay([dead.id]) == {dead.id: "UNDECODABLE"}


# The switch


def test_queue_without_other_programs_does_not_search_for_their_messages(server: Valkey, relay: Relay) -> None:
    relay.enqueue("mail", id="waiting")
    relay.enqueue("mail", id="held", priority=1)
    relay.take()
    with Lab(server.url, levels=10, is_shared=False) as lab:
        assert lab.heal() == 1  # the held message gets a deadline, as after an interrupted delivery of our own
        assert lab.contents.find("waiting") is None
        assert lab.queue.dequeue(type="mail") is None
        assert lab.take().id == "waiting"  # a message of any type is still delivered
