"""Review requests and stale thumbnails at the Celery edge, with real messages."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from bson import ObjectId
from celery.exceptions import Ignore, Retry
from kombu.exceptions import OperationalError
from pymongo.errors import OperationFailure

from models import pulse, scan_run, site
from models.database import collection, server_now
from models.site import Sites
from queue_manager.core.clock import hours, parse_utc, seconds, to_iso
from queue_manager.core.errors import ScanFailed
from queue_manager.core.settings import settings
from tasks import item
from tasks.review_requests import create_review_request, scan_eligible_agencies
from tasks.stale_thumbnails import THUMBNAILS_QUEUE as SITES
from tasks.stale_thumbnails import log_resets, reset_stale_thumbnail, scan_stale_thumbnails
from tests.rooms import T0
from tests.tasks.hand_worker import run, take, waiting_messages

REVIEWS = "review-request-pulse"


def make_agency() -> ObjectId:
    account = ObjectId()
    collection("store-subscription").insert_one(
        {
            "account": ObjectId(),
            "status": "active",
            "created_at": int((server_now() - timedelta(days=40)).timestamp()),
            "plan": {"metadata": {"product_type": "seo"}},
            "metadata": {"account_id": account},
        }
    )
    return account


def make_stale(name: str) -> ObjectId:
    document = {
        "status": "PUBLISHED",
        "thumbnail_build_in_progress": True,
        "thumbnail_process_started_at": server_now() - hours(5),
    }
    return collection(name).insert_one(document).inserted_id


class TestReviewRequests:
    def test_each_eligible_agency_gets_one_message_and_one_review_request(self, broker: str) -> None:
        accounts = {make_agency() for _ in range(3)}

        report = scan_eligible_agencies()

        assert (report["found"], report["claimed"], report["enqueued"], report["errors"]) == (3, 3, 3, 0)
        assert all(run(take(broker, REVIEWS))["success"] for _ in accounts)
        assert {stored["account_id"] for stored in pulse.pulses().find()} == accounts
        assert scan_eligible_agencies()["found"] == 0

    def test_backoff_is_2_and_4_seconds_and_the_third_failure_is_final(
        self, broker: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        make_agency()
        scan_eligible_agencies()

        def away(*_: Any, **__: Any) -> None:
            raise OperationFailure("the index is corrupt")

        monkeypatch.setattr(pulse, "create", away)
        for wait in (2, 4):
            with monkeypatch.context() as patched:
                patched.setattr(item, "estimated_now", lambda: T0)
                assert isinstance(run(take(broker, REVIEWS)), Retry)
            (again,) = waiting_messages(broker, REVIEWS)
            assert again.eta == T0 + seconds(wait)
        assert isinstance(run(take(broker, REVIEWS)), OperationFailure)
        monkeypatch.undo()
        assert scan_eligible_agencies()["found"] == 1

    def test_failing_agency_does_not_stop_the_others(self, broker: str, monkeypatch: pytest.MonkeyPatch) -> None:
        for _ in range(3):
            make_agency()
        scan_eligible_agencies()
        messages = [take(broker, REVIEWS) for _ in range(3)]
        create, poisoned = pulse.create, messages[0].args[0]

        def fails_for_one(agencies: Sequence[pulse.Agency], **rest: Any) -> list[str | None]:
            if str(agencies[0].account_id) == poisoned:
                raise OperationFailure("the index is corrupt")
            return create(agencies, **rest)

        monkeypatch.setattr(pulse, "create", fails_for_one)
        outcomes = [run(message) for message in messages]
        assert [type(outcome) for outcome in outcomes] == [Retry, dict, dict]
        assert pulse.count_open() == 2

    def test_another_application_can_create_a_review_request(self, broker: str) -> None:
        account, parent = str(ObjectId()), str(ObjectId())
        create_review_request.delay(account, [], parent, to_iso(server_now()))
        assert run(take(broker, REVIEWS)) == {"success": True, "account_id": account}


class TestStaleThumbnails:
    def test_every_stale_site_is_reset_and_the_run_is_logged(
        self, broker: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level("INFO")
        made = {name: [make_stale(name) for _ in range(2)] for name in site.ALL}

        began = server_now()
        report = scan_stale_thumbnails()
        ended = server_now()

        assert (report["found"], report["enqueued"], report["errors"]) == (4, 4, 0)
        messages = [take(broker, SITES) for _ in range(5)]
        (last,) = [message for message in messages if message.task == log_resets.name]
        until = parse_utc(last.args[2], field="until")
        assert until is not None
        assert began <= until - hours(1) <= ended
        assert isinstance(run(last), Ignore)
        again = take(broker, SITES)
        assert (again.retries, again.args) == (0, last.args)
        for message in messages:
            if message.task == reset_stale_thumbnail.name:
                assert run(message)["reset"] is True
        assert run(again) == {"reset": 4, "reported": 4, "expected": 4}
        line = "Reset 2 stuck agency website jobs and 2 instasite jobs"
        assert any(line in str(record.msg) for record in caplog.records)
        for name, ids in made.items():
            assert collection(name).count_documents({"_id": {"$in": ids}, "thumbnail_build_in_progress": True}) == 0

    def test_failed_reset_is_not_retried_and_found_by_the_next_scan(
        self, broker: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        made = make_stale("instasites")
        scan_stale_thumbnails()
        messages = [take(broker, SITES) for _ in range(2)]
        (message,) = [one for one in messages if one.task == reset_stale_thumbnail.name]

        def refused(*_: Any) -> None:
            raise OperationFailure("the document is too large")

        with monkeypatch.context() as patched:
            patched.setattr(Sites, "reset", refused)
            assert isinstance(run(message), OperationFailure)
        assert waiting_messages(broker, SITES) == []
        assert scan_stale_thumbnails()["enqueued"] == 1
        assert waiting_messages(broker, SITES)[0].args[:2] == ["instasites", str(made)]

    def test_two_ticks_in_a_row_both_run(self, broker: str) -> None:
        make_stale("agency_websites")
        assert [scan_stale_thumbnails()["enqueued"] for _ in range(2)] == [1, 0]  # the site is in flight
        assert len(scan_run.latest(scan_stale_thumbnails.name, limit=5)) == 2
        assert run(take(broker, SITES))["reset"] is True

    @pytest.mark.parametrize("broken", list(site.ALL))
    def test_failure_in_one_collection_does_not_stop_the_other(
        self, broker: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, broken: str
    ) -> None:
        for name in site.ALL:
            make_stale(name)
        stamp = Sites.stamp

        def fails_for_one(self: Sites, *args: Any, **kwargs: Any) -> int:
            if self.name == broken:
                raise OperationFailure("the index is corrupt")
            return stamp(self, *args, **kwargs)

        monkeypatch.setattr(Sites, "stamp", fails_for_one)
        with pytest.raises(ScanFailed, match="the index is corrupt"):
            scan_stale_thumbnails()

        (item,) = [one for one in waiting_messages(broker, SITES) if one.task == reset_stale_thumbnail.name]
        assert item.args[0] != broken
        assert any("Error in thumbnail health check" in str(record.msg) for record in caplog.records)

    def test_reset_site_is_sent_to_the_builder(self, broker: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("THUMBNAIL_BUILD_TASK", "builder.build")
        settings.cache_clear()
        made = make_stale("instasites")
        try:
            scan_stale_thumbnails()
            run(take(broker, SITES))
        finally:
            monkeypatch.undo()
            settings.cache_clear()
        (handed,) = waiting_messages(broker, "celery")
        assert (handed.task, handed.args) == ("builder.build", ["instasites", str(made)])


def test_missing_index_is_reported_in_one_sentence(broker: str) -> None:
    pulse.pulses().drop_indexes()
    collection("store-subscription").drop_indexes()
    collection("agency_websites").drop_indexes()
    for scan, name in ((scan_eligible_agencies, "store-subscription"), (scan_stale_thumbnails, "agency_websites")):
        expected = rf"an index of {name} is missing: run `queue-manager migrate` while its .+$"
        with pytest.raises(ScanFailed, match=expected):
            scan()


def test_report_of_a_scan_is_unchanged_if_its_count_of_resets_cannot_be_published(
    broker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_stale("instasites")

    def refused(*_: object) -> None:
        raise OperationalError("connection refused")

    monkeypatch.setattr(log_resets, "delay", refused)
    with pytest.raises(ScanFailed, match="The count of the resets could not be sent: OperationalError: connection ref"):
        scan_stale_thumbnails()
    stored = scan_run.last("tasks.stale_thumbnails.scan_stale_thumbnails")
    assert stored is not None
    assert (stored.found, stored.enqueued, stored.errors) == (1, 1, 1)
