"""The activity log: entries of the events that are kept, and their anomalies."""

from __future__ import annotations

import json
from typing import Any

import pytest

from services.message_queue import activity
from services.message_queue.activity import MAX_ACTIVITY_ENTRIES, ActivityEntry
from tests.services.message_queue.message_lab import Lab

START = 1_700_000_000_000


def store(lab: Lab, type: str, *ids: str, at: int = 0, **payload: Any) -> None:
    """Store an event `at` milliseconds after the start."""
    about = {"count": len(ids), "ids": ids, **payload}
    lab.client.xadd("q:events", {"event": json.dumps({"type": type, "timestamp": START + at, "payload": about})})


def anomalies(lab: Lab) -> list[str | None]:
    return [entry.anomaly.type if entry.anomaly else None for entry in lab.contents.activity()]


def test_activity_log_has_an_entry_for_each_message_of_each_event(lab: Lab) -> None:
    for id in ("a", "b"):
        lab.queue.enqueue("mail", id=id, max_attempts=5)
    lab.contents.delete(["a", "b"])

    entries = lab.contents.activity()

    assert [(entry.type, entry.message_id) for entry in entries] == [
        ("enqueue", "a"),
        ("enqueue", "b"),
        ("delete", "a"),
        ("delete", "b"),
    ]
    assert len({entry.log_id for entry in entries}) == 4


def test_delivery_entry_has_attempt_age_and_consumer(lab: Lab) -> None:
    lab.queue.enqueue("mail", id="a", max_attempts=5)
    lab.queue.dequeue(consumer_id='worker "1"')
    lab.lapse("a")
    lab.sweeper.sweep()
    lab.queue.dequeue()

    first, second = (entry.event for entry in lab.contents.activity() if entry.type == "dequeue")

    assert (first.attempt, first.consumer_id, first.max_attempts) == (1, 'worker "1"', 5)
    assert (second.attempt, second.consumer_id) == (2, None)
    assert second.age_ms is not None
    assert first.age_ms is not None
    assert second.age_ms >= first.age_ms >= 0


def test_activity_log_uses_no_memory_for_waiting_messages(lab: Lab) -> None:
    lab.queue.enqueue("mail", id="a")
    record = lab.client.hget("q_metadata", "a")
    lab.contents.activity()
    assert lab.client.hget("q_metadata", "a") == record
    assert b"events" not in record


def test_activity_log_is_bounded(lab: Lab) -> None:
    for number in range(12):
        store(lab, "enqueue", *(f"{number}-{index}" for index in range(1_000)))
    entries = lab.contents.activity()
    assert len(entries) == MAX_ACTIVITY_ENTRIES
    assert (entries[0].message_id, entries[-1].message_id) == ("2-0", "11-999")


def test_events_of_several_pages_are_in_order(lab: Lab) -> None:
    for number in range(activity.EVENTS_PER_PAGE * 2 + 1):
        store(lab, "touch", f"{number}", at=number)
    times = [entry.at for entry in lab.contents.activity()]
    assert len(times) == activity.EVENTS_PER_PAGE * 2 + 1
    assert times == sorted(times)


@pytest.mark.parametrize(
    "text", ["nonsense", "[]", '{"type":"new"}', '{"type":"enqueue","timestamp":0,"payload":{"ids":[1]}}']
)
def test_invalid_entries_are_omitted_from_the_activity_log(lab: Lab, text: str) -> None:
    lab.client.xadd("q:events", {"event": text})
    lab.client.xadd("q:events", {"other": ""})
    store(lab, "enqueue", "a")
    assert [entry.message_id for entry in lab.contents.activity()] == ["a"]


def test_processing_time_is_measured_per_delivery(lab: Lab) -> None:
    store(lab, "dequeue", "a")
    store(lab, "touch", "a", at=200)
    store(lab, "acknowledge", "a", at=300)
    store(lab, "move", "a", at=900, to="archived")
    took = [entry.processing_seconds for entry in lab.contents.activity()]
    assert took == [None, None, pytest.approx(0.3), None]


def test_anomalies_of_deliveries_are_detected(lab: Lab) -> None:
    store(lab, "dequeue", "usual", attempt=1, age_ms=5_000)
    store(lab, "dequeue", "flash", attempt=1, age_ms=10)
    store(lab, "dequeue", "zombie", attempt=1, age_ms=4_000_000)
    store(lab, "dequeue", "near", attempt=2, age_ms=10)
    store(lab, "dequeue", "last", attempt=3, age_ms=5_000)
    store(lab, "dequeue", "own", attempt=3, age_ms=5_000, max_attempts=9)
    assert anomalies(lab) == [None, "flash_message", "zombie_message", "near_dlq", "near_dlq", None]
    descriptions = [entry.anomaly.description for entry in lab.contents.activity() if entry.anomaly]
    assert descriptions[2:] == ["1 attempt left after this delivery", "0 attempts left after this delivery"]


def test_burst_anomaly_is_detected_per_consumer(lab: Lab) -> None:
    for number in range(activity.BURST_COUNT):
        at = number * 500
        store(lab, "dequeue", f"a{number}", at=at, consumer_id="fast")
        store(lab, "dequeue", f"b{number}", at=at * 2, consumer_id="slow")
        store(lab, "dequeue", f"c{number}", at=at)
    found = [entry for entry in lab.contents.activity() if entry.anomaly is not None]
    assert [(entry.message_id, entry.anomaly and entry.anomaly.type) for entry in found] == [("a9", "burst_dequeue")]


def test_anomalies_of_operations_are_detected(lab: Lab) -> None:
    many = [f"{number}" for number in range(activity.BULK_MESSAGES + 1)]
    store(lab, "move", "a", to="dead")
    store(lab, "move_to_dlq", "b")
    store(lab, "clear", queue="main", count=7)
    store(lab, "move", *many, to="archived")
    store(lab, "delete", *many)
    store(lab, "delete", *many[1:])
    assert [*dict.fromkeys(anomalies(lab))] == ["dlq_movement", "queue_cleared", "bulk_move", "bulk_delete", None]


def test_long_processing_is_an_anomaly(lab: Lab) -> None:
    timeout = int(lab.ack_timeout.total_seconds() * 1000)
    for id, took in (("short", timeout), ("long", timeout + 1)):
        store(lab, "dequeue", id)
        store(lab, "acknowledge", id, at=took)

    def found(entry: ActivityEntry) -> tuple[str | None, str | None]:
        return entry.message_id, entry.anomaly.type if entry.anomaly else None

    assert [found(entry) for entry in lab.contents.activity() if entry.type == "acknowledge"] == [
        ("short", None),
        ("long", "long_processing"),
    ]
