"""Which agencies get a review request, and that none gets two, on the real MongoDB."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from bson import Binary, ObjectId
from pymongo import MongoClient
from pymongo.errors import AutoReconnect
from pymongo.monitoring import (
    CommandFailedEvent,
    CommandListener,
    CommandStartedEvent,
    CommandSucceededEvent,
)

from beat_schedule import SYSTEMS
from models import pulse, schema, subscription
from models.database import Document, collection, server_now
from models.document_id import id_text
from models.listing import Sample
from queue_manager.broker.backlog import Backlog
from queue_manager.core import cached_answer
from queue_manager.core.clock import minutes, to_iso
from queue_manager.core.errors import ConfigurationError, PermanentError, Unavailable
from queue_manager.core.json_types import Count
from queue_manager.core.settings import settings
from queue_manager.health_rules import Rule
from queue_manager.items import DueItem
from queue_manager.operations import items as operations
from queue_manager.operations.system_schemas import Items
from services import support_snooze
from services.due_work import Limits
from services.review_requests import ReviewRequests, _unreadable, review_requests, stats
from services.review_requests import system as review_requests_system
from tests.forked import server
from tests.models.test_due_at_scale import profile
from tests.odd_ids import ODD_IDS
from tests.rooms import T0, AgingClock, make_room, scan

pytestmark = pytest.mark.usefixtures("clean")

MONTH_AGO = T0 - timedelta(days=30)


def days(amount: float) -> timedelta:
    return timedelta(days=amount)


@pytest.fixture
def reviews(clock: AgingClock) -> ReviewRequests:
    return make_service(clock)


def make_service(clock: AgingClock, **limits: int) -> ReviewRequests:
    return replace(
        review_requests(),
        clock=clock,
        product_types=["seo", "ads"],
        limits=Limits(**{"batch": 100, "max_queue": 1000, "ahead": 0, **limits}),
    )


def subscribe(created_at: Any = MONTH_AGO, **fields: Any) -> dict[str, Any]:
    """Insert an active managed subscription; dates are stored as Unix seconds, as the product does."""
    if isinstance(created_at, datetime):
        created_at = int(created_at.timestamp())
    document = {
        "account": ObjectId(),
        "status": "active",
        "created_at": created_at,
        "plan": {"metadata": {"product_type": "seo"}},
        "metadata": {"account_id": ObjectId()},
        **fields,
    }
    document["_id"] = collection("store-subscription").insert_one(document).inserted_id
    return document


def make_pulse(account: Any, created_at: datetime = MONTH_AGO, **fields: Any) -> ObjectId:
    document = {
        "account_id": account,
        "type": "review_request",
        "status": "completed",
        "created_at": created_at,
        **fields,
    }
    return pulse.pulses().insert_one(document).inserted_id


def create(reviews: ReviewRequests, item: DueItem) -> dict[str, Any]:
    return reviews.create(*item.args)


class TestEligible:
    @pytest.mark.parametrize(
        ("age", "is_eligible"), [(28, False), (29, False), (29.999, False), (30, True), (30.01, True), (400, True)]
    )
    def test_agency_is_eligible_after_thirty_days_of_subscription(
        self, reviews: ReviewRequests, age: float, is_eligible: bool
    ) -> None:
        subscribe(T0 - days(age))
        assert bool(scan(reviews)) is is_eligible

    def test_item_names_account_subscriptions_parent_and_the_oldest(self, reviews: ReviewRequests) -> None:
        parent = ObjectId()
        older = subscribe(T0 - days(50), account=parent)
        younger = subscribe(T0 - days(10), account=parent)
        (item,) = scan(reviews)
        account_id, ids, parent_account, oldest = item.args
        assert account_id == str(older["metadata"]["account_id"])
        assert set(ids) == {str(older["_id"]), str(younger["_id"])}
        assert parent_account == str(parent)
        assert oldest == to_iso(T0 - days(50))

    @pytest.mark.parametrize(
        "fields",
        [
            {"status": "canceled"},
            {"plan": {"metadata": {"product_type": "sites"}}},
            {"plan": {}},
        ],
    )
    def test_only_active_managed_subscriptions_count(self, reviews: ReviewRequests, fields: dict[str, Any]) -> None:
        subscribe(**fields)
        assert scan(reviews) == []

    @pytest.mark.parametrize("account", [None, "", 0, False, {}])
    def test_agencies_with_an_invalid_parent_each_get_a_request(self, reviews: ReviewRequests, account: Any) -> None:
        made = [subscribe(account=account) for _ in range(3)]
        asked = {(item.args[0], tuple(item.args[1]), item.args[2]) for item in scan(reviews)}
        assert asked == {(str(one["metadata"]["account_id"]), (str(one["_id"]),), None) for one in made}

    def test_start_may_be_a_date_or_seconds(self, reviews: ReviewRequests) -> None:
        made = subscribe()
        collection("store-subscription").update_one({"_id": made["_id"]}, {"$set": {"created_at": MONTH_AGO}})
        (item,) = scan(reviews)
        assert item.args[3] == to_iso(MONTH_AGO)

    @pytest.mark.parametrize("created_at", [1.7e12, None, "2026", True, -5, float("nan"), {"a": 1}, [], [1], [None, 1]])
    def test_agency_with_an_unreadable_start_is_skipped_counted_and_named(
        self, reviews: ReviewRequests, caplog: pytest.LogCaptureFixture, created_at: Any
    ) -> None:
        bad = subscribe(created_at)
        good = subscribe()
        batches = list(reviews.take_due(Backlog))
        assert [item.args[2] for batch in batches for item in batch.items] == [str(good["account"])]
        assert batches[0].other_counts == {"unreadable": 1}
        assert str(bad["_id"]) in str(caplog.records[-1].msg)

    def test_oldest_subscription_determines_the_account_on_every_scan(self, reviews: ReviewRequests) -> None:
        parent = ObjectId()
        made = [subscribe(MONTH_AGO, account=parent) for _ in range(5)]
        for _ in range(3):
            (item,) = scan(reviews)
            assert item.args[0] == str(made[0]["metadata"]["account_id"])
            reviews.release([item])

    def test_sub_accounts_of_one_parent_get_one_request(self, reviews: ReviewRequests) -> None:
        parent = ObjectId()
        for age in (40, 50, 60):
            subscribe(T0 - days(age), account=parent)
        assert len(scan(reviews)) == 1

    def test_two_spellings_of_a_parent_are_one_agency(self, reviews: ReviewRequests) -> None:
        parent = ObjectId()
        older = subscribe(T0 - days(50), account=str(parent))
        subscribe(T0 - days(40), account=parent)
        (item,) = scan(reviews)
        assert item.args[:1] == (str(older["metadata"]["account_id"]),)
        assert item.args[2] == str(parent)

    def test_agencies_without_a_parent_each_get_a_request(self, reviews: ReviewRequests) -> None:
        made = [subscribe(account=None) for _ in range(2)]
        items = scan(reviews)
        assert {item.args[0] for item in items} == {str(one["metadata"]["account_id"]) for one in made}
        assert [create(reviews, item)["success"] for item in items] == [True, True]
        assert scan(reviews) == []

    @pytest.mark.parametrize("account", [None, "", 7, ["a"], {"x": 1}, True], ids=str)
    def test_agency_without_a_valid_account_is_counted_and_skipped(self, reviews: ReviewRequests, account: Any) -> None:
        subscribe(metadata={} if account is None else {"account_id": account})
        batches = list(reviews.take_due(Backlog))
        assert [batch.items for batch in batches] == [[], []]
        assert batches[1].other_counts == {"without_account": 1}


class TestBlocked:
    @pytest.mark.parametrize(
        ("age", "is_blocked"),
        [(0, True), (28, True), (29, True), (30, True), (30.99, True), (31, False), (31.01, False)],
    )
    @pytest.mark.parametrize("status", ["completed", "dismissed"])
    def test_request_of_any_status_blocks_for_thirty_one_days(
        self, reviews: ReviewRequests, age: float, is_blocked: bool, status: str
    ) -> None:
        made = subscribe()
        make_pulse(made["metadata"]["account_id"], T0 - days(age), status=status)
        assert bool(scan(reviews)) is not is_blocked

    @pytest.mark.parametrize("status", ["pending", "in_progress"])
    def test_open_request_blocks_without_a_time_limit(self, reviews: ReviewRequests, status: str) -> None:
        made = subscribe()
        make_pulse(made["metadata"]["account_id"], T0 - days(400), status=status)
        assert scan(reviews) == []

    @pytest.mark.parametrize(("age", "is_blocked"), [(30.99, True), (31, False)])
    def test_completed_request_blocks_from_its_completion_on(
        self, reviews: ReviewRequests, age: float, is_blocked: bool
    ) -> None:
        made = subscribe()
        make_pulse(made["metadata"]["account_id"], T0 - days(90), completed_at=T0 - days(age))
        assert bool(scan(reviews)) is not is_blocked

    def test_request_blocks_the_parent_account_too(self, reviews: ReviewRequests) -> None:
        made = subscribe()
        make_pulse(ObjectId(), T0, metadata={"parent_account": made["account"]})
        assert scan(reviews) == []

    def test_text_and_object_id_are_the_same_account(self, reviews: ReviewRequests) -> None:
        first, second = subscribe(), subscribe(metadata={"account_id": str(ObjectId())})
        make_pulse(str(first["metadata"]["account_id"]), T0)
        make_pulse(ObjectId(second["metadata"]["account_id"]), T0)
        third = subscribe()
        make_pulse(ObjectId(), T0, metadata={"parent_account": str(third["account"])})
        assert scan(reviews) == []

    @pytest.mark.parametrize("account", [None, ""])
    def test_pulse_without_an_account_blocks_no_agency(self, reviews: ReviewRequests, account: Any) -> None:
        subscribe()
        subscribe(account=None)
        make_pulse(account, T0, status="pending")
        make_pulse(None, T0, metadata={"parent_account": None})
        assert len(scan(reviews)) == 2

    def test_pulses_of_other_types_do_not_block(self, reviews: ReviewRequests) -> None:
        made = subscribe()
        make_pulse(made["metadata"]["account_id"], T0, type="survey", status="pending")
        assert len(scan(reviews)) == 1


class TestCreate:
    def test_pulse_has_the_fields_that_its_readers_expect(self, reviews: ReviewRequests) -> None:
        made = subscribe()
        (item,) = scan(reviews)

        assert create(reviews, item) == {"success": True, "account_id": str(made["metadata"]["account_id"])}

        (stored,) = pulse.pulses().find({}, {"_id": 0})
        assert stored == {
            "account_id": made["metadata"]["account_id"],
            "type": "review_request",
            "status": "pending",
            "created_at": T0,
            "updated_at": T0,
            "metadata": {
                "subscription_ids": [made["_id"]],
                "parent_account": made["account"],
                "oldest_subscription": MONTH_AGO,
                "request_reason": "one_month_active",
            },
        }
        assert scan(reviews) == []

    def test_pulse_has_subscription_ids_of_any_type(self, reviews: ReviewRequests) -> None:
        same = {"account": ObjectId(), "metadata": {"account_id": ObjectId()}}
        ids = [ObjectId(), *(id for id in ODD_IDS if not (type(id) is str and ObjectId.is_valid(id)))]
        for id in ids:
            subscribe(_id=id, **same)
        (item,) = scan(reviews)
        create(reviews, replace(item, args=tuple(json.loads(json.dumps(item.args)))))
        stored = pulse.pulses().find_one()
        assert stored is not None
        assert sorted(map(id_text, stored["metadata"]["subscription_ids"])) == sorted(map(id_text, ids))

    def test_second_delivery_is_skipped(self, reviews: ReviewRequests) -> None:
        subscribe()
        (item,) = scan(reviews)
        create(reviews, item)
        assert create(reviews, item) == {"skipped": True, "reason": "Pending request exists"}
        assert pulse.pulses().count_documents({}) == 1

    @pytest.mark.parametrize("status", ["completed", "dismissed"])
    def test_request_completed_meanwhile_is_respected(self, reviews: ReviewRequests, status: str) -> None:
        made = subscribe()
        (item,) = scan(reviews)
        make_pulse(made["metadata"]["account_id"], T0, status=status)
        alone, in_a_batch = create(reviews, item), reviews.create_many([item])
        assert [alone, *in_a_batch] == [{"skipped": True, "reason": "Requested recently"}] * 2

    def test_sub_account_is_skipped_if_its_parent_got_a_request_meanwhile(self, reviews: ReviewRequests) -> None:
        parent = ObjectId()
        subscribe(account=parent)
        (item,) = scan(reviews)
        other = (str(ObjectId()), *item.args[1:])
        create(reviews, item)
        assert reviews.create(*other) == {"skipped": True, "reason": "Pending request exists"}

    def test_ten_scans_while_the_worker_is_stopped_send_one_message(
        self, reviews: ReviewRequests, clock: AgingClock
    ) -> None:
        subscribe()
        assert len(scan(reviews)) == 1
        for _ in range(9):
            clock.advance(minutes(5))
            assert scan(reviews, waiting=1) == []

    def test_messages_sent_twice_make_one_pulse(self, reviews: ReviewRequests, clock: AgingClock) -> None:
        subscribe()
        items = []
        for _ in range(3):
            items += scan(reviews)
            clock.advance(minutes(5))  # no message waits: they were lost
        assert len(items) == 3
        assert [create(reviews, item).get("success", False) for item in items] == [True, False, False]
        assert pulse.pulses().count_documents({}) == 1

    def test_item_that_could_not_be_created_is_found_by_the_next_scan(self, reviews: ReviewRequests) -> None:
        subscribe()
        (item,) = scan(reviews)
        reviews.give_up(item, error="boom")
        assert [again.args for again in scan(reviews)] == [item.args]

    @pytest.mark.processes
    def test_twenty_processes_make_one_pulse(self) -> None:
        account, parent = str(ObjectId()), str(ObjectId())
        url = settings().mongo_db_url
        with ProcessPoolExecutor(20, mp_context=server) as pool:
            results = list(pool.map(create_one, [(url, account, parent)] * 20))
        assert sum(result.get("success", False) for result in results) == 1
        assert {result.get("reason") for result in results} == {None, "Pending request exists"}
        assert pulse.pulses().count_documents({}) == 1

    def test_racing_sub_accounts_of_one_parent_make_one_pulse(self, reviews: ReviewRequests) -> None:
        parent, oldest = str(ObjectId()), to_iso(MONTH_AGO)
        accounts = [str(ObjectId()) for _ in range(16)]
        with ThreadPoolExecutor(16) as pool:
            results = list(pool.map(lambda one: reviews.create(one, [], parent, oldest), accounts))
        assert sum(result.get("success", False) for result in results) == 1

    def test_agency_that_another_worker_asks_meanwhile_does_not_stop_the_others_of_its_batch(
        self, reviews: ReviewRequests, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for _ in range(3):
            subscribe()
        items = scan(reviews)
        make_pulse(ObjectId(items[0].args[0]), T0, status="pending")
        unseen = {"type": "review_request", "_id": {"$in": []}}  # it was inserted after the upsert had looked for it
        monkeypatch.setattr(pulse, "_blocking", lambda agencies, since: unseen)

        refused, *created = reviews.create_many(items)

        assert refused == {"skipped": True, "reason": "Pending request exists"}
        assert created == [{"success": True, "account_id": item.args[0]} for item in items[1:]]
        assert pulse.count_open() == 3

    def test_agency_without_a_parent_gets_a_request(self, reviews: ReviewRequests) -> None:
        for _ in range(2):
            assert reviews.create(str(ObjectId()), [], None, to_iso(MONTH_AGO))["success"] is True

    @pytest.mark.parametrize(
        ("args", "named"),
        [
            ((None, [], None, to_iso(T0)), "account_id: None"),
            (({"$ne": 1}, [], None, to_iso(T0)), "account_id: {'$ne': 1}"),
            (("a", "s", None, to_iso(T0)), "subscription_ids: 's'"),
            (("a", [{"$gt": 1}], None, to_iso(T0)), "subscription_ids"),
            (("a", [], 5, to_iso(T0)), "parent_account: 5"),
            (("a", [], None, "noon"), "oldest_subscription: 'noon'"),
            (("a", [], None, None), "oldest_subscription"),
        ],
    )
    def test_malformed_argument_is_a_permanent_error(self, reviews: ReviewRequests, args: Any, named: str) -> None:
        with pytest.raises(PermanentError) as error:
            reviews.create(*args)
        assert named in str(error.value)


def test_empty_list_of_managed_products_is_a_configuration_error(reviews: ReviewRequests) -> None:
    subscribe()
    nobody = replace(reviews, product_types=[])
    with pytest.raises(ConfigurationError, match="MANAGED_SUBSCRIPTIONS names no product type"):
        scan(nobody)


def test_sites_and_listings_are_never_managed_products() -> None:
    assert review_requests().product_types == ["seo"]


def test_scan_dispatches_up_to_the_limit_of_the_queue(clock: AgingClock) -> None:
    for _ in range(5):
        subscribe()
    assert len(scan(make_service(clock, max_queue=4, batch=3), waiting=1)) == 3


def test_a_page_ends_after_so_many_agencies_that_are_not_due(
    reviews: ReviewRequests, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operations, "MAX_SEARCHED", 40)
    monkeypatch.setattr(operations, "MAX_COUNTED", 40)
    monkeypatch.setattr(subscription, "ACCOUNT_BATCH_SIZE", 15)
    subscribe(account="00")
    for number in range(1, 61):
        subscribe(T0 - days(1), account=f"{number:02}")
    system = replace(review_requests_system, items=lambda: reviews)

    def page(cursor: str | None) -> Items:
        return operations.item_page(system, "due", search=None, cursor=cursor, limit=10, order="newest")

    first = page(None)
    assert first.items == []
    assert first.cursor is not None
    second = page(first.cursor)
    assert ([item.id for item in second.items], second.cursor) == (["00"], None)
    assert [item.id for item in reviews.items("due")] == ["00"]
    assert operations.count_items(system, "due") == Count(count=1, is_complete=True)
    assert list(reviews.read("failed")) == []


def test_migrate_lists_duplicates_and_changes_nothing() -> None:
    pulse.pulses().drop_indexes()
    account = ObjectId()
    ids = [make_pulse(account, status="pending") for _ in range(2)]
    with pytest.raises(ConfigurationError) as error:
        schema.migrate(SYSTEMS)
    assert all(str(one) in str(error.value) for one in (account, *ids))
    assert "dismissed" in str(error.value)
    pulse.pulses().update_one({"_id": ids[0]}, {"$set": {"status": "dismissed"}})
    schema.migrate(SYSTEMS)


def test_scan_reads_only_the_index(reviews: ReviewRequests) -> None:
    # An index that once held a list, as in another test, covers nothing any more.
    subscription.subscriptions().drop_indexes()
    schema.migrate(SYSTEMS)
    for number in range(50):
        subscribe(status="active" if number < 10 else "canceled")
    seen = Statements()
    url = settings().mongo_db_url
    with MongoClient[Document](url, event_listeners=[seen]) as client, pytest.MonkeyPatch.context() as patch:
        own = client.get_default_database()["store-subscription"]
        patch.setattr(subscription, "subscriptions", lambda: own)
        assert len(list(subscription.eligible(["seo"], until=MONTH_AGO, asked_since=T0))) == 10
        (aggregate,) = seen.aggregates
        plan = client.get_default_database().command("explain", aggregate, verbosity="executionStats")
    first = plan["stages"][0]["$cursor"]["executionStats"]
    assert (first["totalKeysExamined"], first["totalDocsExamined"]) == (10, 0)


def test_open_requests_are_counted_without_reading_the_others() -> None:
    old = ({"account_id": ObjectId(), "type": "review_request", "status": "completed"} for _ in range(5_000))
    pulse.pulses().insert_many(old, ordered=False)
    make_pulse(ObjectId(), status="pending", metadata={"parent_account": "p"})
    make_pulse("a", status="in_progress")
    make_pulse(None, status="pending", metadata={"parent_account": ObjectId()})
    with profile(pulse.pulses().name) as profiled:
        assert pulse.count_open() == 3
    assert sum(one["keysExamined"] for one in profiled) <= 10


def test_requests_of_the_last_24_hours_are_counted() -> None:
    now = server_now()
    for age in (timedelta(hours=24, minutes=1), timedelta(hours=23, minutes=59), timedelta(0)):
        make_pulse(ObjectId(), now - age)
    pulse.pulses().insert_one({"type": "invoice", "created_at": now})
    assert stats().numbers["created_last_day"] == 2


def test_many_open_requests_and_malformed_rooms_are_not_counted_each_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cached_answer, "MAX_FRESH_COUNT", 1)
    monkeypatch.setattr(cached_answer, "CACHE_FACTOR", 1e12)
    found = []
    for _ in range(3):
        make_pulse(ObjectId(), status="pending")
        make_room("tomorrow")
        found.append((stats().numbers["open"], support_snooze.system.stats().numbers["malformed"]))
    assert found == [(1, 1), (2, 2), (2, 2)]


def test_unreadable_subscriptions_are_a_problem_and_not_counted_each_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    some = replace(review_requests(), product_types=["unreadable"])
    monkeypatch.setattr("services.review_requests.review_requests", lambda: some)
    monkeypatch.setattr(cached_answer, "CACHE_FACTOR", 1_000_000)
    id = UUID(int=2**127 - 7)
    subscribe("2026", _id=Binary.from_uuid(id), plan={"metadata": {"product_type": "unreadable"}})
    found = [stats() for _ in range(2)]
    with profile(subscription.subscriptions().name) as profiled:
        found.append(stats())
    for one in found:
        assert one.numbers["unreadable"] == 1
        assert str(id) in one.problems[Rule.UNREADABLE_DOCUMENTS]
    assert profiled == []


def test_an_outage_does_not_end_the_problem_of_unreadable_subscriptions(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(product_types: Sequence[str]) -> Sample:
        raise AutoReconnect("connection closed")

    some = replace(review_requests(), product_types=["outage"])
    monkeypatch.setattr("services.review_requests.review_requests", lambda: some)
    monkeypatch.setattr(subscription, "unreadable", fail)
    cached = _unreadable(("outage",))
    with pytest.raises(AutoReconnect):
        stats()
    cached._due_at = float("inf")
    with pytest.raises(Unavailable):  # none was counted, so that the problem may exist
        stats()
    monkeypatch.setattr(subscription, "unreadable", lambda product_types: Sample(count=1, ids=["a"]))
    cached._due_at = 0.0
    assert Rule.UNREADABLE_DOCUMENTS in stats().problems
    monkeypatch.setattr(subscription, "unreadable", fail)
    cached._due_at = 0.0
    with pytest.raises(AutoReconnect):
        stats()
    cached._due_at = float("inf")
    assert Rule.UNREADABLE_DOCUMENTS in stats().problems


class Statements(CommandListener):
    """Keeps every aggregation that was sent, in the form that `explain` takes."""

    def __init__(self) -> None:
        self.aggregates: list[dict[str, Any]] = []

    def started(self, event: CommandStartedEvent) -> None:
        if event.command_name == "aggregate":
            kept = {"aggregate", "pipeline", "cursor", "hint", "allowDiskUse"}
            self.aggregates.append({name: value for name, value in event.command.items() if name in kept})

    def succeeded(self, event: CommandSucceededEvent) -> None:
        """Nothing to keep."""

    def failed(self, event: CommandFailedEvent) -> None:
        """Nothing to keep."""


def create_one(arguments: tuple[str, str, str]) -> dict[str, Any]:
    """Run in another process, whose environment may be that of an earlier test: create the pulse of one agency."""
    os.environ["MONGO_DB_URL"], account, parent = arguments
    settings.cache_clear()
    return make_service(AgingClock()).create(account, [], parent, to_iso(MONTH_AGO))
