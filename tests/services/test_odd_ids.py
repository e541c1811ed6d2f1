"""Rooms and sites whose ids are not ObjectIds are handled like all others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from bson import ObjectId

from models import site, support_room
from models.database import collection
from models.document_id import id_text, shown_id
from queue_manager.core.clock import hours, minutes, seconds
from queue_manager.core.errors import PermanentError
from services.due_documents.listing import DocumentList
from services.due_documents.work import DocumentWork
from services.due_work import Limits
from services.stale_thumbnails import stale_thumbnails
from tests.odd_ids import ODD_IDS
from tests.rooms import (
    T0,
    AgingClock,
    HandClock,
    RecordedEvents,
    execute,
    execute_batch,
    get_room,
    is_awake,
    lease_state,
    make_room,
    scan,
)

pytestmark = pytest.mark.usefixtures("clean")

OVER = T0 - minutes(5)


def make_rooms() -> list[Any]:
    return [make_room(OVER, _id=id) for id in [ObjectId(), *ODD_IDS]]


@pytest.mark.parametrize("together", [True, False])
def test_rooms_with_ids_of_any_type_wake_and_have_their_events(
    snooze: DocumentWork, events: RecordedEvents, together: bool
) -> None:
    ids = make_rooms()
    items = scan(snooze)
    assert all(get_room(id)["snooze_queue_in_progress"] for id in ids)
    results = execute_batch(snooze, items) if together else [execute(snooze, item) for item in items]
    assert [result and result["success"] for result in results] == [True] * len(ids)
    assert all(map(is_awake, ids))
    assert sorted(data["room_id"] for _, data, _ in events.sent) == sorted(map(shown_id, ids))


def test_text_and_object_id_of_the_same_digits_are_two_rooms(snooze: DocumentWork) -> None:
    digits = "65a1b2c3d4e5f60718293a4b"
    make_room(T0 + minutes(5), _id=ObjectId(digits))
    make_room(OVER, _id=digits)
    (item,) = scan(snooze)
    execute(snooze, item)
    assert is_awake(digits)
    assert get_room(ObjectId(digits))["status"] == "snoozed"


def test_leases_of_ids_of_any_type_are_renewed_released_and_failed(snooze: DocumentWork, clock: AgingClock) -> None:
    ids = make_rooms()
    items = scan(snooze)
    snooze.postpone([items[0]], wait=minutes(3))
    snooze.renew(items)
    clock.advance(seconds(50))
    assert {lease_state(snooze, item) for item in items} == {"in-progress"}
    snooze.release(items)
    assert {lease_state(snooze, item) for item in items} == {"free"}
    assert [get_room(id)["snooze_queue_in_progress"] for id in ids] == [False] * len(ids)
    for item in scan(snooze):
        snooze.give_up(item, error="Boom")
    assert [get_room(id)["unsnooze_error"] for id in ids] == ["Boom"] * len(ids)


@pytest.mark.parametrize("newest_first", [True, False])
def test_rooms_due_at_the_same_time_are_paged_one_by_one(snooze: DocumentWork, newest_first: bool) -> None:
    ids = make_rooms()
    listed = DocumentList(work=snooze)
    found, after = [], None
    while item := next(listed.items("due", after=after, newest_first=newest_first), None):
        found.append(item.id)
        after = item.position
    assert sorted(found) == sorted(map(id_text, ids))
    assert len(listed.take(found)) == len(ids)


def test_sites_with_ids_of_any_type_are_reset_listed_and_retried() -> None:
    clock, threshold = HandClock(), hours(2)
    handed_over: list[tuple[str, str]] = []
    service = replace(
        stale_thumbnails(lambda *named: handed_over.append(named)),
        clock=clock,
        run="r",
        threshold=threshold,
        limits=Limits(batch=2, max_queue=100, ahead=0),
    )
    building = {"thumbnail_build_in_progress": True, "thumbnail_process_started_at": T0 - threshold - seconds(1)}
    ids = [ObjectId(), *ODD_IDS]
    sites = site.AGENCY_WEBSITES
    collection(sites.name).insert_many({"_id": id, **building} for id in ids)
    listed = [item.id for item in service.items("due")]
    assert sorted(listed) == sorted(f"{sites.name}:{id_text(id)}" for id in ids)
    assert all(map(service.has, listed))
    by_hand = service.take(listed)
    assert len(by_hand) == len(ids)
    service.release(by_hand)

    items = scan(service)
    results = [service.reset(*item.args, task_id=item.task_id) for item in items]

    assert [result.get("reset") for result in results] == [True] * len(ids)
    assert not list(sites.collection().find({"thumbnail_build_in_progress": {"$exists": True}}))
    assert sorted(handed_over) == sorted((sites.name, shown_id(id)) for id in ids)
    assert site.count_outcomes("r")[sites.name, "reset"] == len(ids)


@pytest.mark.parametrize("newest_first", [True, False])
@pytest.mark.parametrize("ids", [([9, 10], [80]), ([80], [9, 10]), (ODD_IDS[:9], ODD_IDS[9:])], ids=str)
def test_sites_of_two_collections_are_listed_once_page_by_page(ids: tuple[list[Any], ...], newest_first: bool) -> None:
    started = {"thumbnail_build_in_progress": True, "thumbnail_process_started_at": T0 - hours(3)}
    both = [site.AGENCY_WEBSITES, site.INSTASITES]
    for sites, some in zip(both, ids, strict=True):
        collection(sites.name).insert_many({"_id": id, "status": "PUBLISHED", **started} for id in some)
    hung = replace(stale_thumbnails(), clock=HandClock(), threshold=hours(2))

    listed, after = [], None
    while found := next(hung.items("due", after=after, newest_first=newest_first), None):
        listed.append(found.id)
        after = found.position

    assert sorted(listed) == sorted(
        f"{sites.name}:{id_text(id)}" for sites, some in zip(both, ids, strict=True) for id in some
    )


def test_query_operator_is_refused_as_an_id(snooze: DocumentWork) -> None:
    make_room(OVER)
    with pytest.raises(PermanentError, match="room_id"):
        snooze.execute('{"$gt": ""}', None, task_id="t")
    assert support_room.rooms().count_documents({"status": "open"}) == 0
