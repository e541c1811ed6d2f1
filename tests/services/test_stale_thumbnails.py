"""Which builds are stale, what a reset changes, and what a run reports, on the real MongoDB."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from bson import Binary, Decimal128, ObjectId
from pymongo.errors import AutoReconnect

from models import item_events, site
from models.database import collection, server_now
from models.site import AGENCY_WEBSITES, INSTASITES, Sites
from queue_manager import pauses
from queue_manager.broker.backlog import Backlog
from queue_manager.core.clock import hours, minutes, seconds, to_iso, unix_ms
from queue_manager.core.errors import NotYetDue, PermanentError
from queue_manager.health_rules import Rule
from queue_manager.items import DueItem
from services.due_work import Limits
from services.site_stats import read_stats
from services.stale_thumbnails import StaleThumbnails, stale_thumbnails, system, threshold
from tests.rooms import T0, AgingClock, unchangeable
from tests.rooms import scan as scan_work

pytestmark = pytest.mark.usefixtures("clean")

THRESHOLD = hours(2)
OVER = T0 - THRESHOLD - seconds(1)


@pytest.fixture
def service(clock: AgingClock) -> StaleThumbnails:
    return replace(stale_thumbnails(), clock=clock)


def make_site(sites: Sites = AGENCY_WEBSITES, started_at: Any = OVER, **fields: Any) -> ObjectId:
    document = {
        "status": "PUBLISHED",
        "details": {"name": "a site", "thumbnails": {"desktop": None, "mobile": "m.png"}},
        "thumbnail_build_in_progress": True,
        "thumbnail_process_started_at": started_at,
        "thumbnail_build_id": "b1",
        **fields,
    }
    return collection(sites.name).insert_one(document).inserted_id


def get_site(site_id: ObjectId, sites: Sites = AGENCY_WEBSITES) -> dict[str, Any]:
    found = collection(sites.name).find_one({"_id": site_id})
    assert found is not None
    return found


def work_on(sites: Sites, clock: AgingClock, run: str = "r", **limits: int) -> StaleThumbnails:
    bounds = Limits(**{"batch": 2, "max_queue": 100, "ahead": 0, **limits})
    (work,) = [work for work in stale_thumbnails().by_collection() if work.collections == [sites]]
    return replace(work, clock=clock, run=run, threshold=THRESHOLD, limits=bounds)


def scan(sites: Sites, clock: AgingClock, run: str = "r", **limits: int) -> list[DueItem]:
    return scan_work(work_on(sites, clock, run, **limits))


def reset(service: StaleThumbnails, item: DueItem) -> dict[str, Any]:
    return service.reset(*item.args, task_id=item.task_id)


@pytest.mark.parametrize(
    ("started_at", "is_stale"),
    [
        (T0 - THRESHOLD, False),
        (T0 - THRESHOLD - timedelta(milliseconds=1), True),
        (T0 - THRESHOLD + seconds(1), False),
        (T0 - hours(1000), True),
        (T0, False),
    ],
)
def test_stale_is_strictly_older_than_the_threshold(clock: AgingClock, started_at: datetime, is_stale: bool) -> None:
    made = make_site(started_at=started_at)
    assert [item.args[1] for item in scan(AGENCY_WEBSITES, clock)] == ([str(made)] if is_stale else [])


@pytest.mark.parametrize(
    ("sites", "status", "is_stale"),
    [
        (AGENCY_WEBSITES, "PUBLISHED", True),
        (AGENCY_WEBSITES, "DRAFT", True),
        (INSTASITES, "PUBLISHED", True),
        (INSTASITES, "DRAFT", False),
    ],
)
def test_only_published_instasites_count(clock: AgingClock, sites: Sites, status: str, is_stale: bool) -> None:
    make_site(sites, status=status)
    assert bool(scan(sites, clock)) is is_stale


@pytest.mark.parametrize(
    "fields",
    [
        {"thumbnail_build_in_progress": False},
        {"thumbnail_build_in_progress": "true"},
        {"thumbnail_build_in_progress": None},
    ],
)
def test_site_that_is_not_being_built_is_not_reset(clock: AgingClock, fields: dict[str, Any]) -> None:
    make_site(**fields)
    assert scan(AGENCY_WEBSITES, clock) == []


def test_site_without_a_thumbnails_field_is_stale(clock: AgingClock) -> None:
    made = make_site(details={})
    assert [item.args[1] for item in scan(AGENCY_WEBSITES, clock)] == [str(made)]


def test_reset_removes_the_build_and_nothing_else(clock: AgingClock, service: StaleThumbnails) -> None:
    made = make_site()
    (item,) = scan(AGENCY_WEBSITES, clock)

    result = reset(service, item)

    assert result == {
        "reset": True,
        "collection": "agency_websites",
        "site_id": str(made),
        "resets_in_a_row": 1,
    }
    assert get_site(made) == {
        "_id": made,
        "status": "PUBLISHED",
        "details": {"name": "a site", "thumbnails": {"desktop": None, "mobile": "m.png"}},
        "thumbnail_reset_count": 1,
    }


def test_restarted_build_keeps_its_flag(clock: AgingClock, service: StaleThumbnails) -> None:
    made = make_site()
    (item,) = scan(AGENCY_WEBSITES, clock)
    collection("agency_websites").update_one({"_id": made}, {"$set": {"thumbnail_process_started_at": T0}})

    assert reset(service, item) == {"skipped": True, "reason": "Build changed"}
    assert get_site(made)["thumbnail_build_in_progress"] is True


@pytest.mark.parametrize(
    ("sites", "change"), [(AGENCY_WEBSITES, {"thumbnail_build_in_progress": False}), (INSTASITES, {"status": "DRAFT"})]
)
def test_build_that_completed_or_is_unpublished_meanwhile_is_not_reset(
    sites: Sites, change: dict[str, Any], clock: AgingClock, service: StaleThumbnails
) -> None:
    made = make_site(sites)
    (item,) = scan(sites, clock)
    collection(sites.name).update_one({"_id": made}, {"$set": change})
    assert reset(service, item)["reason"] == "Build changed"
    assert get_site(made, sites)["thumbnail_process_started_at"] == OVER


def test_deleted_site_is_skipped(clock: AgingClock, service: StaleThumbnails) -> None:
    made = make_site()
    (item,) = scan(AGENCY_WEBSITES, clock)
    collection("agency_websites").delete_one({"_id": made})
    assert reset(service, item) == {"skipped": True, "reason": "Site not found"}


@pytest.mark.parametrize("started_at", [None, "yesterday", 5, T0 + hours(3), datetime(1, 1, 1), [OVER]])
def test_build_without_a_usable_start_is_stamped_and_reset_one_threshold_later(
    clock: AgingClock, service: StaleThumbnails, started_at: Any
) -> None:
    made = make_site(started_at=started_at)

    assert scan(AGENCY_WEBSITES, clock) == []
    assert get_site(made)["thumbnail_process_started_at"] == T0
    clock.advance(THRESHOLD)
    assert scan(AGENCY_WEBSITES, clock) == []
    clock.advance(seconds(1))
    (item,) = scan(AGENCY_WEBSITES, clock)
    assert reset(service, item)["reset"] is True


@pytest.mark.parametrize("started_at", [T0 - hours(1), T0, T0 + THRESHOLD], ids=["before", "now", "a clock ahead"])
def test_build_that_does_not_hang_keeps_its_start(clock: AgingClock, started_at: datetime) -> None:
    made = make_site(started_at=started_at)
    before = get_site(made)
    assert scan(AGENCY_WEBSITES, clock) == []
    assert get_site(made) == before


def test_item_is_due_one_threshold_after_the_start_of_the_build(clock: AgingClock) -> None:
    make_site()
    work = work_on(AGENCY_WEBSITES, clock)
    (item,) = scan_work(work)
    assert work.due_ms(item) == unix_ms(OVER + THRESHOLD)


def test_a_site_that_mongodb_refuses_to_change_does_not_stop_the_others(clock: AgingClock) -> None:
    hung = make_site()
    unstamped = [make_site(started_at=None) for _ in range(3)]
    with_thumbnail = make_site(thumbnail_reset_count=3, details={"thumbnails": {"desktop": "d.png"}})
    with unchangeable(AGENCY_WEBSITES.name, unstamped[0]):
        assert str(hung) in [item.args[1] for item in scan(AGENCY_WEBSITES, clock)]
    assert [get_site(one)["thumbnail_process_started_at"] for one in unstamped] == [None, T0, T0]
    assert "thumbnail_reset_count" not in get_site(with_thumbnail)


@pytest.mark.parametrize("held_back", ["paused", "dry run"])
def test_paused_or_dry_run_scan_changes_no_site(
    clock: AgingClock, held_back: str, change_settings: Callable[..., None]
) -> None:
    made = make_site(started_at=None, thumbnail_reset_count=3, details={"thumbnails": {"desktop": "d.png"}})
    if held_back == "paused":
        pauses.pause("stale-thumbnails", by="ada")
    else:
        change_settings(QM_DRY_RUN="stale-thumbnails")
    before = get_site(made)
    assert [batch.items for batch in work_on(AGENCY_WEBSITES, clock).take_due(Backlog)] in ([], [[]])
    assert get_site(made) == before


@pytest.mark.parametrize(
    "count",
    [float("inf"), float("-inf"), float("nan"), 1e308, 7.5, None, "many", [7], {"a": 7}]
    + [Decimal128(text) for text in ("7", "Infinity", "sNaN")],
    ids=str,
)
def test_invalid_reset_count_counts_as_zero(count: Any, clock: AgingClock, service: StaleThumbnails) -> None:
    made = make_site(thumbnail_reset_count=count)
    (listed,) = AGENCY_WEBSITES.stale(T0 - THRESHOLD, is_descending=True)
    assert listed.resets == 0
    assert [*AGENCY_WEBSITES.list_reset_often(after=None, is_descending=True)] == []
    assert AGENCY_WEBSITES.count_reset_often() == 0

    (item,) = scan(AGENCY_WEBSITES, clock)
    assert reset(service, item)["resets_in_a_row"] == get_site(made)["thumbnail_reset_count"] == 1


def test_stamped_builds_and_cleared_flags_have_their_own_counts(clock: AgingClock) -> None:
    make_site(started_at=None)
    make_site(details={"thumbnails": {"desktop": "d.png"}})
    make_site()
    make_site(details="nonsense")
    stamped, stale = work_on(AGENCY_WEBSITES, clock, batch=10).take_due(Backlog)
    assert (stamped.found, stamped.other_counts) == (0, {"stamped": 1})
    assert (stale.found, stale.other_counts) == (3, {"finished": 1})


def test_flag_next_to_a_thumbnail_is_cleared_and_does_not_count_as_a_reset_in_a_row(
    clock: AgingClock, service: StaleThumbnails
) -> None:
    made = make_site(details={"thumbnails": {"desktop": "d.png"}}, thumbnail_reset_count=3)
    assert AGENCY_WEBSITES.count_finished(T0 - THRESHOLD) == 1
    (item,) = scan(AGENCY_WEBSITES, clock)

    assert reset(service, item)["resets_in_a_row"] == 0
    assert get_site(made).keys() == {"_id", "status", "details"}


def test_resets_in_a_row_are_counted_until_the_thumbnail_is_there(
    clock: AgingClock, service: StaleThumbnails, caplog: pytest.LogCaptureFixture
) -> None:
    made = make_site()
    counts, warned = [], []
    for run in range(6):
        collection("agency_websites").update_one(
            {"_id": made},
            {"$set": {"thumbnail_build_in_progress": True, "thumbnail_process_started_at": OVER - seconds(run)}},
        )
        caplog.clear()
        (item,) = scan(AGENCY_WEBSITES, clock, run=f"run{run}")
        counts.append(reset(service, item)["resets_in_a_row"])
        warned.append(any("many times in a row" in str(record.msg) for record in caplog.records))
    assert counts == [1, 2, 3, 4, 5, 6]
    assert warned == [False] * 4 + [True] * 2

    collection("agency_websites").update_one({"_id": made}, {"$set": {"details.thumbnails.desktop": "d.png"}})
    scan(AGENCY_WEBSITES, clock)
    assert "thumbnail_reset_count" not in get_site(made)


def test_published_sites_that_were_reset_often_are_stuck_until_the_thumbnail_is_there() -> None:
    again = [make_site(sites, thumbnail_reset_count=4) for sites in site.ALL.values()]
    assert [sites.reset(one, OVER) for sites, one in zip(site.ALL.values(), again, strict=True)] == [5, 5]
    make_site(thumbnail_reset_count=4)
    make_site(thumbnail_reset_count=6, details={"thumbnails": {"desktop": "d.png"}})
    make_site(INSTASITES, thumbnail_reset_count=6, status="DRAFT")
    listed = [[*sites.list_reset_often(after=None, is_descending=True)] for sites in site.ALL.values()]
    assert listed == [[(one, 5)] for one in again]
    assert system.stats().numbers["stuck"] == 2


def test_health_counts_by_collection_and_names_the_ten_builds_that_hang_longest(service: StaleThumbnails) -> None:
    of_each = [*[AGENCY_WEBSITES] * 8, *[INSTASITES] * 4]
    made = [(one, make_site(one, OVER - hours(number))) for number, one in enumerate(of_each)]
    make_site(details={"thumbnails": {"desktop": "d.png"}})
    make_site(started_at=T0)
    make_site(INSTASITES, status="DRAFT")
    for number, age in enumerate((hours(24) + minutes(1), hours(24) - minutes(1), hours(1))):
        site.record_outcome(f"run-{number}", INSTASITES.name, str(number), "reset", now=T0 - age)

    found = read_stats(replace(service, threshold=THRESHOLD), late=hours(10))

    assert found.numbers == {
        "stuck_agency_websites": 8,
        "finished_agency_websites": 1,
        "stuck_instasites": 4,
        "finished_instasites": 0,
        "due": 13,
        "stuck": 0,
        "failed": 0,
        "resets_last_day": 2,
        "lag_seconds": hours(11).total_seconds() + 1,
    }
    longest = [(f"{one.name} {id}", number) for number, (one, id) in enumerate(made)][:-11:-1]
    assert found.details == [f"{name}: the build began {number + 2:.1f} h ago" for name, number in longest]
    assert sorted(found.late) == sorted(name for name, number in longest if number >= 10)
    assert found.problems == {}


def test_health_names_sites_with_uuids_as_people_write_them(service: StaleThumbnails) -> None:
    id = UUID(int=2**127 - 7)
    make_site(_id=Binary.from_uuid(id), thumbnail_reset_count=6)
    found = read_stats(replace(service, threshold=THRESHOLD), late=seconds(0))
    assert found.late == [f"{AGENCY_WEBSITES.name} {id}"]
    assert f"({AGENCY_WEBSITES.name} {id} 6 times)" in found.problems[Rule.REPEATED_RESETS]


def test_failed_resets_of_the_last_24_hours_are_counted_and_listed() -> None:
    now, ages = server_now(), [hours(25), hours(24) + minutes(1), hours(24) - minutes(1), hours(1)]
    for number, age in enumerate(ages):
        site.record_outcome(f"run-{number}", INSTASITES.name, str(number), "failed", now=now - age, error="boom")
    assert system.stats().numbers["failed"] == 2
    assert [one.since for one in system.open_items().items("failed")] == [now - age for age in reversed(ages[2:])]


def test_site_in_flight_is_not_dispatched_again_unless_its_message_was_lost(clock: AgingClock) -> None:
    made = make_site()
    (first,) = scan(AGENCY_WEBSITES, clock, run="first")
    assert scan(AGENCY_WEBSITES, clock, run="second") == []
    clock.advance(hours(1))
    (second,) = scan(AGENCY_WEBSITES, clock, run="third")
    assert (first.args, second.args[1]) == (second.args, str(made))
    assert second.task_id.startswith("third-")


def test_build_that_hangs_again_is_found_under_the_lease_of_the_one_before(clock: AgingClock) -> None:
    made = make_site()
    scan(AGENCY_WEBSITES, clock)
    again = OVER - minutes(1)
    collection("agency_websites").update_one({"_id": made}, {"$set": {"thumbnail_process_started_at": again}})
    (item,) = scan(AGENCY_WEBSITES, clock)
    assert item.args[2] == to_iso(again)


def test_sites_of_two_collections_with_one_id_are_two(clock: AgingClock) -> None:
    id = make_site()
    make_site(INSTASITES, _id=id)
    assert [len(scan(sites, clock)) for sites in (AGENCY_WEBSITES, INSTASITES)] == [1, 1]


def test_sites_of_two_collections_retried_together_have_their_own_tasks_in_the_timelines() -> None:
    ids = [f"{sites.name}:{make_site(sites)}" for sites in site.ALL.values()]
    taken = system.open_items().take(ids)
    stale_thumbnails().mark_dispatched_manually(taken)
    histories = [item_events.of_item(system.name, " ".join(item.args[:2])) for item in taken]
    assert [event.task for history in histories for event in history.events] == [item.task_id for item in taken]


def test_only_chosen_sites_that_hang_are_reset_by_hand(service: StaleThumbnails) -> None:
    chosen, _, young = make_site(), make_site(), make_site(started_at=T0)
    work = replace(service, threshold=THRESHOLD)
    taken = work.take([site.item_id("agency_websites", str(one)) for one in (chosen, young)])
    assert [item.args for item in taken] == [("agency_websites", str(chosen), to_iso(OVER))]


def test_sites_are_dispatched_oldest_first_up_to_the_limit_of_the_queue(clock: AgingClock) -> None:
    made = [make_site(started_at=OVER - hours(age)) for age in (1, 3, 2)]
    found = scan(AGENCY_WEBSITES, clock, max_queue=2)
    assert [item.args[1] for item in found] == [str(made[1]), str(made[2])]


def test_run_is_logged_with_the_actual_resets_after_all_items_have_reported(
    clock: AgingClock, service: StaleThumbnails, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    for _ in range(3):
        make_site()
    make_site(INSTASITES)
    items = scan(AGENCY_WEBSITES, clock) + scan(INSTASITES, clock)
    until = to_iso(T0 + hours(1))
    for item in items[:-1]:
        reset(service, item)
    with pytest.raises(NotYetDue):
        service.log_resets("r", len(items), until)
    reset(service, items[-1])
    reset(service, items[-1])

    assert service.log_resets("r", len(items), until) == {"reset": 4, "reported": 4, "expected": 4}
    assert "Reset 3 stuck agency website jobs and 1 instasite jobs" in str(caplog.records[-1].msg)


def test_incomplete_run_is_logged_after_an_hour(
    clock: AgingClock, service: StaleThumbnails, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    make_site()
    make_site()
    reset(service, scan(AGENCY_WEBSITES, clock)[0])
    clock.advance(hours(1))
    service.log_resets("r", 2, to_iso(T0 + hours(1)))
    assert "Reset 1 stuck agency website jobs and 0 instasite jobs" in str(caplog.records[-1].msg)


def test_run_that_reset_nothing_is_not_logged(
    clock: AgingClock, service: StaleThumbnails, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    made = make_site()
    (item,) = scan(AGENCY_WEBSITES, clock)
    collection("agency_websites").delete_one({"_id": made})
    reset(service, item)
    service.log_resets("r", 1, to_iso(T0 + hours(1)))
    assert caplog.records == []


def test_failed_item_counts_as_reported(clock: AgingClock, service: StaleThumbnails) -> None:
    make_site()
    (item,) = scan(AGENCY_WEBSITES, clock)
    service.give_up(item, error="boom")
    assert service.log_resets("r", 1, to_iso(T0 + hours(1))) == {"reset": 0, "reported": 1, "expected": 1}


@pytest.mark.parametrize(
    ("args", "named"),
    [
        (("users", str(ObjectId()), to_iso(T0)), "'users' is not one of agency_websites, instasites"),
        (("agency_websites", "nonsense", to_iso(T0)), "site_id: 'nonsense'"),
        (("agency_websites", str(ObjectId()), "noon"), "started_at: 'noon'"),
        (("agency_websites", str(ObjectId()), None), "started_at"),
    ],
)
def test_malformed_argument_is_a_permanent_error(service: StaleThumbnails, args: Any, named: str) -> None:
    with pytest.raises(PermanentError) as error:
        service.reset(*args, task_id="t")
    assert named in str(error.value)


def test_failure_to_hand_a_reset_site_to_the_builder_is_only_logged(
    clock: AgingClock, caplog: pytest.LogCaptureFixture
) -> None:
    handed = []

    def hand_over(collection: str, site_id: str) -> None:
        handed.append((collection, site_id))
        raise ConnectionError("no broker")

    made = make_site()
    (item,) = scan(AGENCY_WEBSITES, clock)
    assert reset(replace(stale_thumbnails(hand_over), clock=clock), item)["reset"] is True
    assert handed == [("agency_websites", str(made))]
    assert "could not be handed over" in str(caplog.records[-1].msg)


def test_a_reset_that_cannot_be_counted_is_handed_over(
    clock: AgingClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise AutoReconnect("connection closed")

    handed = []
    made = make_site()
    (item,) = scan(AGENCY_WEBSITES, clock)
    monkeypatch.setattr(site, "record_outcome", fail)
    service = replace(stale_thumbnails(lambda *one: handed.append(one)), clock=clock)
    assert reset(service, item)["reset"] is True
    assert handed == [("agency_websites", str(made))]
    assert "could not be counted" in str(caplog.records[-1].msg)


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({"APP_ENV": "production"}, hours(2)),
        ({"APP_ENV": "staging"}, hours(2)),
        ({"APP_ENV": "development"}, minutes(15)),
        ({"APP_ENV": "test"}, minutes(15)),
        ({"APP_ENV": "local"}, minutes(15)),
        ({"APP_ENV": "test", "THUMBNAIL_STALE_SECONDS": "90"}, seconds(90)),
    ],
)
def test_threshold_depends_on_the_environment_and_the_setting(
    env: dict[str, str], expected: timedelta, change_settings: Callable[..., None]
) -> None:
    change_settings(**env)
    assert threshold() == expected


def test_plan_reads_an_index(clock: AgingClock) -> None:
    for number in range(300):
        make_site(started_at=OVER if number < 5 else T0, thumbnail_build_in_progress=number < 10)
    plan = (
        collection("agency_websites")
        .find(AGENCY_WEBSITES._stale(T0 - THRESHOLD), hint="builds_in_progress")
        .explain()["executionStats"]
    )
    assert (plan["nReturned"], plan["totalKeysExamined"]) == (5, 5)


def test_outcomes_of_other_runs_are_not_counted(clock: AgingClock, service: StaleThumbnails) -> None:
    make_site()
    reset(service, scan(AGENCY_WEBSITES, clock, run="one")[0])
    assert site.count_outcomes("two").total() == 0
    assert site.count_resets(T0 - hours(24)) == 1
