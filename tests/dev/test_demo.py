"""The demo imitates a product, changes only its own documents, and is counted in the summary."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from bson import ObjectId
from celery import Celery
from kombu.exceptions import OperationalError
from pymongo.collection import Collection
from pymongo.database import Database

from dev import demo, demo_agencies, demo_rooms, demo_sites, environment, summary
from models import database, pulse, site, subscription, support_room
from models.database import collection, server_now
from models.site import AGENCY_WEBSITES, INSTASITES, STARTED
from queue_manager.core.clock import minutes, seconds
from queue_manager.core.settings import Settings
from services.stale_thumbnails import threshold
from tasks.review_requests import scan_eligible_agencies
from tasks.stale_thumbnails import scan_stale_thumbnails
from tests.dev.demo_process import running
from tests.eventually import eventually
from tests.real_servers import Servers
from tests.tasks.hand_worker import waiting_messages

Document = dict[str, Any]

NOW = datetime(2026, 1, 31, 9, 30, 0, 123456, tzinfo=UTC)
DOCUMENTS_ON = {"QM_CONVERSATIONS": "true", "QM_PROJECTS": "true", "QM_SITES_FIX_STALE_THUMBNAILS": "true"}
ALL_ON = {**DOCUMENTS_ON, "QM_MESSAGE_QUEUE": "true"}
SCANS = ["tasks.review_requests.scan_eligible_agencies", "tasks.stale_thumbnails.scan_stale_thumbnails"]


@pytest.fixture
def product(clean: Servers) -> Database[Document]:
    """The product's database."""
    return database.database()


@pytest.fixture
def rooms(clean: Servers) -> Collection[Document]:
    return support_room.rooms()


class TestRooms:
    def test_rooms_are_snoozed_as_by_the_product(
        self, product: Database[Document], rooms: Collection[Document]
    ) -> None:
        demo_rooms.start(product, NOW)
        assert rooms.count_documents({"snooze_time.time": {"$gt": NOW}}) == demo_rooms.SNOOZED_AT_START
        room = rooms.find_one()
        assert room is not None
        assert room["status"] == "snoozed"
        assert set(room["snooze_time"]) == {"time", "set_by", "set_at"}
        assert room["snooze_time"]["set_at"] == NOW.replace(microsecond=123000)
        assert room["demo_due_at"] == room["snooze_time"]["time"]

    def test_only_the_oldest_woken_rooms_of_the_demo_are_deleted(self, rooms: Collection[Document]) -> None:
        somebody_elses = rooms.insert_one({"status": "open"}).inserted_id
        oldest = rooms.insert_one({"status": "open", "demo": True}).inserted_id
        rooms.insert_many([{"status": "open", "demo": True} for _ in range(demo_rooms.KEPT_WOKEN)])
        rooms.insert_one({"status": "snoozed", "demo": True})
        demo_rooms.clear_up(rooms)
        assert rooms.count_documents({"demo": True}) == demo_rooms.KEPT_WOKEN + 1
        assert rooms.find_one(somebody_elses)
        assert rooms.find_one(oldest) is None


class TestAgencies:
    def test_some_agencies_are_due_at_the_start_and_some_have_a_request(self, product: Database[Document]) -> None:
        demo_agencies.start(product, server_now())
        assert pulse.count_open() == 2
        assert scan_eligible_agencies()["found"] == 4

    def test_new_agencies_become_eligible_before_the_next_period(self, product: Database[Document]) -> None:
        demo_agencies.go_on(product, NOW)
        made = subscription.subscriptions().count_documents({})
        assert 1 <= made <= 2
        later = NOW + demo_agencies.PERIOD
        due = subscription.eligible(["seo"], until=later - timedelta(days=30), asked_since=NOW - timedelta(days=31))
        assert len(list(due)) == made

    def test_agency_with_a_request_answers_in_the_next_period(self, product: Database[Document]) -> None:
        agency = demo_agencies.subscription(NOW - timedelta(days=40))
        subscription.subscriptions().insert_one(agency)
        pulse.pulses().insert_one(demo_agencies.pulse(agency, NOW - demo_agencies.PERIOD, status="pending"))
        demo_agencies.go_on(product, NOW)
        (answered,) = pulse.pulses().find()
        assert answered["status"] in ("completed", "dismissed")
        assert answered["completed_at"] == NOW.replace(microsecond=123000)

    def test_only_the_oldest_agencies_of_the_demo_are_deleted_with_their_pulses(
        self, product: Database[Document]
    ) -> None:
        subscriptions = subscription.subscriptions()
        made = [demo_agencies.subscription(NOW) for _ in range(demo_agencies.RETENTION_COUNT + 2)]
        somebodys = {**demo_agencies.subscription(NOW), "demo": False, "status": "canceled"}
        subscriptions.insert_many([somebodys, *made])
        pulse.pulses().insert_many([demo_agencies.pulse(of, NOW, status="pending") for of in (somebodys, *made)])
        demo_agencies.clear_up(product)
        left = {one["_id"] for one in subscriptions.find()}
        assert left == {somebodys["_id"], *(one["_id"] for one in made[2:])}
        accounts = {one["metadata"]["account_id"] for one in (somebodys, *made[2:])}
        assert {one["account_id"] for one in pulse.pulses().find()} == accounts

    def test_interrupted_deletion_of_an_agency_is_completed_the_next_time(self, product: Database[Document]) -> None:
        leaving = {**demo_agencies.subscription(NOW), "status": "canceled"}
        subscription.subscriptions().insert_one(leaving)
        pulse.pulses().insert_one(demo_agencies.pulse(leaving, NOW, status="pending"))
        demo_agencies.clear_up(product)
        assert (subscription.subscriptions().count_documents({}), pulse.pulses().count_documents({})) == (0, 0)


class TestSites:
    def test_some_sites_hang_at_the_start_in_every_deployment(self, product: Database[Document]) -> None:
        demo_sites.start(product, NOW)
        assert [sites.count_stuck(NOW - threshold()) for sites in site.ALL.values()] == [demo_sites.HUNG_AT_START] * 2
        assert scan_stale_thumbnails()["found"] == 2 * demo_sites.HUNG_AT_START

    def test_number_of_sites_never_grows(self, product: Database[Document]) -> None:
        collection("instasites").insert_one({"status": "PUBLISHED"})
        for _ in range(2):
            demo_sites.start(product, NOW)
            demo_sites.go_on(product, NOW)
        assert collection("agency_websites").count_documents({}) == demo_sites.SITES
        assert collection("instasites").count_documents({"demo": True}) == demo_sites.SITES

    def test_builder_completes_or_hangs_on_a_site_that_was_reset(
        self, product: Database[Document], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sites = collection(INSTASITES.name)
        site_id = sites.insert_one(demo_sites.new_site(NOW, hangs=True)).inserted_id
        (hung,) = INSTASITES.stale(NOW - threshold())

        def build(chance: float) -> Document:
            monkeypatch.setattr(demo_sites, "HANG_CHANCE", chance)
            demo_sites.begin_builds(sites, NOW)
            demo_sites.end_builds(sites, NOW)
            found = sites.find_one({"_id": site_id})
            assert found is not None
            return found

        assert build(0)[STARTED] == hung.started_at  # a build that hangs is nobody's but the scan's
        INSTASITES.reset(site_id, hung.started_at)
        hangs = build(1)
        assert hangs[STARTED] < NOW - threshold()
        INSTASITES.reset(site_id, hangs[STARTED])
        fine = build(0)
        assert fine["details"]["thumbnails"]["desktop"]
        assert STARTED not in fine
        assert "thumbnail_build_in_progress" not in fine

    def test_sites_outside_the_demo_are_not_changed(
        self, product: Database[Document], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(demo_sites, "EDIT_CHANCE", 1)
        somebodys = [
            {"_id": ObjectId(), "details": {"thumbnails": {"desktop": None}}},
            {"_id": ObjectId(), "details": {"thumbnails": {"desktop": "d.png"}}},
            {"_id": ObjectId(), "thumbnail_build_in_progress": True, STARTED: NOW.replace(microsecond=0)},
        ]
        collection(AGENCY_WEBSITES.name).insert_many(somebodys)
        demo_sites.go_on(product, NOW)
        demo_sites.go_on(product, NOW)
        assert list(collection(AGENCY_WEBSITES.name).find()) == somebodys


class TestProcess:
    def test_demo_runs_by_itself_and_stops_on_a_signal(self, rooms: Collection[Document], clean: Servers) -> None:
        with running([sys.executable, "-m", "dev.demo"], DOCUMENTS_ON) as child:
            eventually(lambda: rooms.count_documents({"demo": True}) >= demo_rooms.SNOOZED_AT_START)
            eventually(lambda: collection("instasites").count_documents({"demo": True}) == demo_sites.SITES)
            eventually(lambda: [message.task for message in waiting_messages(clean.valkey.url, "scans")] == SCANS)
        assert child.wait() == 0

    def test_demo_sends_scans_that_expire_and_logs_them(
        self, clean: Servers, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with Celery(broker=clean.valkey.url, set_as_current=False) as broker:
            demo.ask_for_scan(broker, SCANS[0], every=seconds(20))
        (message,) = waiting_messages(clean.valkey.url, "scans")
        assert (message.task, message.args) == (SCANS[0], [])
        assert message.expires is not None
        assert f"app.send_task('{SCANS[0]}', queue='scans')" in capsys.readouterr().out

    def test_only_systems_that_are_on_have_a_demo(self, product: Database[Document]) -> None:
        with Celery(set_as_current=False) as broker:
            chosen = Settings(qm_conversations=False, qm_projects=True, qm_sites_fix_stale_thumbnails=False)
            assert [part.name for part in demo.parts(product, broker, chosen)] == ["agencies", "scans"]

    def test_an_unavailable_server_is_named_and_retried(self, capsys: pytest.CaptureFixture[str]) -> None:
        answers = [OperationalError("connection refused"), None, None]
        done = []

        def first(now: datetime) -> None:
            if (error := answers.pop(0)) is not None:
                raise error
            done.append("first")

        part = demo.Part(name="rooms", every=seconds(0), start=first, go_on=lambda now: done.append("next"))
        for _ in range(3):
            part.take_turn()
        assert done == ["first", "next"]
        assert capsys.readouterr().out == "rooms: a server is unavailable, trying again: OperationalError\n"


class TestSummary:
    def test_summary_counts_rooms_and_measures_the_lag(self, rooms: Collection[Document]) -> None:
        assert summary.describe_rooms(NOW - seconds(5), NOW) == ""
        rooms.insert_many(
            [
                {"snooze_time": {"time": NOW + seconds(5)}},
                {"snooze_time": {"time": NOW - seconds(5)}},
                {"unsnoozed_at": NOW - minutes(5)},
                {"unsnoozed_at": NOW - seconds(1), "demo_due_at": NOW - seconds(1.25), "account_id": ObjectId()},
            ]
        )
        assert summary.describe_rooms(NOW - seconds(5), NOW) == "1 room opened (lag 0.25 s), 1 room due"
        assert summary.describe_rooms(NOW - minutes(6), NOW) == "2 rooms opened (lag 0.25 s), 1 room due"

    def test_summary_counts_review_requests(self, clean: Servers) -> None:
        for status, age in (("pending", seconds(4)), ("dismissed", seconds(3)), ("in_progress", seconds(6))):
            agency = demo_agencies.subscription(NOW)
            pulse.pulses().insert_one(demo_agencies.pulse(agency, NOW - age, status=status))
        assert summary.describe_reviews(NOW - seconds(5), NOW) == "2 review requests created"

    def test_summary_counts_resets(self, clean: Servers) -> None:
        for number, (outcome, age) in enumerate([("reset", 4), ("reset", 6), ("skipped", 1)]):
            site.record_outcome(f"run-{number}", "instasites", "s", outcome, now=NOW - seconds(age))  # type: ignore[arg-type]
        assert summary.describe_thumbnails(NOW - seconds(5), NOW) == "1 thumbnail reset"

    def test_summary_line_has_the_counts_of_all_systems_and_is_empty_without_any(
        self, rooms: Collection[Document]
    ) -> None:
        everything = summary.systems(Settings(qm_conversations=True, qm_projects=True))
        assert summary.describe_all(everything, NOW, NOW) == ""
        rooms.insert_one({"unsnoozed_at": NOW - seconds(1)})
        pulse.pulses().insert_one(demo_agencies.pulse(demo_agencies.subscription(NOW), NOW, status="pending"))
        assert summary.describe_all(everything, NOW - seconds(5), NOW) == "1 room opened, 1 review request created"

    def test_only_systems_that_are_on_are_described(self) -> None:
        chosen = Settings(qm_conversations=True, qm_projects=False, qm_sites_fix_stale_thumbnails=True)
        assert summary.systems(chosen) == [summary.describe_rooms, summary.describe_thumbnails]


def test_make_up_switches_every_system_on_unless_configured_otherwise() -> None:
    servers: Any = {"mongo_url": "m", "redis_url": "r", "flower_port": 1, "web_port": 2}
    children = environment.for_children({"QM_PROJECTS": "false", "MANAGED_SUBSCRIPTIONS": '["ads"]'}, **servers)
    assert children.items() >= {**ALL_ON, "QM_PROJECTS": "false", "MANAGED_SUBSCRIPTIONS": '["ads"]'}.items()
    assert environment.for_children({}, **servers)["MANAGED_SUBSCRIPTIONS"] == '["seo", "ads"]'
