"""The sweep requeues overdue messages among any number of others; sweeps are scheduled for deadlines that are near."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from threading import Barrier
from typing import Any

import pytest

from dev.servers import Valkey
from queue_manager.core.clock import milliseconds, seconds
from services.message_queue import NewMessage, SweepResult
from tests.services.message_queue.message_lab import Lab

HELD, OVERDUE = 10_000, 100


def enqueue_many(lab: Lab, count: int, **of_each: Any) -> list[str]:
    ids = [f"{number:05}" for number in range(count)]
    for begin in range(0, count, 500):
        lab.queue.enqueue_batch([NewMessage(type="job", id=id, **of_each) for id in ids[begin : begin + 500]])
    return ids


@pytest.mark.slow
def test_one_sweep_requeues_overdue_messages_behind_many_held_ones(
    lab: Lab, figure: Callable[[str], None], kind: str
) -> None:
    ids = enqueue_many(lab, HELD + OVERDUE)
    lab.take()  # loads its script
    lab.sweeper.sweep()  # so does this, which would count otherwise
    with lab.client.pipeline(transaction=False) as pipe:
        for number in range(len(ids) - 1):
            pipe.evalsha(lab.scripts._loaded["dequeue"].sha, 1, "q", 4, "", "", 1_000_000, 0, "", 1, f"token-{number}")
        pipe.execute()
    late = ids[-OVERDUE:]
    lab.lapse(*late)
    lab.client.config_resetstat()

    swept = lab.sweeper.sweep()

    assert swept.requeued == late
    commands = lab.commands()
    assert commands["evalsha"] == 2  # a full batch, and one that finds no more
    assert sum(commands.values()) < 20 * OVERDUE  # nothing of the others is looked at
    assert commands["xack"] == OVERDUE
    assert lab.contents.counts().processing == HELD
    figure(f"message queue on {kind}: {OVERDUE} overdue behind {HELD:,} held ones: {sum(commands.values()):,} commands")


@pytest.mark.slow
def test_two_concurrent_sweepers_requeue_a_message_once(server: Valkey) -> None:
    with Lab(server.url, batch=7) as one, Lab(server.url, batch=7) as other:
        ids = enqueue_many(one, 500)
        for _ in ids:
            one.take()
        one.lapse(*ids)
        begin = Barrier(2)

        def sweep(lab: Lab) -> SweepResult:
            begin.wait()
            return lab.sweeper.sweep()

        with ThreadPoolExecutor(2) as threads:
            swept = list(threads.map(sweep, [one, other]))

        assert sorted(id for of_one in swept for id in of_one.requeued) == ids
        assert sorted(one.ids("main")) == ids
        assert [one.take().attempt for _ in ids] == [2] * len(ids)


def test_sweep_continues_until_no_message_is_overdue(server: Valkey) -> None:
    with Lab(server.url, batch=3, max_attempts=1) as lab:
        ids = enqueue_many(lab, 10)
        for _ in ids:
            lab.take()
        lab.lapse(*ids)

        swept = lab.sweeper.sweep()

        assert swept.dead_lettered == ids
        assert [message.fields["last_error"] for message in lab.contents.list("dead").messages] == [
            "Max attempts exceeded (Stream)"
        ] * len(ids)


def test_sweep_publishes_its_events_in_the_form_that_other_programs_read(lab: Lab) -> None:
    for id, max_attempts in (("a", None), ("b", 1), ("c", 1)):
        lab.queue.enqueue("job", id=id, max_attempts=max_attempts)
        lab.take()
    lab.lapse("a", "b", "c")
    with lab.client.pubsub(ignore_subscribe_messages=True) as channel:
        channel.subscribe("q_events")
        channel.get_message(timeout=20)  # the reply to the subscription
        began = lab.now_ms()
        lab.sweeper.sweep()
        published = [json.loads(channel.get_message(timeout=20)["data"]) for _ in range(2)]
        ended = lab.now_ms()

    assert all(began <= one.pop("timestamp") <= ended for one in published)
    about = {"count": 1, "dlq_count": 2, "triggered_by": "scheduler", "ids": ["a"], "dlq_ids": ["b", "c"]}
    assert published == [
        {"type": "requeue", "payload": about},
        {"type": "move_to_dlq", "payload": {"count": 2, "ids": ["b", "c"]}},
    ]


def test_sweep_stops_at_its_budget(server: Valkey) -> None:
    with Lab(server.url, batch=3) as lab:
        ids = enqueue_many(lab, 10)
        for _ in ids:
            lab.take()
        lab.lapse(*ids)

        assert lab.sweeper.sweep(budget=timedelta(microseconds=1)).requeued == ids[:3]


@pytest.mark.parametrize("is_shared", [True, False])
def test_messages_of_a_removed_priority_get_the_highest(lab: Lab, is_shared: bool) -> None:
    with Lab(lab.url, levels=10) as before:
        ids = [before.queue.enqueue("job", priority=9, id=id) for id in ("held", "rejected", "parked", "waiting")]
        held, rejected = before.take(), before.take()
        before.contents.pause(["job"], by="ada")
        assert before.queue.dequeue() is None  # the third is parked, and so is the fourth
        before.contents.resume(["job"])
        before.queue.enqueue("job", priority=9, id="last")
    with Lab(lab.url, levels=4, is_shared=is_shared) as after:
        after.queue.nack(rejected.id, rejected.lock_token)
        after.lapse(held.id)
        assert after.sweeper.sweep().requeued == [held.id]
        after.heal()
        assert after.contents.counts().main == len(ids) + 1
        received = [after.take() for _ in range(len(ids) + 1)]
        assert sorted(one.id for one in received) == sorted([*ids, "last"])
        assert {one.fields["priority"] for one in received} == {3}
        assert after.queue.dequeue() is None


def test_requeued_message_keeps_its_priority_and_goes_to_the_tail(lab: Lab) -> None:
    for id, priority in (("a", 1), ("b", 1), ("c", 0)):
        lab.queue.enqueue("job", id=id, priority=priority)
    lab.take(type="job")
    lab.lapse("a")
    lab.sweeper.sweep()

    assert [lab.take().id for _ in range(3)] == ["b", "a", "c"]


# Planned sweeps


def test_sweep_is_scheduled_for_a_deadline_before_the_next_periodic_sweep(server: Valkey) -> None:
    plans: list[timedelta] = []
    with Lab(server.url, within=seconds(50), schedule_sweep=plans.append) as lab:
        for _ in range(10):
            lab.queue.enqueue("job")
        lab.take(ack_timeout=600)
        lab.take(ack_timeout=51)
        assert plans == []

        lab.take(ack_timeout=30)
        assert plans == [seconds(30)]
        message = lab.take(ack_timeout=40)  # the planned one looks again at its end
        assert plans == [seconds(30)]

        lab.take(ack_timeout=10)
        assert plans == [seconds(30), seconds(10)]
        lab.queue.touch(message.id, message.lock_token, 5)
        assert plans == [seconds(30), seconds(10), seconds(5)]
        lab.queue.touch(message.id, message.lock_token, 6)
        assert len(plans) == 3


def test_sweep_schedules_the_next_one_once(server: Valkey) -> None:
    with Lab(server.url, within=seconds(50), schedule_sweep=print) as lab:
        for _ in range(3):
            lab.queue.enqueue("job")
        lab.take(ack_timeout=20)
        lab.take(ack_timeout=600)
        lab.take(ack_timeout=0.001)
        lab.until_passed(lab.now_ms() + 2)

        swept = lab.sweeper.sweep(can_schedule=True, is_scheduled=True)
        assert len(swept.requeued) == 1
        assert swept.next_sweep_in is not None
        assert seconds(10) < swept.next_sweep_in <= seconds(20)
        assert swept.next_deadline_in is not None
        assert abs(swept.next_deadline_in - swept.next_sweep_in) < milliseconds_of(5)
        assert lab.sweeper.sweep(can_schedule=True).next_sweep_in is None
        assert (
            lab.sweeper.sweep(can_schedule=True, is_scheduled=True).next_sweep_in is None
        )  # another one, which is late
        assert lab.sweeper.sweep().next_sweep_in is None


def test_scheduled_sweep_that_comes_too_early_is_scheduled_again(server: Valkey) -> None:
    with Lab(server.url, within=seconds(50), schedule_sweep=print) as lab:
        for id in ("a", "b"):
            lab.queue.enqueue("job", id=id)
        lab.take(ack_timeout=20)
        lab.take(ack_timeout=0.1)
        deadline_ms = lab.now_ms() + 101

        early = lab.sweeper.sweep(can_schedule=True, is_scheduled=True)
        lab.until_passed(deadline_ms)
        swept = lab.sweeper.sweep(can_schedule=True, is_scheduled=True)

        assert early.next_sweep_in is not None
        assert early.requeued + swept.requeued == ["b"]


def milliseconds_of(amount: int) -> timedelta:
    return timedelta(milliseconds=amount)


def test_no_sweep_is_scheduled_for_a_distant_deadline(server: Valkey) -> None:
    with Lab(server.url, within=seconds(5)) as lab:
        lab.queue.enqueue("job")
        deadline_at = lab.take(ack_timeout=60).deadline_at
        assert deadline_at is not None
        deadline_ms, before_ms = round(deadline_at * 1000), lab.now_ms()

        swept = lab.sweeper.sweep(can_schedule=True)

        assert swept.next_sweep_in is None
        assert swept.next_deadline_in is not None
        assert deadline_ms - lab.now_ms() <= milliseconds(swept.next_deadline_in) <= deadline_ms - before_ms


def test_lost_schedule_of_a_sweep_is_renewed(server: Valkey) -> None:
    plans: list[timedelta] = []
    with Lab(server.url, within=seconds(0.01), schedule_sweep=plans.append) as lab:
        lab.queue.enqueue("job", id="a")
        lab.queue.enqueue("job", id="b")
        lab.take(ack_timeout=0.005)
        lab.until_passed(lab.now_ms() + 6)

        lab.take(ack_timeout=0.005)

        assert len(plans) == 2
        assert milliseconds(plans[0]) == 5


def test_message_is_delivered_although_its_sweep_cannot_be_scheduled(server: Valkey) -> None:
    def refuse(_: timedelta) -> None:
        raise ConnectionError("the broker is full")

    with Lab(server.url, schedule_sweep=refuse) as lab:
        lab.queue.enqueue("job", id="a")

        message = lab.take(ack_timeout=1)

        assert message.id == "a"
        assert lab.queue.touch("a", message.lock_token, 0.5)
