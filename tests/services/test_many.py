"""Items that are done together end as they would have ended one by one, whatever state they are in."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from datetime import timedelta
from typing import Any

import pytest
from bson import ObjectId
from pymongo import MongoClient
from pymongo.collection import Collection
from pymongo.monitoring import CommandFailedEvent, CommandListener, CommandStartedEvent, CommandSucceededEvent
from rooms import T0, HandClock, RecordedEvents, get_room, make_room, make_service

from models import pulse, support_room
from queue_manager.core.clock import minutes, seconds, to_iso
from queue_manager.core.errors import NotYetDue
from queue_manager.core.settings import settings
from services.due_work import Backlog, DueItem, Limits
from services.review_requests import ReviewRequests
from services.support_snooze import SupportSnooze

pytestmark = pytest.mark.usefixtures("clean")

OVER, LATER = T0 - minutes(5), T0 + seconds(7)
Document = dict[str, Any]
Ended = list[dict[str, Any] | tuple[str, str]]


class Commands(CommandListener):
    """The names of the commands that were sent."""

    def __init__(self) -> None:
        self.sent: list[str] = []

    def started(self, event: CommandStartedEvent) -> None:
        if event.command_name != "endSessions":
            self.sent.append(event.command_name)

    def succeeded(self, event: CommandSucceededEvent) -> None:
        """Nothing to keep."""

    def failed(self, event: CommandFailedEvent) -> None:
        """Nothing to keep."""


@contextmanager
def commands_of(module: Any, name: str, collection: Collection[Document]) -> Iterator[list[str]]:
    """Note the commands that go to the collection that `module.name` opens."""
    seen = Commands()
    with MongoClient(settings().mongo_db_url, event_listeners=[seen]) as client, pytest.MonkeyPatch.context() as patch:
        own = client.get_default_database(codec_options=collection.codec_options)[collection.name]
        patch.setattr(module, name, lambda: own)
        yield seen.sent


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


def claimed(token: str, due_at: Any = OVER, **fields: Any) -> Document:
    claim = {"token": token, "held": True, "claimed_until": T0 + minutes(1), "due_at": due_at, "losses": 0}
    return {
        "status": "snoozed",
        "snooze_time": {"time": due_at},
        "snooze_queue_in_progress": True,
        "claim": claim,
        **fields,
    }


def woken(token: str, **fields: Any) -> Document:
    return {"status": "open", "unsnoozed_at": T0 - minutes(1), "unsnoozed_by_task": token, **fields}


ROOMS: list[Callable[[str], Document | None]] = [
    claimed,
    claimed,
    claimed,
    lambda token: claimed(token, LATER),
    lambda token: claimed(token, status="closed"),
    lambda token: claimed(token, status="open", unsnooze_failures=2, unsnooze_error="old", unsnooze_retry_at=OVER),
    lambda token: claimed("another"),
    lambda token: claimed(token, snooze_time={"time": T0 + minutes(5)}),
    lambda token: claimed(token, snooze_time={"time": OVER + minutes(1)}),
    lambda token: claimed(token, snooze_time={"time": "soon"}),
    lambda token: claimed(token, snooze_time="soon"),
    lambda token: claimed(token, snooze_time=[{"time": OVER}]),
    lambda token: claimed(token, snooze_time=None),
    lambda token: {"status": "snoozed", "snooze_time": {"time": OVER}},
    lambda token: {"status": "snoozed", "snooze_time": {"time": LATER}},
    lambda token: {"status": "open", "claim": claimed(token)["claim"]},
    woken,
    lambda token: woken("another"),
    lambda token: woken(token, snooze_time={"time": OVER}, status="snoozed"),
    lambda token: woken(token, snooze_time={"time": LATER}, status="snoozed"),
    lambda token: woken(token, snooze_time="soon"),
    lambda token: woken(token, status="closed"),
    lambda token: woken(token, unsnoozed_at=None),
    lambda token: None,
]


def some_rooms(chance: random.Random) -> tuple[list[Document], list[DueItem]]:
    rooms, items = [], []
    for number in range(20):
        token, room_id = f"mark-{number}", ObjectId()
        state = chance.choice(ROOMS)(token)
        if state is not None:
            rooms.append({"_id": room_id, "account_id": ObjectId(), **state})
        due_at = chance.choice([OVER, OVER, OVER, LATER, None])
        args: tuple[Any, ...] = (str(room_id), due_at and to_iso(due_at))
        args = chance.choice([*[args] * 20, ("nonsense", None), (str(room_id), "soon"), (5, None)])
        items.append(DueItem(token=token, args=args))
    return rooms, items


@pytest.mark.parametrize("seed", range(0, 50, 10))
def test_rooms_end_as_they_do_one_by_one(seed: int) -> None:
    for chance in map(random.Random, range(seed, seed + 10)):
        compare_rooms(*some_rooms(chance))


def compare_rooms(rooms: list[Document], items: list[DueItem]) -> None:
    # A message for another time than that of its claim comes from nobody; then only the claim is asked together.
    items = [item for item in items if _is_sent(item, rooms)]

    def ended(run: Callable[[SupportSnooze], Ended]) -> tuple[Ended, list[Document], list[Any]]:
        support_room.rooms().delete_many({})
        if rooms:
            support_room.rooms().insert_many(deepcopy(rooms))
        events = RecordedEvents()
        outcomes = run(make_service(HandClock(), events))
        return outcomes, list(support_room.rooms().find().sort("_id")), sorted(events.sent, key=str)

    def wake(snooze: SupportSnooze) -> Callable[[DueItem], dict[str, Any]]:
        return lambda item: snooze.unsnooze(*item.args, token=item.token)

    assert ended(lambda snooze: together(snooze.unsnooze_many, wake(snooze), items)) == ended(
        lambda snooze: one_by_one(wake(snooze), items)
    )


def _is_sent(item: DueItem, rooms: list[Document]) -> bool:
    claims = {str(room["_id"]): room.get("claim", {}) for room in rooms}
    claim = claims.get(item.args[0], {})
    return claim.get("token") != item.token or item.args[1] in (None, "soon", to_iso(claim["due_at"]))


@pytest.fixture
def events() -> RecordedEvents:
    return RecordedEvents()


@pytest.fixture
def snooze(events: RecordedEvents) -> SupportSnooze:
    return make_service(HandClock(), events)


def claim(snooze: SupportSnooze) -> list[DueItem]:
    return [item for batch in snooze.claim_due(Backlog()) for item in batch.items]


def test_a_group_is_one_write_and_one_read_and_again_when_it_is_delivered_again(
    snooze: SupportSnooze, events: RecordedEvents
) -> None:
    rooms = {str(make_room(OVER)) for _ in range(100)}
    items = claim(snooze)

    with commands_of(support_room, "rooms", support_room.rooms()) as sent:
        first = snooze.unsnooze_many(items)
    assert sent == ["update", "find"]
    after = list(support_room.rooms().find())
    told = list(events.sent)
    assert {data["room_id"] for _, data, _ in told} == rooms
    assert len(told) == 100

    with commands_of(support_room, "rooms", support_room.rooms()) as sent:
        assert snooze.unsnooze_many(items) == first
    assert sent == ["update", "find"]
    assert list(support_room.rooms().find()) == after
    assert events.sent == told + told  # whether the first ones came out, nobody knows


def test_item_that_is_twice_in_a_group_is_told_once(snooze: SupportSnooze, events: RecordedEvents) -> None:
    make_room(OVER)
    (item,) = claim(snooze)
    first, second = snooze.unsnooze_many([item, item])
    assert first == second
    assert first is not None
    assert len(events.sent) == 1


@pytest.mark.parametrize("order", [1, -1])
def test_of_two_messages_for_a_room_the_one_that_holds_it_wakes_it(
    snooze: SupportSnooze, events: RecordedEvents, order: int
) -> None:
    room = make_room(OVER)
    (item,) = claim(snooze)
    stale = DueItem(token="stale", args=item.args)
    outcomes = snooze.unsnooze_many([item, stale][::order])
    assert sorted(outcome is None for outcome in outcomes) == [False, True]
    assert get_room(room)["unsnoozed_by_task"] == item.token
    assert snooze.unsnooze(*stale.args, token="stale") == {"skipped": True, "reason": "Snooze changed"}
    assert len(events.sent) == 1


def test_room_that_is_snoozed_again_after_its_wake_has_its_event_when_its_task_comes_back(
    events: RecordedEvents,
) -> None:
    clock = HandClock()
    snooze = make_service(clock, events)
    room = make_room(OVER)
    (item,) = claim(snooze)
    (first,) = snooze.unsnooze_many([item])
    assert first is not None
    events.sent.clear()  # as if it had been lost
    clock.advance(seconds(5))
    again = {"time": T0 + minutes(5)}
    support_room.rooms().update_one({"_id": room}, {"$set": {"snooze_time": again, "status": "snoozed"}})

    assert snooze.unsnooze_many([item]) == [None]
    assert snooze.unsnooze(*item.args, token=item.token) == first
    ((_, data, _),) = events.sent
    assert data["timestamp"] == first["unsnoozed_at"]
    assert (get_room(room)["snooze_time"], get_room(room)["status"]) == (again, "snoozed")


def test_refused_events_are_sent_again_and_delay_no_room() -> None:
    events = RecordedEvents(refusals=2)
    snooze = make_service(HandClock(), events)
    rooms = [make_room(OVER) for _ in range(3)]
    snooze.unsnooze_many(claim(snooze))
    assert len(events.sent) == 3
    assert {get_room(room)["status"] for room in rooms} == {"open"}


def test_rooms_that_fall_due_in_a_moment_are_waited_for(snooze: SupportSnooze) -> None:
    for after in (seconds(0.05), seconds(0.02), -minutes(1)):
        make_room(T0 + after)
    items = claim(snooze)
    with pytest.raises(NotYetDue) as early:
        snooze.unsnooze_many(items)
    assert early.value.remaining == seconds(0.05)
    snooze.clock.advance(seconds(0.05))  # type: ignore[attr-defined]
    assert None not in snooze.unsnooze_many(items)


# Review requests


def reviews() -> ReviewRequests:
    return ReviewRequests(
        clock=HandClock(),
        product_types=["seo"],
        after=timedelta(days=30),
        window=timedelta(days=31),
        limits=Limits(batch=100, max_queue=1000, ahead=0),
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
        account = str(chance.choice(accounts))
        parent = chance.choice(parents) if ObjectId(account) in unblocked else None
        args: tuple[Any, ...] = (account, [str(ObjectId())], parent and str(parent), to_iso(OVER))
        args = chance.choice([*[args] * 20, (None, *args[1:]), (*args[:3], "noon"), ("text", [], None, to_iso(OVER))])
        items.append(DueItem(token=f"mark-{number}", args=args))
    return pulses, items


@pytest.mark.parametrize("seed", range(0, 50, 10))
def test_pulses_are_created_as_they_are_one_by_one(seed: int) -> None:
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


def test_a_group_of_agencies_is_one_write_and_one_read_of_those_that_are_blocked() -> None:
    items = [DueItem(token=str(one), args=(str(ObjectId()), [], None, to_iso(OVER))) for one in range(100)]
    with commands_of(pulse, "pulses", pulse.pulses()) as sent:
        assert all(outcome and outcome["success"] for outcome in reviews().create_many(items))
        assert sent == ["update"]
        again = reviews().create_many(items)
    assert sent == ["update", "update", "find"]
    assert again == [{"skipped": True, "reason": "Pending request exists"}] * 100
    assert pulse.pulses().count_documents({}) == 100


def test_index_decides_where_another_worker_came_between(monkeypatch: pytest.MonkeyPatch) -> None:
    accounts = [ObjectId() for _ in range(3)]
    items = [DueItem(token=str(one), args=(str(one), [], None, to_iso(OVER))) for one in accounts]
    # The look finds nothing, as if the others had come right after it.
    real = pulse.blocking
    monkeypatch.setattr(pulse, "blocking", lambda since: {**real(since), "$or": [{"status": "never"}]})
    reviews().create_many(items[:2])
    first, second, third = reviews().create_many(items)
    assert first == second == {"skipped": True, "reason": "Pending request exists"}
    assert third == {"success": True, "account_id": str(accounts[2])}
    assert pulse.pulses().count_documents({}) == 3


def test_nothing_to_do_is_nothing_asked() -> None:
    with commands_of(pulse, "pulses", pulse.pulses()) as sent:
        assert reviews().create_many([DueItem(token="t", args=(None, [], None, ""))]) == [None]
    assert sent == []
