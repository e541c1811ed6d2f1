"""Messages are counted by the scripts that change them, in the form of the counters of other systems."""

from __future__ import annotations

import re
from collections.abc import Mapping

from queue_manager.core.redis_client import connect
from queue_manager.telemetry import counters, latency
from queue_manager.telemetry.counters import Source, Totals
from queue_manager.telemetry.latency import BOUNDS_MS, Histogram, Measure
from services.message_queue.messages import NewMessage
from services.message_queue.scripts import source
from tests.services.message_queue.message_lab import Lab


def fold(lab: Lab, entries: int) -> None:
    """Add everything up, a number of entries at a time."""
    while lab.scripts.run("fold_counts", entries, counters.HISTORY_RETENTION_SECONDS):
        pass


def counted(lab: Lab) -> Totals:
    """Add everything up and return what the minutes have; the totals have the same."""
    fold(lab, 2)
    of_queue = Source(totals=lab.key(":totals"), minutes=lab.key(":minutes:"))
    with connect(lab.url) as client:
        (totals,) = counters.totals(client, [of_queue])
        (recent,) = counters.recent(client, [of_queue])
    assert totals == recent.hour
    return recent.hour


def durations(lab: Lab) -> Mapping[Measure, Histogram]:
    return latency.histograms(counted(lab))


def test_the_buckets_are_those_of_other_histograms() -> None:
    (bounds,) = re.findall(r"DURATION_BOUNDS = \{[^\n]*\n(.*?)\}", source("fold_counts"), flags=re.DOTALL)
    assert tuple(map(int, re.findall(r"\d+", bounds))) == BOUNDS_MS


def test_a_message_is_measured_when_it_is_delivered_and_when_it_is_acknowledged(lab: Lab) -> None:
    lab.queue.enqueue("mail")
    message = lab.take()
    assert {name: one.total for name, one in durations(lab).items()} == {"due_to_done": 0, "wait": 1, "run": 0}
    lab.queue.ack(message.id, message.lock_token)
    assert {name: one.total for name, one in durations(lab).items()} == {"due_to_done": 1, "wait": 1, "run": 1}
    assert counted(lab)["done"] == 1


def test_messages_are_counted_together(lab: Lab) -> None:
    lab.queue.enqueue_batch([NewMessage(type="mail") for _ in range(30)])
    taken = lab.queue.receive_many(30)
    lab.queue.ack_many([(one.id, one.lock_token) for one in taken])
    assert counted(lab)["done"] == 30
    assert [one.total for one in durations(lab).values()] == [30, 30, 30]


def test_a_message_waits_until_its_first_delivery_only(lab: Lab) -> None:
    lab.queue.enqueue("mail")
    for _ in range(2):
        message = lab.take()
        lab.queue.nack(message.id, message.lock_token)
    assert (counted(lab)["retried"], durations(lab)["wait"].total) == (2, 1)


def test_messages_are_counted_in_their_minute_after_the_clock_of_redis_was_set_back(lab: Lab) -> None:
    ahead_ms = lab.now_ms() + 3 * 3600 * 1000  # the time of a new entry is never before that of the last one
    lab.client.xadd(
        "q:events", {"event": f'{{"type":"ping","timestamp":{ahead_ms},"payload":{{}}}}'}, id=f"{ahead_ms}-0"
    )
    first_minute = lab.now_ms() // 60_000
    lab.queue.enqueue("mail")
    message = lab.take()
    lab.queue.ack(message.id, message.lock_token)
    fold(lab, 2)
    last_minute = lab.now_ms() // 60_000
    counts = {name: int(count) for name, count in lab.client.hgetall("q:totals").items()}
    assert counts[b"wait.sum"] + counts[b"run.sum"] + counts[b"due_to_done.sum"] < 3_600_000
    minutes = {
        int(key.rpartition(b":")[2]) * 10 + int(field.rpartition(b":")[2])
        for key in lab.client.scan_iter("q:minutes:*")
        for field in lab.client.hkeys(key)
    }
    assert minutes <= set(range(first_minute, last_minute + 1))


def test_dead_letters_count_as_failed(lab: Lab) -> None:
    lab.queue.enqueue_batch([NewMessage(type="mail", max_attempts=1), NewMessage(type="mail", max_attempts=1)])
    message = lab.take()
    lab.queue.nack(message.id, message.lock_token)
    lab.lapse(lab.take().id)
    lab.sweeper.sweep()
    assert counted(lab)["failed"] == 2


def test_an_acknowledgement_that_is_refused_counts_nothing(lab: Lab) -> None:
    lab.queue.enqueue("mail")
    message = lab.take()
    before = counted(lab)
    lab.queue.ack_many([(message.id, "another token")])
    assert counted(lab) == before


def test_the_minutes_of_a_day_expire(lab: Lab) -> None:
    lab.queue.enqueue("mail")
    lab.take()
    counted(lab)
    (key,) = lab.client.scan_iter(lab.key(":minutes:*"))
    assert 24 * 3600 < lab.client.ttl(key) < 25 * 3600


def test_unprocessed_counts_are_bounded(lab: Lab) -> None:
    assert "'MAXLEN', '~', MAX_EVENTS" in source("dequeue")
    lab.client.xadd("q:events", {"event": "old"}, id="1-1")
    for _ in range(10_300 // 100):
        with lab.client.pipeline() as pipe:
            for _ in range(100):
                pipe.xadd("q:events", {"event": "", "done": 1})
            pipe.execute()
    fold(lab, 1_000)
    assert counted(lab)["done"] == 10_300
    assert 10_000 <= lab.client.xlen("q:events") < 10_200  # as many as fit into whole nodes


def test_events_of_large_batches_are_bounded_by_their_size(lab: Lab) -> None:
    size, megabyte = 20_000, 1024 * 1024
    for _ in range(5):
        with lab.client.pipeline() as pipe:
            for _ in range(5 * megabyte // size):
                pipe.xadd("q:events", {"event": "x" * size, "done": 1})
            pipe.execute()
        fold(lab, 1_000)
        assert lab.client.memory_usage("q:events") < 24 * megabyte
    assert lab.client.xlen("q:events") * size > 8 * megabyte
    assert counted(lab)["done"] == 5 * (5 * megabyte // size)


def test_counts_are_added_up_once(lab: Lab) -> None:
    lab.queue.enqueue("mail")
    message = lab.take()
    assert durations(lab)["wait"].total == 1
    lab.queue.ack(message.id, message.lock_token)
    for _ in range(2):
        assert (counted(lab)["done"], durations(lab)["wait"].total) == (1, 1)


def test_counts_of_large_batches_are_added_up_in_slices(lab: Lab) -> None:
    batches = 30
    for _ in range(batches):
        lab.queue.enqueue_batch([NewMessage(type="mail") for _ in range(100)])
        lab.queue.ack_many([(one.id, one.lock_token) for one in lab.queue.receive_many(100)])
    lab.client.config_resetstat()
    fold(lab, 1_000)
    fields = batches * (100 + 2 * 100 + 1)
    assert lab.commands()["evalsha"] >= fields // 2_500
    assert counted(lab)["done"] == batches * 100
