"""The check of histories finds each kind of broken promise, and nothing in a history that keeps them all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest

from queue_manager.core.clock import RESAMPLE_AFTER, seconds, to_iso
from tests.faults.faults import draw
from tests.faults.history import (
    Ack,
    Delivery,
    FaultSpan,
    History,
    JobRecord,
    JobRun,
    Probe,
    RoomChange,
    RoomEvent,
    Sent,
    violations,
)
from tests.faults.schedule import FAULTS, KINDS_OF_WORK
from tests.rooms import T0


def due(room: str, at: float, until: float) -> RoomChange:
    return RoomChange(room=room, at=T0 + seconds(at), due=T0 + seconds(until))


def woken(room: str, at: float) -> RoomChange:
    return RoomChange(room=room, at=T0 + seconds(at), woken=T0 + seconds(at))


def event(room: str, at: float) -> RoomEvent:
    return RoomEvent(room=room, woken=to_iso(T0 + seconds(at)))


def ack(message: str, token: str, at: float, outcome: str = "done") -> Ack:
    return Ack(message=message, token=token, at=at, outcome=outcome)


def delivery(message: str, token: str, asked: float) -> Delivery:
    return Delivery(message=message, token=token, asked=asked, at=asked + 0.1)


def run(job: str, began: float, ended: float | None, *, pid: int = 1) -> JobRun:
    return JobRun(name="letters", job=job, pid=pid, began=began, ended=ended)


def fault(began: float, ended: float, *, names: str | None = None, may_outlast_leases: bool = False) -> FaultSpan:
    return FaultSpan(
        kind="freeze", target="x", began=began, ended=ended, names=names, may_outlast_leases=may_outlast_leases
    )


@pytest.fixture
def history() -> History:
    """Everything was done once, among faults that left their marks."""
    return History(
        rooms=[
            due("a", 0, 5),
            due("b", 0, 5),
            due("poison", 0, 5),
            woken("a", 5),
            due("b", 5.1, 8),  # snoozed again before it woke
            woken("b", 8.2),
            due("a", 9, 10),  # and after it had woken
            woken("a", 10),
        ],
        poison={"poison"},
        events=[event("a", 5), event("a", 5), event("b", 8.2), event("a", 10)],
        sent=[Sent(message=id, began=1, accepted=2) for id in ("m1", "m2", "dead", "unsure")],
        deliveries=[
            delivery("m1", "t1", 2),
            delivery("m2", "t2", 2),
            delivery("m2", "t3", 5),
            delivery("dead", "t4", 3),
            delivery("unsure", "t5", 3),
        ],
        acks=[ack("m1", "t1", 3), ack("m2", "t2", 6, "refused"), ack("m2", "t3", 6), ack("unsure", "t5", 4, "unknown")],
        states={"m1": "acknowledged", "dead": "dead", "unsure": "acknowledged"},
        runs=[run("j1", 1, 2), run("j2", 2, None), run("j2", 5, 6), run("j3", 7, 11), run("j4", 10, 12)],
        jobs=[JobRecord(name="letters", job=id, state="success", successes=1) for id in ("j1", "j2", "j3", "j4")],
        faults=[fault(1, 6, names="Redis"), fault(7.5, 10, may_outlast_leases=True)],
        probes=[Probe(at=2, status=200, text=""), Probe(at=4, status=503, text="Redis does not answer")],
        recovery=dict.fromkeys(KINDS_OF_WORK, 0.5),
    )


def test_correct_history_has_no_violation(history: History) -> None:
    assert violations(history) == []
    assert history.wakes == 3


def test_messages_lost_by_redis_are_not_a_violation(history: History) -> None:
    history.sent.append(Sent(message="gone", began=1, accepted=2))
    assert len(violations(history)) == 1
    history.losses.append(1.5)
    assert violations(history) == []
    history.losses[0] = 0.5
    assert len(violations(history)) == 1


def test_a_room_is_early_by_the_clock_at_the_beginning_of_its_transaction_if_that_clock_jumps(history: History) -> None:
    wake(history, "c", 5.2, until=5)
    history.rooms[-1] = replace(history.rooms[-1], at=T0 + seconds(1))  # it was set back before the commit
    assert len(violations(history)) == 1
    history.faults[1] = replace(history.faults[1], sets_clock_of_rooms=True)
    assert violations(history) == []
    wake(history, "d", 4, until=5)
    assert len(violations(history)) == 1


def test_runs_may_overlap_until_each_process_has_read_the_clock_of_mongodb_again(history: History) -> None:
    history.runs += [run("j5", 20, 21.5), run("j6", 21, 22)]
    assert len(violations(history)) == 1
    jump = replace(fault(12, 20 - RESAMPLE_AFTER - 0.1, may_outlast_leases=True), sets_clock_of_rooms=True)
    history.faults.append(jump)
    assert len(violations(history)) == 1
    history.faults[-1] = replace(jump, ended=20 - RESAMPLE_AFTER + 0.1)
    assert violations(history) == []


def wake(history: History, room: str, at: float, *, until: float | None = None) -> None:
    """Add a wake with its event, and the snooze before it."""
    history.rooms += [due(room, 0, until)] if until is not None else []
    history.rooms.append(woken(room, at))
    history.events.append(event(room, at))


BROKEN: dict[str, Callable[[History], object]] = {
    "woke at 2026-01-31 09:30:11+00:00 although it was not snoozed": lambda h: wake(h, "a", 11),
    "woke 1.000 s before its snooze ended": lambda h: wake(h, "c", 4, until=5),
    "woke 2.800 s before": lambda h: h.rooms.insert(5, due("b", 8.1, 11)),  # a newer snooze was removed
    "c was due at 2026-01-31 09:30:05+00:00 and did not wake": lambda h: h.rooms.append(due("c", 0, 5)),
    "room b woke at 2026-01-31T09:30:08.200Z without an event": lambda h: h.events.remove(event("b", 8.2)),
    "an event says that room b woke at": lambda h: h.events.append(event("b", 9)),
    "m1 was acknowledged by 2 holders": lambda h: h.acks.append(ack("m1", "t9", 3)),
    "m1 was acknowledged and is dead": lambda h: h.states.update(m1="dead"),
    "dead was accepted and is gone": lambda h: h.states.pop("dead"),
    "unsure is main, neither acknowledged nor dead": lambda h: h.states.update(unsure="main"),
    "m1 was delivered after it had been acknowledged": lambda h: h.deliveries.append(delivery("m1", "t1", 4)),
    "job j9 of letters is failure": lambda h: h.jobs.append(
        JobRecord(name="letters", job="j9", state="failure", successes=0)
    ),
    "job j1 of letters succeeded 2 times": lambda h: h.jobs.append(replace(h.jobs.pop(0), successes=2)),
    "job j1 of letters succeeded although no run of it returned": lambda h: h.runs.pop(0),
    "job j4 of letters ran 0.50 s at once with j1": lambda h: h.runs.append(run("j4", 1.5, 1.6)),
    "job j4 of letters ran 1.00 s at once with j3": lambda h: h.faults.pop(),  # no lease was lost
    "/readyz did not name Redis while: freeze (x) for 5.0 s": lambda h: h.probes.pop(),
    "worker1 ended with 1": lambda h: h.deaths.append("worker1 ended with 1"),
    "GET /readyz: 500": lambda h: h.errors.append("GET /readyz: 500"),
    "events were not done 100 s after the last fault": lambda h: h.recovery.update(events=None),
}


@pytest.mark.parametrize("sentence", BROKEN)
def test_each_broken_guarantee_is_one_violation(sentence: str, history: History) -> None:
    BROKEN[sentence](history)
    (found,) = violations(history)
    assert sentence in found


def test_a_seed_determines_the_faults_and_those_of_one_target_do_not_overlap() -> None:
    for seed in range(200):
        faults = draw(seed, FAULTS)
        assert faults == draw(seed, FAULTS)
        for target in {one.target for one in faults}:
            of_target = [one for one in faults if one.target == target]
            assert all(one.begins + one.lasts < later.begins for one, later in pairwise(of_target))
    drawn = {one.kind.name for seed in range(2_000, 2_200) for one in draw(seed, FAULTS)}
    assert drawn == {one.name for one in FAULTS}


def test_a_seed_keeps_its_meaning_when_a_kind_is_added() -> None:
    added = replace(FAULTS[0], name="added", weight=1_000, since=50)
    for seed in range(100):
        assert (draw(seed, [*FAULTS, added]) == draw(seed, FAULTS)) == (seed < 50)
