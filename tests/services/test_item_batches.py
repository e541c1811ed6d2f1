"""Items executed as a batch have the same outcomes as single items, in every state."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace
from datetime import timedelta
from typing import Any
from unittest.mock import Mock

import pytest
from bson import ObjectId

from models import pulse, support_room
from queue_manager.broker.backlog import Backlog
from queue_manager.core.clock import minutes, seconds, to_iso
from queue_manager.core.errors import NotYetDue, Unavailable
from queue_manager.items import DueItem
from queue_manager.leases import Leases
from services.due_documents.work import DocumentWork
from services.due_work import FIRST_BATCH_SIZE
from services.review_requests import ReviewRequests, review_requests
from tests.command_log import commands
from tests.rooms import (
    T0,
    AgingClock,
    HandClock,
    RecordedEvents,
    execute,
    execute_batch,
    get_room,
    make_room,
    make_work,
    scan,
)

pytestmark = pytest.mark.usefixtures("clean", "elapsed")

OVER, LATER = T0 - minutes(5), T0 + seconds(7)
Document = dict[str, Any]
Ended = list[dict[str, Any] | tuple[str, str]]


def one_by_one(act: Callable[[DueItem], dict[str, Any]], items: Sequence[DueItem]) -> Ended:
    def end(item: DueItem) -> dict[str, Any] | tuple[str, str]:
        try:
            return act(item)
        except Exception as error:
            return type(error).__name__, str(error)

    return [end(item) for item in items]


def together(
    many: Callable[[Sequence[DueItem]], Sequence[Any]], act: Callable[[DueItem], dict[str, Any]], items: list[DueItem]
) -> Ended:
    """Do what a worker does with a group: what has no outcome is done by itself."""
    return [outcome or one_by_one(act, [item])[0] for item, outcome in zip(items, many(items), strict=True)]


# Rooms


def snoozed(token: str, due_at: Any = OVER, **fields: Any) -> Document:
    return {"status": "snoozed", "snooze_time": {"time": due_at}, "snooze_queue_in_progress": True, **fields}


def woken(token: str, **fields: Any) -> Document:
    return {"status": "open", "unsnoozed_at": T0 - minutes(1), "unsnoozed_by_task": token, **fields}


ROOMS: list[Callable[[str], Document | None]] = [
    snoozed,
    snoozed,
    snoozed,
    lambda token: snoozed(token, LATER),
    lambda token: snoozed(token, status="closed"),
    lambda token: snoozed(token, status="open", unsnooze_failures=2, unsnooze_error="old", unsnooze_retry_at=OVER),
    lambda token: snoozed(token, status=None),
    lambda token: snoozed(token, snooze_queue_in_progress=False),
    lambda token: snoozed(token, T0 + minutes(5)),
    lambda token: snoozed(token, OVER + minutes(1)),
    lambda token: snoozed(token, "soon"),
    lambda token: snoozed(token, snooze_time="soon"),
    lambda token: snoozed(token, snooze_time=[{"time": OVER}]),
    lambda token: snoozed(token, snooze_time=[None, {"time": OVER}]),
    lambda token: snoozed(token, snooze_time=None),
    lambda token: {"status": "open", "snooze_queue_in_progress": True},
    woken,
    lambda token: woken("another"),
    lambda token: woken(token, snooze_time={"time": OVER}, status="snoozed"),
    lambda token: woken(token, snooze_time={"time": LATER}, status="snoozed"),
    lambda token: woken(token, snooze_time="soon"),
    lambda token: woken(token, status="closed"),
    lambda token: None,
]


def some_rooms(chance: random.Random) -> tuple[list[Document], list[DueItem]]:
    rooms, items = [], []
    for number in range(20):
        token, room_id = f"task-{number}", ObjectId()
        state = chance.choice(ROOMS)(token)
        if state is not None:
            rooms.append({"_id": room_id, "account_id": ObjectId(), **state})
        due_at = chance.choice([OVER, OVER, OVER, LATER, None])
        args: tuple[Any, ...] = (str(room_id), due_at and to_iso(due_at))
        args = chance.choice([*[args] * 20, ("nonsense", None), (str(room_id), "soon"), (5, None)])
        items.append(DueItem(task_id=token, args=args))
    return rooms, items


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(0, 50, 10))
def test_rooms_of_a_batch_have_the_same_outcomes_as_single_rooms(seed: int, events: RecordedEvents) -> None:
    for chance in map(random.Random, range(seed, seed + 10)):
        compare_rooms(*some_rooms(chance), events)


def compare_rooms(rooms: list[Document], items: list[DueItem], events: RecordedEvents) -> None:
    def ended(run: Callable[[DocumentWork], Ended]) -> tuple[Ended, list[Document], list[Any]]:
        support_room.rooms().delete_many({})
        if rooms:
            support_room.rooms().insert_many(deepcopy(rooms))
        events.sent.clear()
        outcomes = run(make_work(HandClock()))
        stored = [without_task(room) for room in support_room.rooms().find().sort("_id")]
        return outcomes, stored, sorted(events.sent, key=str)

    def wake(snooze: DocumentWork) -> Callable[[DueItem], dict[str, Any]]:
        return lambda item: execute(snooze, item)

    assert ended(lambda snooze: together(snooze.execute_batch, wake(snooze), items)) == ended(
        lambda snooze: one_by_one(wake(snooze), items)
    )


def without_task(room: Document) -> Document:
    """Return the room without the id of its task, which is that of the batch."""
    return {name: value for name, value in room.items() if name != "unsnoozed_by_task"}


def test_a_batch_is_one_transaction_with_its_record_in_the_outbox(snooze: DocumentWork, events: RecordedEvents) -> None:
    rooms = {str(make_room(OVER)) for _ in range(100)}
    items = scan(snooze)

    with commands() as sent:
        results = execute_batch(snooze, items)

    assert all(result and result["success"] for result in results)
    assert sent == [
        *("find support_rooms", "update support_rooms", "insert qm_owed", "commitTransaction 1"),
        *("find qm_failed_items", "delete qm_owed"),
    ]
    assert {room["unsnoozed_by_task"] for room in support_room.rooms().find()} == {items[0].task_id}
    assert {data["room_id"] for _, data, _ in events.sent} == rooms
    assert len(events.sent) == 100


def test_the_batches_of_a_scan_double_up_to_their_limit(clock: AgingClock) -> None:
    for _ in range(4 * FIRST_BATCH_SIZE):
        make_room(OVER)
    work = make_work(clock, batch=2 * FIRST_BATCH_SIZE)
    assert [len(batch.items) for batch in work.take_due(Backlog)] == [
        *(FIRST_BATCH_SIZE, 2 * FIRST_BATCH_SIZE, FIRST_BATCH_SIZE)
    ]


def test_a_batch_that_is_delivered_again_writes_and_sends_nothing(snooze: DocumentWork, events: RecordedEvents) -> None:
    for _ in range(3):
        make_room(OVER)
    items = scan(snooze)
    snooze.execute_batch(items)
    after = list(support_room.rooms().find())

    assert snooze.execute_batch(items) == [{"skipped": True, "reason": "Snooze changed"}] * 3
    assert list(support_room.rooms().find()) == after
    assert len(events.sent) == 3


def test_what_a_batch_wrote_is_reported_although_redis_is_away_after_it(
    snooze: DocumentWork, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_room(OVER)
    moved = make_room(OVER)
    items = scan(snooze)
    support_room.rooms().update_one({"_id": moved}, {"$set": {"snooze_time.time": OVER + minutes(1)}})
    monkeypatch.setattr(Leases, "statuses", Mock(side_effect=Unavailable("gone")))
    results = {item.args[0]: result for item, result in zip(items, snooze.execute_batch(items), strict=True)}
    assert results.pop(str(moved)) is None
    assert [isinstance(one, dict) and one["success"] for one in results.values()] == [True]


def test_item_that_is_twice_in_a_batch_has_one_event(snooze: DocumentWork, events: RecordedEvents) -> None:
    make_room(OVER)
    (item,) = scan(snooze)
    first, second = snooze.execute_batch([item, item])
    assert first == second
    assert first is not None
    assert len(events.sent) == 1


@pytest.mark.parametrize("order", [1, -1])
def test_only_the_message_for_the_snooze_of_a_room_wakes_it(
    snooze: DocumentWork, events: RecordedEvents, order: int
) -> None:
    room = make_room(OVER)
    (item,) = scan(snooze)
    stale = DueItem(task_id="stale", args=(item.args[0], to_iso(OVER - minutes(1))))
    items = [item, stale][::order]
    found = [outcome or execute(snooze, one) for one, outcome in zip(items, execute_batch(snooze, items), strict=True)]
    assert [outcome.get("reason") for outcome in found] == [None, "Snooze changed"][::order]
    assert get_room(room)["status"] == "open"
    assert len(events.sent) == 1


def test_event_is_sent_although_the_room_is_snoozed_again_after_waking(
    snooze: DocumentWork, clock: AgingClock, events: RecordedEvents
) -> None:
    events.refusals = 3
    room = make_room(OVER)
    (first,) = execute_batch(snooze, scan(snooze))
    assert first is not None
    assert events.sent == []
    again = {"time": clock.now + minutes(5)}
    support_room.rooms().update_one({"_id": room}, {"$set": {"snooze_time": again, "status": "snoozed"}})
    clock.advance(minutes(1))

    (owed,) = scan(snooze.after_calls)
    snooze.after_calls.repeat(owed.args[0])

    ((_, data, _),) = events.sent
    assert data["timestamp"] == first["unsnoozed_at"]
    assert (get_room(room)["snooze_time"], get_room(room)["status"]) == (again, "snoozed")


def test_refused_events_are_sent_again_and_delay_no_wake(snooze: DocumentWork, events: RecordedEvents) -> None:
    events.refusals = 2
    rooms = [make_room(OVER) for _ in range(3)]
    snooze.execute_batch(scan(snooze))
    assert len(events.sent) == 3
    assert {get_room(room)["status"] for room in rooms} == {"open"}


def test_batch_waits_for_rooms_due_within_a_moment(snooze: DocumentWork, clock: AgingClock) -> None:
    for after in (seconds(0.05), seconds(0.02), -minutes(1)):
        make_room(T0 + after)
    items = scan(snooze)
    with pytest.raises(NotYetDue) as early:
        snooze.execute_batch(items)
    assert early.value.remaining == seconds(0.05)
    clock.advance(seconds(0.05))
    assert None not in execute_batch(snooze, items)


# Review requests


def reviews() -> ReviewRequests:
    return replace(
        review_requests(),
        clock=HandClock(),
        product_types=["seo"],
        after=timedelta(days=30),
        window=timedelta(days=31),
    )


def create(service: ReviewRequests) -> Callable[[DueItem], dict[str, Any]]:
    return lambda item: service.create(*item.args)


def some_pulses(chance: random.Random) -> tuple[list[Document], list[DueItem]]:
    accounts = [ObjectId() for _ in range(12)]
    parents = [None, "parent", *(ObjectId() for _ in range(4))]
    unblocked, pulses = list(accounts), []
    for account in chance.sample(accounts, 6):  # one that blocks: of several, one by one may name any
        unblocked.remove(account)
        pulses.append(
            {
                "account_id": chance.choice([account, account, str(account)]),
                "type": chance.choice(["review_request", "review_request", "survey"]),
                "status": chance.choice(["pending", "in_progress", "completed", "dismissed"]),
                "created_at": T0 - timedelta(days=chance.choice([0, 30, 31, 90])),
                **chance.choice([{}, {"completed_at": T0 - timedelta(days=chance.choice([3, 40]))}]),
            }
        )
    items = []
    for number in range(16):
        asked = chance.choice(accounts)
        parent = chance.choice(parents) if asked in unblocked else None
        args: tuple[Any, ...] = (str(asked), [str(ObjectId())], parent and str(parent), to_iso(OVER))
        args = chance.choice([*[args] * 20, (None, *args[1:]), (*args[:3], "noon"), ("text", [], None, to_iso(OVER))])
        items.append(DueItem(task_id=f"mark-{number}", args=args))
    return pulses, items


@pytest.mark.parametrize("seed", range(0, 50, 10))
def test_pulses_of_a_batch_equal_those_created_one_by_one(seed: int) -> None:
    for chance in map(random.Random, range(seed, seed + 10)):
        compare_pulses(*some_pulses(chance))


def compare_pulses(pulses: list[Document], items: list[DueItem]) -> None:
    def ended(run: Callable[[ReviewRequests], Ended]) -> tuple[Ended, list[Document]]:
        pulse.pulses().delete_many({})
        if pulses:
            pulse.pulses().insert_many(deepcopy(pulses))
        outcomes = run(reviews())
        return outcomes, sorted(pulse.pulses().find({}, {"_id": 0}), key=str)

    assert ended(lambda service: together(service.create_many, create(service), items)) == ended(
        lambda service: one_by_one(create(service), items)
    )


def test_a_batch_of_agencies_needs_one_read_and_one_write() -> None:
    items = [DueItem(task_id=str(one), args=(str(ObjectId()), [], None, to_iso(OVER))) for one in range(100)]
    with commands() as sent:
        assert all(outcome and outcome["success"] for outcome in reviews().create_many(items))
        assert sent == ["update projects.pulse"]
        again = reviews().create_many(items)
    assert sent == ["update projects.pulse", "update projects.pulse", "find projects.pulse"]
    assert again == [{"skipped": True, "reason": "Pending request exists"}] * 100
    assert pulse.pulses().count_documents({}) == 100


def test_unique_index_prevents_duplicates_of_concurrent_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    accounts = [ObjectId() for _ in range(3)]
    items = [DueItem(task_id=str(one), args=(str(one), [], None, to_iso(OVER))) for one in accounts]
    # The look finds nothing, as if the others had come right after it.
    real = pulse.blocking
    monkeypatch.setattr(pulse, "blocking", lambda since: {**real(since), "$or": [{"status": "never"}]})
    reviews().create_many(items[:2])
    first, second, third = reviews().create_many(items)
    assert first == second == {"skipped": True, "reason": "Pending request exists"}
    assert third == {"success": True, "account_id": str(accounts[2])}
    assert pulse.pulses().count_documents({}) == 3


def test_batch_without_valid_accounts_sends_no_command() -> None:
    with commands() as sent:
        assert reviews().create_many([DueItem(task_id="t", args=(None, [], None, ""))]) == [None]
    assert sent == []
