"""Rooms and sites whose ids are not ObjectIds are done as all others are."""

from __future__ import annotations

from typing import Any

import pytest
from bson import ObjectId
from odd_ids import ODD_IDS
from rooms import T0, HandClock, RecordedEvents, get_room, make_room, make_service

from models import site, support_room
from models.database import collection, id_text, shown_id
from queue_manager.core.clock import hours, minutes, seconds
from queue_manager.core.errors import PermanentError
from services.due_work import Backlog, DueItem, Limits
from services.stale_thumbnails import HungSites, StaleSites, StaleThumbnails
from services.support_snooze import SupportSnooze

pytestmark = pytest.mark.usefixtures("clean")

OVER = T0 - minutes(5)


@pytest.fixture
def events() -> RecordedEvents:
    return RecordedEvents()


@pytest.fixture
def snooze(events: RecordedEvents) -> SupportSnooze:
    return make_service(HandClock(), events)


def claim(snooze: SupportSnooze) -> list[DueItem]:
    return [item for batch in snooze.claim_due(Backlog()) for item in batch.items]


def make_rooms() -> list[Any]:
    return [make_room(OVER, _id=id) for id in [ObjectId(), *ODD_IDS]]


def is_awake(id: Any) -> bool:
    room = get_room(id)
    return room["status"] == "open" and "snooze_time" not in room and "claim" not in room


@pytest.mark.parametrize("together", [True, False])
def test_rooms_wake_and_are_told(snooze: SupportSnooze, events: RecordedEvents, together: bool) -> None:
    ids = make_rooms()
    items = claim(snooze)
    if together:
        results = snooze.unsnooze_many(items)
    else:
        results = [snooze.unsnooze(*item.args, token=item.token) for item in items]
    assert [result and result["success"] for result in results] == [True] * len(ids)
    assert all(map(is_awake, ids))
    assert sorted(data["room_id"] for _, data, _ in events.sent) == sorted(map(shown_id, ids))


def test_text_and_object_id_of_the_same_digits_are_two_rooms(snooze: SupportSnooze) -> None:
    digits = "65a1b2c3d4e5f60718293a4b"
    make_room(T0 + minutes(5), _id=ObjectId(digits))
    make_room(OVER, _id=digits)
    (item,) = claim(snooze)
    snooze.unsnooze(*item.args, token=item.token)
    assert is_awake(digits)
    assert get_room(ObjectId(digits))["status"] == "snoozed"


def test_leases_are_renewed_given_back_and_given_up(snooze: SupportSnooze) -> None:
    ids = make_rooms()
    items = claim(snooze)
    snooze.postpone(items[0], wait=minutes(3))
    snooze.renew(items)
    assert min(get_room(id)["claim"]["claimed_until"] for id in ids) >= T0 + minutes(1)
    snooze.release(items)
    assert [get_room(id)["claim"]["held"] for id in ids] == [False] * len(ids)
    for item in claim(snooze):
        snooze.give_up(item, error="Boom")
    assert [get_room(id)["unsnooze_error"] for id in ids] == ["Boom"] * len(ids)


@pytest.mark.parametrize("newest_first", [True, False])
def test_list_of_rooms_of_one_moment_goes_on_behind_each(snooze: SupportSnooze, newest_first: bool) -> None:
    ids = make_rooms()
    found, after = [], None
    while item := next(snooze.items("due", after=after, newest_first=newest_first), None):
        found.append(item.id)
        after = item.position
    assert sorted(found) == sorted(map(id_text, ids))
    assert len(snooze.take(found)) == len(ids)


def test_sites_are_reset_listed_and_taken_by_hand() -> None:
    clock, threshold = HandClock(), hours(2)
    handed_over: list[tuple[str, str]] = []
    service = StaleThumbnails(clock=clock, hand_over=lambda *named: handed_over.append(named))
    building = {"thumbnail_build_in_progress": True, "thumbnail_process_started_at": T0 - threshold - seconds(1)}
    ids = [ObjectId(), *ODD_IDS]
    sites = site.AGENCY_WEBSITES
    collection(sites.name).insert_many({"_id": id, **building} for id in ids)
    work = StaleSites(
        sites=sites, run="r", clock=clock, threshold=threshold, limits=Limits(batch=2, max_queue=100, ahead=0)
    )
    hung = HungSites(clock=clock, threshold=threshold)
    listed = [item.id for item in hung.items("due")]
    assert sorted(listed) == sorted(f"{sites.name}:{id_text(id)}" for id in ids)
    assert len(hung.take(listed)) == len(ids)
    assert all(map(hung.has, listed))

    items = [item for batch in work.claim_due(Backlog()) for item in batch.items]
    results = [service.reset(*item.args, token=item.token) for item in items]

    assert [result.get("reset") for result in results] == [True] * len(ids)
    assert not list(sites.collection().find({"thumbnail_build_in_progress": {"$exists": True}}))
    assert sorted(handed_over) == sorted((sites.name, shown_id(id)) for id in ids)
    assert site.outcomes("r")[sites.name, "reset"] == len(ids)


def test_condition_is_not_an_id(snooze: SupportSnooze) -> None:
    make_room(OVER)
    with pytest.raises(PermanentError, match="room_id"):
        snooze.unsnooze('{"$gt": ""}', None, token="t")
    assert support_room.rooms().count_documents({"status": "open"}) == 0
