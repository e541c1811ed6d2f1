"""Rooms and sites as older applications left them: each is handled, or counted as malformed and named."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import bson
import pytest
from bson import DBRef, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp
from bson.raw_bson import RawBSONDocument

from beat_schedule import SYSTEMS
from models import database, schema, site, support_room
from models.document_id import shown_id
from models.listing import Sample
from queue_manager import pauses
from queue_manager.core.clock import hours, minutes, seconds, to_iso
from queue_manager.core.settings import settings
from queue_manager.health_rules import Rule
from services.due_documents.work import DocumentWork
from services.due_work import Limits
from services.stale_thumbnails import StaleThumbnails, stale_thumbnails
from tests.models.test_due_at_scale import profile
from tests.odd_ids import ODD_IDS
from tests.predecessors.node_process import NodeProcess, node
from tests.rooms import T0, AgingClock, RecordedEvents, execute, get_room, is_awake, make_room, scan

pytestmark = pytest.mark.usefixtures("clean")

OVER = T0 - minutes(5)
THRESHOLD = hours(2)
HUNG = T0 - THRESHOLD - seconds(1)
SOME_ID = ObjectId("6b033e5b2e6e6abceb1b5df0")
NO_DATES: list[Any] = [
    *("tomorrow", "2026-01-31T09:25:00.000Z", "", 1769851500, Int64(1769851500000), 1.5, Decimal128("1"), True, False),
    *(b"\x00\xff", SOME_ID, Regex("x"), Timestamp(5, 6), MinKey(), MaxKey(), DBRef("a", 1)),
    *([], [OVER], [None, OVER], {"$date": "2026-01-31T09:25:00Z"}, datetime(1, 1, 1, tzinfo=UTC)),
]
MALFORMED_SNOOZES: list[Any] = [
    *NO_DATES,
    *({}, {"set_by": SOME_ID}, [{"time": OVER}], OVER, T0 + hours(1)),
    *({"time": value} for value in [*NO_DATES, None, {}, {"time": OVER}]),
]
UNSNOOZED: list[dict[str, Any]] = [{}, {"snooze_time": None}, {"snooze_time": {"time": T0 + hours(1)}}]
ODD_STATUSES: list[Any] = [None, "Snoozed", "pending", 5, ["snoozed"], {"is": "snoozed"}]
ODD_ACCOUNTS: list[Any] = [None, "", "acc1", 7, float("nan"), b"\x00\xff", ["acc1"], {"x": 1}, MinKey(), DBRef("a", 1)]
CLAIMS: list[Any] = [
    *("agent-7", None, ["agent-7"], {"by": "agent-7"}),
    {"token": "t-1", "held": True, "claimed_until": T0, "due_at": T0, "losses": 0, "by": "agent-7"},
]


@pytest.fixture
def thumbnails(clock: AgingClock) -> StaleThumbnails:
    return replace(stale_thumbnails(), clock=clock)


def wake_all(work: DocumentWork, *, is_batch: bool = True) -> list[Any]:
    """Scan, execute what was dispatched, and return the results."""
    items = scan(work)
    return work.execute_batch(items) if is_batch else [execute(work, item) for item in items]


def reset_all(service: StaleThumbnails, sites: site.Sites) -> list[Any]:
    limits = Limits(batch=100, max_queue=1000, ahead=0)
    items = scan(replace(service, collections=[sites], run="r", threshold=THRESHOLD, limits=limits))
    return [service.reset(*item.args, task_id=item.task_id) for item in items]


# Rooms


@pytest.mark.parametrize("is_batch", [True, False])
def test_each_snooze_is_handled_or_named_as_malformed(snooze: DocumentWork, is_batch: bool) -> None:
    malformed = [make_room(snooze_time=value) for value in MALFORMED_SNOOZES]
    others = [support_room.rooms().insert_one({"status": "open", **fields}).inserted_id for fields in UNSNOOZED]
    due = [make_room(OVER, _id=id) for id in [ObjectId(), *ODD_IDS]]
    before = {id: get_room(id) for id in [*malformed, *others]}

    results = wake_all(snooze, is_batch=is_batch)

    assert [result["success"] for result in results] == [True] * len(due)
    assert all(map(is_awake, due))
    assert {id: get_room(id) for id in before} == before
    found = support_room.malformed()
    assert found.count == len(malformed)
    assert {*found.ids} <= {*malformed}
    problem = snooze.system.stats().problems[Rule.UNREADABLE_DOCUMENTS]
    assert problem.startswith(f"{len(malformed)} rooms with a malformed snooze_time")
    assert all(shown_id(id) in problem for id in found.ids)


@pytest.mark.parametrize("snooze_time", MALFORMED_SNOOZES, ids=lambda value: str(value)[:30])
def test_each_malformed_snooze_is_counted_alone(snooze_time: Any) -> None:
    room = make_room(snooze_time=snooze_time)
    assert support_room.malformed() == Sample(count=1, ids=[room])


def test_malformed_rooms_do_not_degrade_the_index_for_the_others(snooze: DocumentWork) -> None:
    for number, snooze_time in enumerate(MALFORMED_SNOOZES):
        room = make_room(snooze_time=snooze_time)
        if number % 2:
            support_room.rooms().delete_one({"_id": room})
    later = ({"snooze_time": {"time": T0 + hours(number)}} for number in range(1, 501))
    support_room.rooms().insert_many(later)
    due = [make_room(OVER) for _ in range(5)]
    with profile() as found:
        assert len(scan(snooze)) == len(due)
    reads = [one for one in found if one["op"] in ("query", "getmore")]
    assert sum(one["keysExamined"] for one in reads) <= 2 * len(due) + 10
    assert not any(one.get("hasSortStage") for one in reads)


def test_malformed_room_that_is_repaired_wakes(snooze: DocumentWork) -> None:
    room = make_room(snooze_time=OVER)
    assert scan(snooze) == []
    support_room.rooms().update_one({"_id": room}, {"$set": {"snooze_time": {"time": OVER}}})
    wake_all(snooze)
    assert is_awake(room)
    assert support_room.malformed().count == 0


@pytest.mark.parametrize("is_batch", [True, False])
def test_room_without_a_known_status_or_account_loses_its_snooze(
    snooze: DocumentWork, events: RecordedEvents, is_batch: bool
) -> None:
    no_status = support_room.rooms().insert_one({"snooze_time": {"time": OVER}}).inserted_id
    of_accounts = [make_room(OVER, account_id=account) for account in ODD_ACCOUNTS]
    of_statuses = [make_room(OVER, status=status) for status in ODD_STATUSES]
    wake_all(snooze, is_batch=is_batch)
    assert all(map(is_awake, [no_status, *of_accounts]))
    rooms = [get_room(id) for id in of_statuses]
    assert [room["status"] for room in rooms] == ["open", *ODD_STATUSES[1:]]
    assert not any("snooze_time" in room for room in rooms)
    json.dumps(events.sent)


def test_room_with_text_that_is_not_utf8_does_not_stop_others(snooze: DocumentWork) -> None:
    broken, good = ObjectId(), make_room(OVER)
    room = bson.encode({"_id": broken, "account_id": "a?c", "status": "snoozed", "snooze_time": {"time": OVER}})
    support_room.rooms().insert_one(RawBSONDocument(room.replace(b"a?c", b"a\xffc")))
    wake_all(snooze)
    assert is_awake(good)
    assert is_awake(broken)


@pytest.mark.parametrize("claim", CLAIMS, ids=str)
def test_claim_field_of_the_product_is_not_changed(snooze: DocumentWork, clock: AgingClock, claim: Any) -> None:
    room = make_room(OVER, claim=claim)
    (item,) = scan(snooze)
    assert get_room(room)["claim"] == claim
    snooze.give_up(item, error="Boom")
    assert get_room(room)["claim"] == claim
    clock.advance(hours(1))
    wake_all(snooze)
    assert is_awake(room)
    schema.finish(SYSTEMS)
    assert get_room(room)["claim"] == claim


def test_waking_changes_only_the_fields_of_the_snooze(snooze: DocumentWork) -> None:
    fields = {"updatedAt": OVER, "__v": 3, "messages": [{"text": "hello"}], "unread": {"agent-7": 2}}
    room = make_room(OVER, **fields)
    before = get_room(room)
    wake_all(snooze)
    after = get_room(room)
    changed = {name for name in after if after[name] != before.get(name)}
    assert changed == {"status", support_room.FLAG, "unsnoozed_at", "unsnoozed_by_task"}
    assert before.keys() - after.keys() == {"snooze_time"}


# Sites


@pytest.mark.parametrize("sites", site.ALL.values(), ids=lambda sites: sites.name)
def test_each_site_in_progress_is_reset_once_it_has_a_start(
    thumbnails: StaleThumbnails, clock: AgingClock, sites: site.Sites
) -> None:
    building = {"status": "PUBLISHED", "thumbnail_build_in_progress": True}
    starts = [{site.STARTED: value} for value in [*NO_DATES, None, {}, {"time": HUNG}, T0 + hours(1000)]]
    odd = [{"_id": ObjectId(), **building, **start} for start in [{}, *starts]]
    hung = [{"_id": id, **building, site.STARTED: HUNG} for id in [ObjectId(), *ODD_IDS]]
    of_details = [None, "", [], [{"thumbnails": None}], {}, {"thumbnails": None}, {"thumbnails": "none"}]
    hung += [{"_id": ObjectId(), **building, site.STARTED: HUNG, "details": details} for details in of_details]
    sites.collection().insert_many([*odd, *hung])

    assert len(reset_all(thumbnails, sites)) == len(hung)
    in_progress = {one["_id"]: one[site.STARTED] for one in sites.collection().find(site.IN_PROGRESS)}
    assert in_progress == {one["_id"]: T0 for one in odd}

    clock.advance(THRESHOLD + seconds(1))
    assert len(reset_all(thumbnails, sites)) == len(odd)
    assert sites.collection().count_documents(site.IN_PROGRESS) == 0
    left = sites.collection().find({}, {"_id": 0, "thumbnail_reset_count": 0})
    assert all(one.keys() <= {"status", "details"} for one in left)


# Rooms and sites of Mongoose, and its application at work next to ours


@pytest.fixture
def application() -> Iterator[Callable[..., Any]]:
    """An older application, as a function that has it execute a command and returns the result."""
    with node("rooms_and_sites.mjs", MONGO_DB_URL=settings().mongo_db_url) as process:
        assert process.next() == "connected"
        yield lambda command, **options: _call(process, command, **options)


def _call(process: NodeProcess, command: str, **options: Any) -> Any:
    process.send(json.dumps({"command": command, **options}))
    return process.next()


def create_snoozed(application: Callable[..., Any], **fields: Any) -> str:
    snooze_time = {"time": to_iso(OVER), "set_by": str(ObjectId()), "set_at": to_iso(OVER - hours(1))}
    account = str(ObjectId())
    room = {"account_id": account, "status": "snoozed", "snooze_time": snooze_time, **fields}
    created = application("create", model="room", fields=room)
    assert isinstance(created, str), created
    return created


@pytest.mark.node
def test_room_written_by_mongoose_wakes_and_satisfies_its_model(
    snooze: DocumentWork, events: RecordedEvents, application: Callable[..., Any]
) -> None:
    created = create_snoozed(application, claim={"by": "agent-7"})
    account = str(get_room(ObjectId(created))["account_id"])

    wake_all(snooze)

    room = application("resave", model="room", id=created)
    assert (room["status"], room["snooze_queue_in_progress"], room["claim"]) == ("open", False, {"by": "agent-7"})
    assert [(room, data["room_id"]) for _, data, room in events.sent] == [(f"support-{account}", created)]
    again = {"status": "snoozed", "snooze_time": {"time": to_iso(T0 - seconds(1))}}
    application("resave", model="room", id=created, fields=again)
    wake_all(snooze)
    assert is_awake(ObjectId(created))


@pytest.mark.node
def test_malformed_snooze_that_bypassed_the_model_is_named(
    snooze: DocumentWork, application: Callable[..., Any], clock: AgingClock
) -> None:
    created = create_snoozed(application, snooze_time={"set_by": str(ObjectId())})
    assert scan(snooze) == []
    assert support_room.malformed().ids == [ObjectId(created)]


@pytest.mark.node
def test_room_flagged_by_one_program_is_skipped_by_the_other(
    snooze: DocumentWork, application: Callable[..., Any], clock: AgingClock
) -> None:
    theirs = create_snoozed(application)
    assert application("scan", now=to_iso(T0)) == [theirs]
    ours = create_snoozed(application)
    (item,) = scan(snooze)
    assert item.args[0] == ours
    assert application("scan", now=to_iso(T0)) == []

    assert application("wake", id=theirs) == 1
    execute(snooze, item)
    assert is_awake(ObjectId(theirs))
    assert is_awake(ObjectId(ours))
    clock.advance(hours(1))
    assert scan(snooze) == []


@pytest.mark.node
def test_room_flagged_and_abandoned_by_the_application_wakes_after_one_lease(
    snooze: DocumentWork, application: Callable[..., Any], clock: AgingClock
) -> None:
    left = create_snoozed(application)
    assert application("scan", now=to_iso(T0)) == [left]
    assert scan(snooze) == []
    clock.advance(seconds(settings().qm_lease_seconds + 1))
    wake_all(snooze)
    assert is_awake(ObjectId(left))


@pytest.mark.node
def test_late_wake_by_the_application_changes_nothing(
    snooze: DocumentWork, events: RecordedEvents, application: Callable[..., Any]
) -> None:
    room = create_snoozed(application)
    (item,) = scan(snooze)
    assert application("wake", id=room) == 1
    assert "success" not in execute(snooze, item)
    assert is_awake(ObjectId(room))
    assert events.sent == []


@pytest.mark.node
def test_application_takes_over_again_while_the_system_is_paused(
    snooze: DocumentWork, application: Callable[..., Any]
) -> None:
    in_flight = create_snoozed(application)
    (item,) = scan(snooze)
    pauses.pause(snooze.system.name, by="a test")
    next_one = create_snoozed(application)
    assert scan(snooze) == []
    execute(snooze, item)
    assert is_awake(ObjectId(in_flight))
    assert application("scan", now=to_iso(T0)) == [next_one]


@pytest.mark.node
@pytest.mark.parametrize("model", ["website", "instasite"])
def test_site_written_by_mongoose_is_reset_and_satisfies_its_model(
    thumbnails: StaleThumbnails, application: Callable[..., Any], model: str
) -> None:
    sites = {"website": site.AGENCY_WEBSITES, "instasite": site.INSTASITES}[model]
    fields = {
        "status": "PUBLISHED",
        "details": {"name": "a site"},
        "thumbnail_build_in_progress": True,
        "thumbnail_process_started_at": to_iso(HUNG),
    }
    created = application("create", model=model, fields=fields)
    assert len(reset_all(thumbnails, sites)) == 1
    kept = application("resave", model=model, id=created)
    assert "thumbnail_build_in_progress" not in kept
    assert kept["details"] == {"name": "a site", "thumbnails": {"desktop": None, "mobile": None}}


@pytest.mark.node
def test_second_open_request_of_the_application_is_refused_by_the_unique_index(
    application: Callable[..., Any],
) -> None:
    request = {"account_id": str(ObjectId()), "type": "review_request", "status": "pending"}
    assert isinstance(application("create", model="pulse", fields=request), str)
    assert application("create", model="pulse", fields=request)["code"] == 11000
    assert database.collection("projects.pulse").count_documents({}) == 1
