"""The history of a message: its events since the first delivery, bounded."""

from __future__ import annotations

import json

import pytest

from services.message_queue.fields import Json
from services.message_queue.messages import HistoryEvent, Message
from tests.services.message_queue.message_lab import Lab


def history(lab: Lab, id: str) -> list[HistoryEvent]:
    message = lab.contents.find(id)
    assert message is not None
    return list(message.events())


def kinds(lab: Lab, id: str) -> list[str]:
    return [event.event for event in history(lab, id)]


def test_history_has_all_events_of_a_message_in_order(lab: Lab) -> None:
    lab.queue.enqueue("job", id="a", max_attempts=3)
    first = lab.take(consumer_id="worker 1")
    lab.queue.touch("a", first.lock_token)
    lab.queue.touch("a", first.lock_token)
    lab.queue.nack("a", first.lock_token, "broken\nin two lines")
    lab.take()
    lab.lapse("a")
    lab.sweeper.sweep()
    lab.queue.nack("a", lab.take().lock_token, "again")
    lab.contents.replay(["a"])
    lab.queue.ack("a", lab.take().lock_token)
    lab.contents.move(["a"], to="archived")

    events = history(lab, "a")

    assert [(event.event, event.attempt, event.consumer_id, event.touches, event.reason) for event in events] == [
        ("delivered", 1, "worker 1", None, None),
        ("touched", None, None, 2, None),
        ("requeued", None, None, None, "broken in two lines"),
        ("delivered", 2, None, None, None),
        ("requeued", None, None, None, "Processing timeout"),
        ("delivered", 3, None, None, None),
        ("dead-lettered", None, None, None, "again"),
        ("replayed", None, None, None, "Moved manually"),
        ("delivered", 1, None, None, None),
        ("acknowledged", None, None, None, None),
        ("archived", None, None, None, None),
    ]
    times = [event.at for event in events]
    assert times == sorted(times)
    assert times[-1] == pytest.approx(lab.now_ms() / 1000, abs=60)


def test_message_that_an_operator_moves_to_main_keeps_the_reason(lab: Lab) -> None:
    lab.queue.enqueue("job", id="a")
    lab.take()
    lab.contents.move(["a"], to="main", reason="the consumer hung")
    *_, newest = history(lab, "a")
    assert (newest.event, newest.reason) == ("requeued", "the consumer hung")


def test_undelivered_message_uses_no_memory_for_its_history(lab: Lab) -> None:
    lab.queue.enqueue("job", id="a")
    lab.contents.list("main")
    assert "events" not in json.loads(lab.client.hget("q_metadata", "a") or "")


def test_history_is_not_a_field_of_a_message(lab: Lab) -> None:
    lab.queue.enqueue("job", id="a")
    assert "events" not in lab.take().fields
    assert "events" not in lab.everything("processing")[0].fields


def test_history_keeps_the_newest_events_within_its_bound(lab: Lab) -> None:
    lab.queue.enqueue("job", id="a", max_attempts=1_000)
    for number in range(60):
        message = lab.take(consumer_id="é" * 127 + "x")
        lab.queue.nack("a", message.lock_token, f"{number} " + "ü" * 2_000)

    record = json.loads(lab.client.hget("q_metadata", "a") or "")
    assert len(record["events"].encode()) <= 2_000
    *_, delivered, requeued = history(lab, "a")
    assert (delivered.event, delivered.attempt) == ("delivered", 60)
    assert requeued.reason is not None
    assert requeued.reason.startswith("59 ü")
    assert set(requeued.reason[3:]) == {"ü"}  # cut between two characters


def test_touches_of_two_deliveries_are_two_events(lab: Lab) -> None:
    lab.queue.enqueue("job", id="a")
    for _ in range(2):
        message = lab.take()
        for _ in range(12):
            lab.queue.touch("a", message.lock_token)
        lab.queue.nack("a", message.lock_token, "touched 1 2")

    assert kinds(lab, "a") == ["delivered", "touched", "requeued"] * 2
    assert [event.touches for event in history(lab, "a") if event.touches] == [12, 12]


def test_delivery_to_another_consumer_is_in_the_history(lab: Lab) -> None:
    lab.queue.enqueue("job", id="a")
    lab.client.xgroup_create("q", "q_group", "0")
    lab.client.xreadgroup("q_group", "another", {"q": ">"}, count=1)
    lab.heal()
    lab.lapse("a")
    lab.sweeper.sweep()

    assert kinds(lab, "a") == ["delivered", "requeued"]


@pytest.mark.parametrize(
    "packed",
    [
        "",
        "\n\n",
        "x",
        "delivered",
        "delivered 1",
        "delivered x 1 a\n",
        "delivered 9999999999999999 1 a",
        "nonsense 1 2",
    ],
)
def test_malformed_history_lines_are_omitted(packed: str) -> None:
    message = Message(fields={}, payload_json=Json("null"), packed_events=packed)
    assert list(message.events()) == []
