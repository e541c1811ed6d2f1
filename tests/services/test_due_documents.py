"""Systems of `DueDocuments`: finding, executing, writing, hooks and failures, on the real MongoDB and Redis."""

from __future__ import annotations

import gc
import re
import sys
import traceback
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from unittest.mock import Mock

import pytest
from bson import Decimal128, Int64, ObjectId
from bson.errors import InvalidDocument
from celery.exceptions import WorkerTerminate
from pymongo.errors import AutoReconnect, OperationFailure, WriteError

from models import database, failed_item, outbox, schema, transaction
from models.database import collection
from models.document_id import MAX_ID_DEPTH, id_text, read_id
from queue_manager.core import cached_answer
from queue_manager.core.clock import hours, minutes, seconds, to_iso
from queue_manager.core.errors import ConfigurationError, Contended, FunctionExited, NotYetDue, PermanentError, reason
from queue_manager.core.retry import RetryPolicy
from queue_manager.core.settings import settings
from queue_manager.health_rules import Rule
from queue_manager.items import DueItem, Verdict
from queue_manager.leases import Leases, MustCoolDown
from queue_manager.leases.state import LeaseStatus
from services.due_documents import DueDocuments, Failure, Run, Written, updates, work, work_of
from services.due_documents.after import MAX_HALVED
from services.due_documents.listing import DocumentList
from services.due_documents.stats import stats
from services.due_documents.work import DocumentWork
from services.due_work import Limits
from tests.command_log import commands
from tests.odd_ids import ODD_IDS
from tests.rooms import T0, AgingClock, execute, execute_batch, lease_state, scan

pytestmark = pytest.mark.usefixtures("clean", "elapsed")

OVER = T0 - minutes(5)
Document = dict[str, Any]
EXPIRE: Document = {"$set": {"status": "expired"}}


def declare(function: Callable[..., Any] = lambda account: EXPIRE, **fields: Any) -> DueDocuments:
    """Declare trial accounts whose item is `function`."""
    system = DueDocuments(
        **{
            "name": "trial-end",
            "title": "Trials",
            "description": "Trial accounts, expired when their trial is over.",
            "collection": "accounts",
            "due": "trial_ends_at",
            "where": {"status": "trial"},
            "every": seconds(10),
            **fields,
        }
    )
    system.item(task="billing.trial_end.end_trial")(function)
    return system


def work_on(system: DueDocuments, clock: Callable[[], datetime], **limits: int) -> DocumentWork:
    """Migrate a system and return its work by this clock."""
    schema.migrate([system])
    bounds = Limits(**{"batch": 100, "max_queue": 1000, "ahead": 0, **limits})
    return replace(work_of(system), clock=clock, limits=bounds)


def slow_items(clock: AgingClock, elapsed: list[float], *, took: float) -> tuple[DocumentWork, list[DueItem]]:
    """Return six items whose function takes this time, in seconds, and their work."""

    def end(account: Document) -> Document:
        elapsed[0] += took
        return EXPIRE

    ours = work_on(declare(end), clock)
    return ours, [item_of(ours, make_account()) for _ in range(6)]


def make_account(due_at: Any = OVER, **fields: Any) -> Any:
    return collection("accounts").insert_one({"status": "trial", "trial_ends_at": due_at, **fields}).inserted_id


def get_account(id: Any) -> Document:
    found = collection("accounts").find_one({"_id": id})
    assert found is not None
    return found


def item_of(work: DocumentWork, id: Any, due_at: Any = OVER) -> DueItem:
    args = (id_text(id), due_at and to_iso(due_at))
    return DueItem(task_id="t", args=args, lease=work.lease_of(args))


@contextmanager
def refusing() -> Iterator[None]:
    """Have MongoDB refuse to expire an account that is `fixed`."""
    validator = {"$or": [{"fixed": {"$exists": False}}, {"status": "trial"}]}
    database.database().command("collMod", "accounts", validator=validator)
    try:
        yield
    finally:
        database.database().command("collMod", "accounts", validator={})


@contextmanager
def locked(id: Any) -> Iterator[None]:
    """Lock an account by the transaction of another program."""
    with database.client().start_session() as other:
        other.start_transaction()
        collection("accounts").update_one({"_id": id}, {"$set": {"status": "held"}}, session=other)
        yield
        other.abort_transaction()


async def never_awaited() -> None: ...


@pytest.mark.parametrize("options", [{"viewOn": "accounts"}, {"timeseries": {"timeField": "trial_ends_at"}}], ids=str)
def test_migrate_names_a_collection_that_cannot_be_indexed_and_migrates_the_other_systems(options: Document) -> None:
    odd, other = declare(collection="odd_accounts"), declare(name="other-end", collection="other_accounts")
    database.database().create_collection("odd_accounts", **options)
    try:
        with pytest.raises(schema.Obstructed, match=r"^trial-end could not be migrated, everything else is done"):
            schema.migrate([odd, other])
        assert (len(schema.missing(odd.collections())), schema.missing(other.collections())) == (1, [])
    finally:
        database.database().drop_collection("odd_accounts")
        database.database().drop_collection("other_accounts")


class TestFinding:
    def test_matching_due_documents_are_dispatched_and_not_changed(self, clock: AgingClock) -> None:
        work = work_on(declare(), clock)
        due = make_account()
        before = get_account(due)
        make_account(status="paid")
        make_account(T0 + seconds(1))

        (item,) = scan(work)

        assert item.args == (str(due), to_iso(OVER))
        assert get_account(due) == before

    @pytest.mark.parametrize(
        ("where", "fitting", "others"),
        [
            ({}, {}, []),
            ({"plan": {"$exists": True}}, {"plan": None}, [{}]),
            ({"seats": {"$gte": 3, "$lt": 5}}, {"seats": 4}, [{"seats": 5}, {}]),
            ({"$and": [{"seats": {"$gt": 1}}, {"plan": "a"}]}, {"seats": 2, "plan": "a"}, [{"seats": 2}]),
            ({"plan": {"$type": "string"}}, {"plan": "a"}, [{"plan": 1}]),
            ({"billing.paid": False}, {"billing": {"paid": False}}, [{"billing": {}}]),
            ({"deleted_at": None}, {}, [{"deleted_at": T0}]),
            ({"plan": {"$in": ["a", "b"]}}, {"plan": "b"}, [{"plan": "c"}, {}]),
            ({"$or": [{"plan": "a"}, {"seats": {"$gt": 3}}]}, {"seats": 4}, [{"seats": 3}, {"plan": "b"}]),
        ],
    )
    def test_where_accepts_what_a_partial_index_accepts(
        self, clock: AgingClock, where: Document, fitting: Document, others: list[Document]
    ) -> None:
        work = work_on(declare(where=where), clock)
        fit = make_account(**fitting)
        for fields in others:
            make_account(**fields)
        assert [item.args[0] for item in scan(work)] == [str(fit)]

    def test_due_field_may_be_nested_in_documents_but_not_in_lists(self, clock: AgingClock) -> None:
        work = work_on(declare(lambda _: {"$unset": {"trial": ""}}, due="trial.ends.at", where={}), clock)
        good = make_account(trial={"ends": {"at": OVER}})
        for odd in ({"ends": [{"at": OVER}]}, {"ends": [None, {"at": OVER}]}, [None, {"ends": {"at": OVER}}], 5):
            make_account(trial=odd)
        (item,) = scan(work)
        assert item.args[0] == str(good)
        assert execute(work, item)["success"] is True

    def test_index_that_once_held_lists_is_read_in_order_and_as_far_as_needed(self, clock: AgingClock) -> None:
        work = work_on(declare(due="trial.ends_at"), clock, ahead=10)
        for trial in ([{"ends_at": OVER}], {"ends_at": [None, OVER]}):
            make_account(trial=trial)
        ids = [make_account(trial={"ends_at": T0 + seconds(at)}) for at in (-1, -3, 3, -2, 2, 11)]
        assert [item.args[0] for item in scan(work)] == [str(ids[at]) for at in (1, 3, 0, 4, 2)]

    def test_missing_index_is_reported(self, clock: AgingClock) -> None:
        work = work_on(declare(), clock)
        collection("accounts").drop_indexes()
        with pytest.raises(OperationFailure) as raised:
            scan(work)
        assert reason(raised.value).startswith("an index of accounts is missing: run `queue-manager migrate`")

    def test_index_of_another_condition_is_not_used(self, clock: AgingClock) -> None:
        make_account(status="free")
        trial, free = (work_on(declare(where={"status": status}), clock) for status in ("trial", "free"))
        assert len(scan(free)) == 1
        assert {trial.documents.index, free.documents.index} <= {*free.documents.stored_indexes()}
        collection("accounts").drop_index(free.documents.index)
        with pytest.raises(OperationFailure, match="hint provided does not correspond"):
            scan(free)

    def test_scan_does_not_wait_for_a_locked_document(self, clock: AgingClock) -> None:
        work = work_on(declare(), clock)
        account = make_account()
        (item,) = scan(work)
        with locked(account), pytest.raises(Contended) as early:
            execute(work, item)
        assert early.value.remaining == transaction.CONFLICT_WAIT
        assert execute(work, item)["success"] is True

    def test_document_due_soon_is_dispatched_ahead_with_its_eta(self, clock: AgingClock) -> None:
        work = work_on(declare(), clock, ahead=10)
        make_account(T0 + seconds(3))
        (item,) = scan(work)
        assert item.eta == T0 + seconds(3)
        with pytest.raises(NotYetDue):
            execute(work, item)


class TestFunction:
    def test_function_receives_the_whole_document_and_the_run(self, clock: AgingClock) -> None:
        seen: list[Any] = []

        def end(account: Document, run: Run) -> Document:
            seen.extend((account, run))
            return EXPIRE

        work = work_on(declare(end), clock)
        id = make_account(plan={"name": "a"}, seats=3)
        before = get_account(id)
        execute(work, item_of(work, id))
        assert seen == [before, Run(id="t", now=T0)]

    @pytest.mark.parametrize(
        ("fields", "seen"),
        [(["plan.name"], {"plan": {"name": "a"}}), ([], {}), (["trial_ends_at", "seats"], {"seats": 3})],
    )
    def test_fields_limit_what_the_function_receives_besides_id_and_date(
        self, clock: AgingClock, fields: list[str], seen: Document
    ) -> None:
        calls: list[Document] = []

        def end(account: Document) -> Any:
            calls.append(account)
            return EXPIRE

        work = work_on(declare(end, fields=fields), clock)
        id = make_account(plan={"name": "a", "price": 5}, seats=3)
        execute(work, item_of(work, id))
        assert calls == [{"_id": id, "trial_ends_at": OVER, **seen}]

    def test_decorated_function_can_be_called_directly(self) -> None:
        system = declare(lambda account: {"$set": {"status": account["next"]}})
        function = system.functions.item
        assert function is not None
        assert function({"next": "expired"}) == EXPIRE

    def test_item_task_of_a_script_is_refused(self) -> None:
        system = replace(declare(), functions=type(declare().functions)())

        def end_trial(account: Document) -> Document:
            return EXPIRE

        end_trial.__module__ = "__main__"
        function = system.item()(end_trial)
        for send in (function.delay, function.apply_async):
            with pytest.raises(ConfigurationError, match=r"no worker knows the task '__main__.end_trial', because"):
                send("65a1b2c3d4e5f60718293a4b")
        assert function({}) == EXPIRE


class TestUpdate:
    def test_operators(self, clock: AgingClock) -> None:
        work = work_on(declare(lambda _: {"$set": {"status": "expired"}, "$inc": {"count": 2}}), clock)
        id = make_account(count=1)
        assert execute(work, item_of(work, id)) == {"success": True, "id": str(id), "due_at": to_iso(OVER)}
        assert get_account(id) == {"_id": id, "status": "expired", "trial_ends_at": OVER, "count": 3}

    def test_pipeline_that_the_server_evaluates(self, clock: AgingClock) -> None:
        stages = [{"$set": {"was": "$status", "status": {"$concat": ["$status", "-over"]}}}, {"$unset": "count"}]
        work = work_on(declare(lambda _: stages), clock)
        id = make_account(count=1)
        assert execute(work, item_of(work, id))["success"] is True
        assert get_account(id) == {"_id": id, "status": "trial-over", "was": "trial", "trial_ends_at": OVER}

    @pytest.mark.parametrize(
        ("update", "left"),
        [
            ({}, {}),
            ({"$set": {"told": 1}}, {"told": 1}),
            ({"$unset": {"seats": ""}}, {}),
            ([{"$set": {"told": "$seats"}}], {"told": 3}),
        ],
    )
    def test_done_unset_removes_the_date_with_any_update(self, clock: AgingClock, update: Any, left: Document) -> None:
        work = work_on(declare(lambda _: update, done="unset"), clock)
        id = make_account(seats=3)
        assert execute(work, item_of(work, id))["success"] is True
        stored = get_account(id)
        assert "trial_ends_at" not in stored
        assert stored.items() >= left.items()

    def test_empty_update_is_an_error_that_says_what_is_needed(self, clock: AgingClock) -> None:
        work = work_on(declare(lambda _: {}), clock)
        with pytest.raises(PermanentError, match=r'end_trial returned {}, which needs `done="unset"`'):
            execute(work, item_of(work, make_account()))

    @pytest.mark.parametrize("later", [OVER.replace(tzinfo=None), "2026-01-01", [T0], 5])
    def test_next_due_time_must_be_a_date(self, clock: AgingClock, later: Any) -> None:
        work = work_on(declare(lambda _: {"$set": {"trial_ends_at": later}}), clock)
        id = make_account()
        before = get_account(id)
        with pytest.raises(PermanentError, match="must be a datetime with a time zone"):
            execute(work, item_of(work, id))
        assert get_account(id) == before

    @pytest.mark.parametrize(("wanted", "written"), [(1, Decimal128("1.0")), (Decimal128("2.00"), Decimal128("2.0"))])
    def test_value_that_only_mongodb_considers_equal_does_not_end_the_item(
        self, clock: AgingClock, wanted: Any, written: Any
    ) -> None:
        update = {"$set": {"amount": written}, "$inc": {"told": 1}}
        work = work_on(declare(lambda _: update, where={"amount": wanted}), clock)
        id = make_account(amount=wanted)
        with pytest.raises(PermanentError, match=r"left .* due"):
            execute(work, item_of(work, id))
        assert "told" not in get_account(id)

    @pytest.mark.parametrize("returned", [None, [], {"status": "expired"}, "x", 5, [1], True])
    def test_invalid_update_is_an_error_that_says_what_it_must_be(self, clock: AgingClock, returned: Any) -> None:
        work = work_on(declare(lambda _: returned), clock)
        id = make_account()
        before = get_account(id)
        with pytest.raises(
            PermanentError, match=r"billing.trial_end.end_trial returned .*, but it must return an update such as"
        ):
            execute(work, item_of(work, id))
        assert get_account(id) == before

    @pytest.mark.parametrize(
        "update",
        [
            {"$set": {"told": 1}},
            {"$set": {"status": "trial"}},
            {"$set": {"trial_ends_at": OVER}},
            {"$max": {"trial_ends_at": OVER}},
            [{"$set": {"told": 1}}],
            [{"$unset": "trial_ends_at"}, {"$set": {"trial_ends_at": OVER}}],
            [{"$unset": "trial_ends_at"}, {"$set": {"trial_ends_at": OVER}}, {"$unset": "told"}],
        ],
    )
    def test_update_that_leaves_it_due_is_an_error_that_says_what_to_do(self, clock: AgingClock, update: Any) -> None:
        work = work_on(declare(lambda _: update), clock)
        id = make_account()
        before = get_account(id)
        with pytest.raises(PermanentError) as error:
            execute(work, item_of(work, id))
        assert any(said in str(error.value) for said in ("postpone or remove trial_ends_at", "a later trial_ends_at"))
        assert get_account(id) == before

    def test_list_that_contains_the_value_still_matches_where(self, clock: AgingClock) -> None:
        work = work_on(declare(lambda _: {"$set": {"status": ["trial", "x"]}}), clock)
        id = make_account()
        with pytest.raises(PermanentError, match="due: its update must"):
            execute(work, item_of(work, id))
        assert get_account(id)["status"] == "trial"

    @pytest.mark.parametrize(
        "update",
        [
            {"$unset": {"trial_ends_at": ""}},
            {"$rename": {"trial_ends_at": "ended_at"}},
            {"$set": {"trial_ends_at": T0 + hours(1)}},
            {"$currentDate": {"trial_ends_at": True}},
            [{"$set": {"trial_ends_at": {"$dateAdd": {"startDate": "$$NOW", "unit": "day", "amount": 1}}}}],
            [{"$unset": ["trial_ends_at", "told"]}],
            {"$set": {"status": ["expired"]}},
        ],
    )
    def test_update_may_make_the_document_not_due_in_any_way(self, clock: AgingClock, update: Any) -> None:
        work = work_on(declare(lambda _: update), clock)
        id = make_account()
        assert execute(work, item_of(work, id))["success"] is True
        assert scan(work) == []

    def test_document_that_is_set_as_a_whole_may_leave_the_condition(self, clock: AgingClock) -> None:
        work = work_on(declare(lambda account: {"$set": {**account, "status": "expired"}}), clock)
        id = make_account()
        assert execute(work, item_of(work, id))["success"] is True
        assert get_account(id)["status"] == "expired"


class TestConflict:
    def test_function_is_called_again_if_the_document_changes_before_the_write(self, clock: AgingClock) -> None:
        seen: list[int] = []

        def end(account: Document) -> Document:
            seen.append(account["seats"])
            if len(seen) == 1:
                collection("accounts").update_one({"_id": account["_id"]}, {"$set": {"seats": 2}})
            return {"$set": {"status": "expired", "paid_for": account["seats"]}}

        work = work_on(declare(end), clock)
        id = make_account(seats=1)
        assert execute(work, item_of(work, id))["success"] is True
        assert seen == [1, 2]
        assert get_account(id)["paid_for"] == 2

    @pytest.mark.parametrize("change", [{"$set": {"status": "paid"}}, {"$set": {"trial_ends_at": T0 - minutes(1)}}])
    def test_document_whose_due_time_changed_is_skipped(self, clock: AgingClock, change: Document) -> None:
        def end(account: Document) -> Document:
            collection("accounts").update_one({"_id": account["_id"]}, change)
            return EXPIRE

        work = work_on(declare(end), clock)
        id = make_account()
        assert execute(work, item_of(work, id)) == {"skipped": True, "reason": "Changed"}
        assert get_account(id)["status"] != "expired"

    def test_message_for_another_due_time_is_skipped(self, clock: AgingClock) -> None:
        work = work_on(declare(), clock)
        id = make_account()
        assert execute(work, item_of(work, id, OVER - minutes(1))) == {"skipped": True, "reason": "Changed"}
        assert execute(work, item_of(work, ObjectId())) == {"skipped": True, "reason": "Not found"}
        assert get_account(id)["status"] == "trial"

    def test_message_without_a_due_time_acts_on_the_current_one(self, clock: AgingClock) -> None:
        work = work_on(declare(), clock)
        due, later = make_account(), make_account(T0 + seconds(1))
        assert execute(work, item_of(work, due, None))["success"] is True
        assert execute(work, item_of(work, later, None)) == {"skipped": True, "reason": "Not due yet"}


class TestRepeating:
    @staticmethod
    def next_day(account: Document) -> Document:
        return {"$set": {"trial_ends_at": account["trial_ends_at"] + timedelta(days=1)}, "$inc": {"runs": 1}}

    def test_missed_dates_are_run_once_by_default(self, clock: AgingClock) -> None:
        work = work_on(declare(self.next_day), clock)
        id = make_account(T0 - timedelta(days=30))
        (item,) = scan(work)
        execute(work, item)
        stored = get_account(id)
        assert (stored["trial_ends_at"], stored["runs"]) == (T0 + timedelta(days=1), 1)
        assert scan(work) == []

    def test_nested_due_field_is_advanced_to_the_next_date(self, clock: AgingClock) -> None:
        def next_day(account: Document) -> Document:
            return {"$set": {"trial": {"at": account["trial"]["at"] + timedelta(days=1)}}}

        work = work_on(declare(next_day, due="trial.at", where={}), clock)
        id = make_account(trial={"at": T0 - timedelta(days=30)})
        (item,) = scan(work)
        execute(work, item)
        assert get_account(id)["trial"]["at"] == T0 + timedelta(days=1)

    def test_dates_beyond_the_time_of_one_call_are_left_to_the_next_scan(
        self, clock: AgingClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        work = work_on(declare(self.next_day), clock)
        id = make_account(T0 - timedelta(days=30))
        for time_limit, expected in ((0.0, T0 - timedelta(days=29)), (60.0, T0 + timedelta(days=1))):
            monkeypatch.setattr(updates, "MAX_CATCH_UP_TIME", time_limit)
            (item,) = scan(work)
            assert execute(work, item)["success"] is True
            assert get_account(id)["trial_ends_at"] == expected

    def test_catch_up_all_runs_once_for_each_missed_date(self, clock: AgingClock) -> None:
        work = work_on(declare(self.next_day, catch_up="all"), clock)
        id = make_account(T0 - timedelta(days=3))
        for _ in range(4):
            (item,) = scan(work)
            assert execute(work, item)["success"] is True
        stored = get_account(id)
        assert (stored["trial_ends_at"], stored["runs"]) == (T0 + timedelta(days=1), 4)
        assert scan(work) == []

    @pytest.mark.parametrize("catch_up", ["once", "all"])
    def test_pipeline_update_is_applied_date_by_date(self, clock: AgingClock, catch_up: Any) -> None:
        later = {"$dateAdd": {"startDate": "$trial_ends_at", "unit": "day", "amount": 1}}
        work = work_on(declare(lambda _: [{"$set": {"trial_ends_at": later}}], catch_up=catch_up), clock)
        id = make_account(T0 - timedelta(days=1))
        for _ in range(2):
            (item,) = scan(work)
            assert execute(work, item)["success"] is True
        assert get_account(id)["trial_ends_at"] == T0 + timedelta(days=1)

    @pytest.mark.parametrize("catch_up", ["once", "all"])
    def test_date_that_is_not_later_is_an_error(self, clock: AgingClock, catch_up: Any) -> None:
        back = {"$set": {"trial_ends_at": OVER - minutes(1)}}
        work = work_on(declare(lambda _: back, catch_up=catch_up), clock)
        id = make_account()
        with pytest.raises(PermanentError, match=r"postpone or remove trial_ends_at|later trial_ends_at"):
            execute(work, item_of(work, id))
        assert get_account(id)["trial_ends_at"] == OVER


class TestBatch:
    def test_equal_updates_are_one_write(self, clock: AgingClock) -> None:
        work = work_on(declare(), clock)
        sent: list[list[str]] = []
        for count in (1, 100):
            for _ in range(count):
                make_account()
            items = scan(work)
            with commands() as seen:
                results = execute_batch(work, items)
            assert [result and result["success"] for result in results] == [True] * count
            sent.append(seen)
        assert sent[0] == sent[1]
        assert [one for one in sent[0] if one.startswith("update")] == ["update accounts"]

    def test_different_updates_are_one_command(self, clock: AgingClock) -> None:
        ours = work_on(declare(lambda account: {"$set": {"status": f"was {account['seats']}"}}), clock)
        ids = [make_account(seats=seats) for seats in range(100)]
        with commands() as seen:
            assert None not in execute_batch(ours, [item_of(ours, id) for id in ids])
        assert [get_account(id)["status"] for id in ids] == [f"was {seats}" for seats in range(100)]
        assert [one for one in seen if one.startswith("update")] == ["update accounts"]

    def test_a_refused_one_of_different_updates_is_executed_by_its_own_task(self, clock: AgingClock) -> None:
        ours = work_on(declare(lambda account: {"$set": {"status": f"was {account['seats']}"}}), clock)
        ids = [make_account(seats=seats, **({"fixed": True} if seats == 1 else {})) for seats in range(4)]
        with refusing():
            results = execute_batch(ours, [item_of(ours, id) for id in ids])
        assert [result is None for result in results] == [False, True, False, False]
        assert [get_account(id)["status"] for id in ids] == ["was 0", "trial", "was 2", "was 3"]

    def test_different_updates_wait_for_a_locked_document(self, clock: AgingClock) -> None:
        ours = work_on(declare(lambda account: {"$set": {"status": f"was {account['seats']}"}}), clock)
        ids = [make_account(seats=seats) for seats in range(3)]
        items = [item_of(ours, id) for id in ids]
        with locked(ids[1]), pytest.raises(Contended):
            ours.execute_batch(items)
        assert [get_account(id)["status"] for id in ids] == ["trial"] * 3
        assert None not in execute_batch(ours, items)

    def test_item_whose_function_fails_gets_the_error_and_the_others_are_written(self, clock: AgingClock) -> None:
        def end(account: Document) -> Any:
            if account["seats"] == 1:
                raise ValueError("boom")
            if account["seats"] == 4:
                sys.exit(3)
            return {2: None, 3: {"$set": {"a": object()}}}.get(account["seats"], EXPIRE)

        work = work_on(declare(end), clock)
        ids = [make_account(seats=seats) for seats in range(6)]
        items = [item_of(work, id) for id in ids]

        results = work.execute_batch(items)

        errors = [result for result in results if isinstance(result, Exception)]
        assert [type(error) for error in errors] == [ValueError, PermanentError, InvalidDocument, FunctionExited]
        assert [get_account(id)["status"] for id in ids] == ["expired", *["trial"] * 4, "expired"]
        for item, error in zip(items[1:-1], errors, strict=True):
            with pytest.raises(type(error), match=re.escape(str(error)[:20])):
                execute(work, item)

    def test_errors_of_a_batch_keep_no_documents(self, clock: AgingClock) -> None:
        read = list[weakref.ref[Any]]()

        class Account(dict[str, Any]):
            """A document to which a weak reference can be made."""

        def end(account: Document) -> Any:
            held = Account(account)
            read.append(weakref.ref(held))
            raise ExceptionGroup("several", [ValueError("boom")]) if account["seats"] else ValueError(held["seats"])

        work = work_on(declare(end), clock)
        items = [item_of(work, make_account(seats=seats)) for seats in range(4)]
        errors = [result for result in work.execute_batch(items) if isinstance(result, Exception)]
        assert len(errors) == 4
        gc.collect()
        assert [one() for one in read] == [None] * 4
        text = "".join(traceback.format_exception(errors[1]))
        assert "raise ExceptionGroup" in text  # the line, as in the traceback of an error that is not kept

    def test_message_of_another_due_time_does_not_get_the_error_of_the_function(self, clock: AgingClock) -> None:
        def end(account: Document) -> Any:
            raise ValueError("boom")

        work = work_on(declare(end), clock)
        item = item_of(work, make_account())
        results = work.execute_batch([replace(item, args=(item.args[0], to_iso(T0 - hours(72)))), item])
        assert [isinstance(result, Exception) for result in results] == [False, True]

    def test_item_whose_update_leaves_it_due_is_executed_by_its_own_task(self, clock: AgingClock) -> None:
        work = work_on(declare(lambda account: account["update"]), clock)
        ids = [make_account(update=EXPIRE), make_account(update={"$set": {"told": 1}}), make_account(update=EXPIRE)]
        items = [item_of(work, id) for id in ids]
        results = work.execute_batch(items)
        assert [result is None for result in results] == [False, True, False]
        assert [get_account(id)["status"] for id in ids] == ["expired", "trial", "expired"]
        with pytest.raises(PermanentError, match=str(ids[1])):
            execute(work, items[1])
        assert "told" not in get_account(ids[1])

    def test_a_transaction_calls_functions_for_a_quarter_of_a_second_and_the_next_one_continues(
        self, clock: AgingClock, elapsed: list[float]
    ) -> None:
        ours, items = slow_items(clock, elapsed, took=0.1)
        with commands() as seen:
            results = execute_batch(ours, items)
        assert [result and result["success"] for result in results] == [True] * 6
        assert seen.count("update accounts") == 2

    def test_a_batch_of_slow_functions_ends_after_a_second_and_another_batch_continues(
        self, clock: AgingClock, elapsed: list[float]
    ) -> None:
        ours, items = slow_items(clock, elapsed, took=0.3)
        results = ours.execute_batch(items)
        assert [result is Verdict.UNREACHED for result in results] == [False] * 4 + [True] * 2
        assert collection("accounts").count_documents({"status": "expired"}) == 4
        assert Verdict.UNREACHED not in ours.execute_batch(items[4:])

    def test_results_are_kept_if_a_later_transaction_of_the_batch_fails(
        self, clock: AgingClock, elapsed: list[float]
    ) -> None:
        ours, items = slow_items(clock, elapsed, took=0.1)
        with locked(read_id(items[-1].args[0], field="id")):
            assert [result is None for result in ours.execute_batch(items)] == [False] * 3 + [True] * 3
            with pytest.raises(Contended):
                ours.execute_batch(items[-1:])
        assert None not in execute_batch(ours, items[3:])

    @pytest.mark.slow
    def test_large_documents_are_read_16_mb_at_a_time(self, clock: AgingClock) -> None:
        ours = work_on(declare(lambda account: EXPIRE), clock)
        ids = [make_account(picture=b"1" * 6_000_000) for _ in range(5)]
        items = [item_of(ours, id) for id in [*ids[:2], ids[0], *ids[2:]]]  # one is there twice
        with commands() as seen:
            results = execute_batch(ours, items)
        assert [result and result["success"] for result in results] == [True] * 6
        assert [get_account(id)["status"] for id in ids] == ["expired"] * 5
        assert seen.count("update accounts") == 3  # transactions of two, two and one

    def test_item_whose_transaction_is_repeated_is_executed_once(
        self, clock: AgingClock, elapsed: list[float], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        decided = list[int]()

        def postpone(account: Document) -> Document:
            if not decided:
                elapsed[0] += 1
            return {"$set": {"trial_ends_at": account["trial_ends_at"] + seconds(1)}}

        def conflict_once(*arguments: Any) -> None:
            decided.append(1)
            if len(decided) == 1:
                raise OperationFailure("conflict", 112, {"errorLabels": ["TransientTransactionError"]})

        ours = work_on(declare(postpone, catch_up="all"), clock)
        ids = [make_account() for _ in range(2)]
        monkeypatch.setattr(type(ours.documents), "_refuse_still_due", conflict_once)

        assert None not in execute_batch(ours, [item_of(ours, id, None) for id in ids])
        assert [get_account(id)["trial_ends_at"] for id in ids] == [OVER + seconds(1)] * 2

    def test_system_without_batches_has_no_function_for_many(self, clock: AgingClock) -> None:
        assert work_on(declare(), clock).batch_function is not None
        assert work_on(declare(batch=False), clock).batch_function is None

    def test_batch_waits_for_items_due_within_a_moment(self, clock: AgingClock) -> None:
        ours = work_on(declare(), clock)
        items = [item_of(ours, make_account(at), at) for at in (OVER, T0 + seconds(0.05), T0 + seconds(0.02))]
        with pytest.raises(NotYetDue) as early:
            ours.execute_batch(items)
        assert early.value.remaining == seconds(0.05)
        clock.advance(seconds(0.05))
        assert None not in execute_batch(ours, items)

    def test_batch_does_not_wait_for_an_item_that_is_due_much_later(self, clock: AgingClock) -> None:
        ours = work_on(declare(), clock)
        items = [item_of(ours, make_account(at), at) for at in (OVER, T0 + hours(1))]
        now, later = ours.execute_batch(items)
        assert isinstance(now, dict)
        assert now["success"]
        assert later is None

    def test_items_delivered_again_cost_two_reads_together(self, clock: AgingClock) -> None:
        ours = work_on(declare(), clock)
        sent: list[list[str]] = []
        for count in (2, 100):
            items = [item_of(ours, make_account()) for _ in range(count)]
            assert None not in execute_batch(ours, items)
            with commands() as seen:
                results = ours.execute_batch(items)
            assert results == [{"skipped": True, "reason": ours.system.changed}] * count
            sent.append(seen)
        assert sent[0] == sent[1]
        assert sent[0][-2:] == ["find accounts", "find accounts"]

    def test_items_that_a_batch_does_not_write_get_the_outcomes_of_their_own_tasks(self, clock: AgingClock) -> None:
        ours = work_on(declare(), clock)
        moved, later = make_account(T0 + hours(2)), make_account(T0 + hours(1))
        items = [item_of(ours, id) for id in (make_account(), moved, make_account(status="paid"), ObjectId())]
        items += [item_of(ours, later, None), item_of(ours, later, T0 + hours(1))]

        written, *outcomes, early = ours.execute_batch(items)

        assert isinstance(written, dict)
        assert written["success"]
        assert outcomes == [execute(ours, item) for item in items[1:-1]]
        assert [isinstance(one, dict) and one["reason"] for one in outcomes] == [
            *[ours.system.changed] * 2,
            ours.system.not_found,
            ours.system.not_due,
        ]
        assert early is None

    def test_what_a_batch_wrote_is_reported_although_mongodb_is_away_after_it(
        self, clock: AgingClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ours = work_on(declare(), clock)
        items = [item_of(ours, id) for id in (make_account(), ObjectId())]
        monkeypatch.setattr(type(ours.documents), "get_many", Mock(side_effect=AutoReconnect("gone")))
        written, other = ours.execute_batch(items)
        assert isinstance(written, dict)
        assert written["success"]
        assert other is None

    @pytest.mark.parametrize("order", [1, -1])
    def test_only_the_message_for_the_due_time_of_a_document_is_executed(self, clock: AgingClock, order: int) -> None:
        ours = work_on(declare(), clock)
        id = make_account()
        items = [item_of(ours, id), item_of(ours, id, OVER - minutes(1))][::order]
        found = [result or execute(ours, item) for item, result in zip(items, execute_batch(ours, items), strict=True)]
        assert [result.get("success", False) for result in found] == [True, False][::order]
        assert get_account(id)["status"] == "expired"

    def test_message_delivered_twice_is_called_for_once(self, clock: AgingClock) -> None:
        calls: list[Written] = []
        system = declare()
        system.after(calls.extend)
        ours = work_on(system, clock)
        item = item_of(ours, make_account())
        first, second = ours.execute_batch([item, item])
        assert first == second
        assert len(calls) == 1


class TestIds:
    @pytest.mark.parametrize("together", [True, False])
    def test_ids_may_have_any_type(self, clock: AgingClock, together: bool) -> None:
        calls: list[Written] = []
        system = declare()
        system.after(calls.extend)
        ours = work_on(system, clock)
        ids = [make_account(_id=id) for id in [ObjectId(), None, *ODD_IDS]]
        items = scan(ours)
        assert len(items) == len(ids)
        results = execute_batch(ours, items) if together else [execute(ours, item) for item in items]
        assert [result and result["success"] for result in results] == [True] * len(ids)
        assert [get_account(id)["status"] for id in ids] == ["expired"] * len(ids)
        assert sorted(id_text(one.id) for one in calls) == sorted(map(id_text, ids))

    def test_ids_that_are_equal_in_python_alone_are_two_documents(self, clock: AgingClock) -> None:
        ours = work_on(declare(), clock)
        ids = [make_account(_id=id) for id in (1, True, 0, False)]
        items = scan(ours)
        results = execute_batch(ours, items)
        for item, result in zip(items, results, strict=True):
            assert (result or execute(ours, item))["success"] is True
        assert [get_account(id)["status"] for id in ids] == ["expired"] * 4

    def test_items_with_ids_that_are_equal_in_python_do_not_get_the_outcome_of_the_other(
        self, clock: AgingClock
    ) -> None:
        ours = work_on(declare(), clock)
        make_account(_id=1)
        make_account(OVER - minutes(1), _id=True)
        first, second = items = [item_of(ours, 1), item_of(ours, True, OVER - minutes(1))]
        for item, result in zip(items, execute_batch(ours, [first, second]), strict=True):
            assert (result or execute(ours, item))["success"] is True

    def test_id_of_another_number_type_does_not_match(self, clock: AgingClock) -> None:
        ours = work_on(declare(), clock)
        id, other = make_account(_id={"account": Int64(5)}), make_account()
        unknown, written = execute_batch(ours, [item_of(ours, {"account": 5}), item_of(ours, other)])
        assert unknown == {"skipped": True, "reason": ours.system.not_found}
        assert written
        assert written["success"]
        assert [get_account(one)["status"] for one in (id, other)] == ["trial", "expired"]

    def test_unreadable_id_does_not_hide_statistics(self, clock: AgingClock) -> None:
        ours = work_on(declare(), clock)
        nested: Any = 1
        for _ in range(MAX_ID_DEPTH + 1):
            nested = {"a": nested}
        make_account(_id=nested)
        make_account()
        assert stats(ours).numbers["pending"] == 2

    def test_failures_of_ids_of_any_type_are_recorded_listed_and_retried(self, clock: AgingClock) -> None:
        ours = work_on(declare(), clock)
        ids = [make_account(_id=id) for id in [ObjectId(), None, *ODD_IDS]]
        for item in scan(ours):
            ours.give_up(item, error="boom")
        listed = DocumentList(work=ours)
        found = [item.id for item in listed.items("failed")]
        assert sorted(found) == sorted(map(id_text, ids))
        assert list(listed.items("due")) == []
        assert len(listed.take(found)) == len(ids)
        assert list(listed.items("failed")) == []


class TestAfter:
    @pytest.fixture
    def calls(self) -> list[Written]:
        return []

    @pytest.fixture
    def system(self, calls: list[Written]) -> DueDocuments:
        system = declare(fields=["plan"])
        system.after(calls.extend)
        return system

    def test_hook_that_returns_a_coroutine_is_called_again(
        self, clock: AgingClock, caplog: pytest.LogCaptureFixture
    ) -> None:
        system = declare()
        system.after(lambda written: never_awaited())
        ours = work_on(system, clock)
        ours.execute_batch([item_of(ours, make_account())])
        assert "`after` returned a coroutine, so nothing was done" in caplog.text
        assert collection(outbox.OUTBOX_COLLECTION).count_documents({}) == 1

    @pytest.mark.parametrize("name", ["after", "failed"])
    def test_hook_must_be_one_plain_function(self, system: DueDocuments, name: str) -> None:
        for wrong in (None, 5, never_awaited, lambda written: (yield)):
            with pytest.raises(ConfigurationError, match=f"`{name}` must be a plain function"):
                getattr(declare(), name)(wrong)
        with pytest.raises(ConfigurationError, match=f"`{name}` must be a plain function of one argument"):
            getattr(declare(), name)(lambda: None)
        system = declare()
        getattr(system, name)(print)
        with pytest.raises(ConfigurationError, match=f"it has a function `{name}` already"):
            getattr(system, name)(repr)

    def test_hook_is_called_with_the_written_documents(
        self, clock: AgingClock, system: DueDocuments, calls: list[Written]
    ) -> None:
        ours = work_on(system, clock)
        id = make_account(plan="a", seats=3)
        ours.execute_batch([item_of(ours, id), item_of(ours, make_account(status="paid"))])
        document = {"_id": id, "trial_ends_at": OVER, "plan": "a"}
        assert [replace(one, document={}) for one in calls] == [Written(id=id, due_at=OVER, written_at=T0, document={})]
        assert calls[0].document.items() <= document.items()
        assert collection(outbox.OUTBOX_COLLECTION).count_documents({}) == 0

    @pytest.mark.parametrize("fields", [None, ["plan"], ["trial", "seats"], ["trial.plan", "status"]], ids=str)
    @pytest.mark.parametrize(
        "update",
        [
            EXPIRE,
            {"$set": {"plan": "b", "trial_ends_at": T0 + seconds(0.0123456)}},
            {
                "$set": {"seats": (1, 2), "trial": {"plan": {"at": T0 + seconds(0.0123456)}}},
                "$unset": {"trial_ends_at": ""},
            },
            {"$unset": {"trial_ends_at": "", "trial": "", "plan": "", "none": ""}},
            {"$set": {"trial.plan": "b", "status": "expired"}},
            {"$set": {"status": "expired"}, "$inc": {"seats": 1}},
            {"$set": {"status": "expired"}, "$unset": {"trial.plan": ""}},
            [{"$set": {"status": "expired", "seats": {"$add": ["$seats", 1]}}}],
        ],
        ids=str,
    )
    def test_hook_receives_the_document_as_written(
        self, clock: AgingClock, calls: list[Written], fields: list[str] | None, update: Any
    ) -> None:
        system = declare(lambda account: update, fields=fields)
        system.after(calls.extend)
        ours = work_on(system, clock)
        id = make_account(plan="a", seats=3, trial={"plan": "a", "days": 30})
        (result,) = ours.execute_batch([item_of(ours, id)])
        assert isinstance(result, dict)
        assert result["success"]
        assert [one.document for one in calls] == ours.documents.get_many([id], system.read_fields)

    def test_documents_not_determined_by_their_update_are_read_in_one_query(
        self, clock: AgingClock, calls: list[Written]
    ) -> None:
        system = declare(lambda account: {"$set": {"status": "expired", "seats.used": account["number"]}})
        system.after(calls.extend)
        ours = work_on(system, clock)
        items = [item_of(ours, make_account(number=number)) for number in range(3)]
        with commands() as sent:
            ours.execute_batch(items)
        assert sent.count("find accounts") == 2
        assert sorted(one.document["seats"]["used"] for one in calls) == [0, 1, 2]

    def test_changes_of_a_function_to_its_argument_have_no_effect(
        self, clock: AgingClock, calls: list[Written]
    ) -> None:
        def end_trial(account: Document) -> Document:
            account["trial"]["plan"] = account["extra"] = "scratch"
            del account["trial"]["ends_at"]
            return EXPIRE

        system = declare(end_trial, due="trial.ends_at")
        system.after(calls.extend)
        ours = work_on(system, clock)
        id = collection("accounts").insert_one({"status": "trial", "trial": {"ends_at": OVER, "plan": "a"}}).inserted_id
        (result,) = ours.execute_batch([item_of(ours, id)])
        assert result == {"success": True, "id": str(id), "due_at": to_iso(OVER)}
        assert [(one.due_at, one.document) for one in calls] == [(OVER, get_account(id))]

    def test_changes_of_the_hook_to_a_document_have_no_effect(self, clock: AgingClock) -> None:
        seen: list[Document] = []

        def after(written: Sequence[Written]) -> None:
            for one in written:
                seen.append(dict(one.document, tags=[*one.document["tags"]]))
                one.document["trial"].clear()
                one.document["tags"].append("after")

        system = declare(lambda account: {"$set": {"status": "expired", "tags": ["a"]}}, due="trial.ends_at")
        system.after(after)
        ours = work_on(system, clock)
        ids = [
            collection("accounts").insert_one({"status": "trial", "trial": {"ends_at": OVER}}).inserted_id
            for _ in range(2)
        ]
        results = ours.execute_batch([item_of(ours, id) for id in ids])
        assert results == [{"success": True, "id": str(id), "due_at": to_iso(OVER)} for id in ids]
        assert [one["tags"] for one in seen] == [["a"], ["a"]]

    def test_documents_determined_by_their_update_are_not_read(self, clock: AgingClock, system: DueDocuments) -> None:
        ours = work_on(system, clock)
        item = item_of(ours, make_account())
        with commands() as sent:
            ours.execute_batch([item])
        assert [one for one in sent if "accounts" in one] == ["find accounts", "update accounts"]

    def test_hook_is_not_called_if_nothing_was_written(
        self, clock: AgingClock, system: DueDocuments, calls: list[Written]
    ) -> None:
        ours = work_on(system, clock)
        execute(ours, item_of(ours, make_account(status="paid")))
        assert calls == []
        assert collection(outbox.OUTBOX_COLLECTION).count_documents({}) == 0

    @pytest.mark.parametrize(
        "error", [ValueError, SystemExit, WorkerTerminate], ids=["raised", "exited", "process died"]
    )
    def test_hook_is_called_again_after_an_error_or_a_crash(
        self, clock: AgingClock, error: type[BaseException]
    ) -> None:
        calls: list[Sequence[Written]] = []

        def after(written: Sequence[Written]) -> None:
            calls.append(written)
            if len(calls) == 1:
                raise error

        system = declare()
        system.after(after)
        ours = work_on(system, clock)
        id = make_account()
        item = item_of(ours, id)
        if error is WorkerTerminate:
            with pytest.raises(WorkerTerminate):
                execute(ours, item)
            assert execute(ours, item) == {"skipped": True, "reason": "Changed"}
        else:
            assert execute(ours, item)["success"] is True
            record = collection(outbox.OUTBOX_COLLECTION).find_one()
            assert record is not None
            assert record["error"] == error.__name__
        assert get_account(id)["status"] == "expired"
        if error is WorkerTerminate:
            clock.advance(ours.leases.lease - seconds(1))
            assert scan(ours.after_calls) == []  # the process that wrote may still be at it
            clock.advance(seconds(1))

        (call,) = scan(ours.after_calls)
        assert ours.after_calls.due_ms(call) is None  # it is in no latency of the system
        ours.after_calls.repeat(call.args[0])

        assert calls[0] == calls[1]
        assert [(one.id, one.due_at, one.written_at) for one in calls[1]] == [(id, OVER, T0)]
        assert scan(ours.after_calls) == []
        ours.after_calls.repeat(call.args[0])
        assert len(calls) == 2

    def test_calls_that_fail_are_a_problem_with_ids_and_the_last_error(self, clock: AgingClock) -> None:
        errors = iter(["first", "second"])

        def after(written: Sequence[Written]) -> None:
            raise ValueError(next(errors))

        system = declare()
        system.after(after)
        ours = work_on(system, clock)
        ids = [make_account() for _ in range(6)]
        execute_batch(ours, [item_of(ours, id) for id in ids])
        (call,) = scan(ours.after_calls)
        with pytest.raises(ValueError, match="second"):
            ours.after_calls.repeat(call.args[0])
        clock.advance(ours.system.late_after(settings()) + seconds(1))
        assert stats(ours).problems[Rule.FAILING_CALLS] == (
            "1 call of `after`, each for a batch of items, without success for more than 30 s; they are repeated; the "
            f"oldest is for {', '.join(map(str, ids[:5]))} and 1 more: ValueError: second"
        )

    def test_scans_leave_the_hook_call_to_the_process_that_wrote_for_one_lease_after_its_write(
        self, clock: AgingClock
    ) -> None:
        def end(account: Document) -> Document:
            clock.advance(ours.leases.lease)
            return EXPIRE

        def after(written: Sequence[Written]) -> None:
            repeated.extend(scan(ours.after_calls))

        repeated: list[DueItem] = []
        system = declare(end)
        system.after(after)
        ours = work_on(system, clock)
        assert execute(ours, item_of(ours, make_account()))["success"] is True
        assert repeated == []

    def test_document_refused_by_mongodb_is_not_written_and_the_hook_gets_the_others_once(
        self, clock: AgingClock, system: DueDocuments, calls: list[Written]
    ) -> None:
        ours = work_on(system, clock)
        good, refused = make_account(), make_account(fixed=True)
        items = [item_of(ours, good), item_of(ours, refused)]
        with refusing():
            written, left = execute_batch(ours, items)
            assert (written and written["success"], left) == (True, None)
            with pytest.raises(WriteError):
                execute(ours, items[1])
        clock.advance(minutes(10))
        assert scan(ours.after_calls) == []
        assert [one.id for one in calls] == [good]
        assert get_account(refused)["status"] == "trial"

    def test_few_refused_documents_need_few_extra_transactions(
        self, clock: AgingClock, system: DueDocuments, calls: list[Written]
    ) -> None:
        ours = work_on(system, clock)
        accounts = [make_account(**({"fixed": True} if number in (0, 17, 99) else {})) for number in range(100)]
        good = [id for id in accounts if "fixed" not in get_account(id)]
        with refusing(), commands() as sent:
            results = ours.execute_batch([item_of(ours, id) for id in accounts])
        assert [id for id, result in zip(accounts, results, strict=True) if result is not None] == good
        assert [one.id for one in calls] == good
        assert {get_account(id)["status"] for id in good} == {"expired"}
        assert sum(one.startswith("find accounts") for one in sent) <= 40

    def test_an_update_too_large_to_send_does_not_affect_its_batch(self, clock: AgingClock) -> None:
        large = {"$set": {"status": "expired", "text": "x" * 17_000_000}}
        ours = work_on(declare(lambda account: large if "large" in account else EXPIRE), clock)
        accounts = [make_account(), make_account(large=True), make_account()]
        results = ours.execute_batch([item_of(ours, id) for id in accounts])
        assert [result is not None for result in results] == [True, False, True]

    def test_batch_of_refused_documents_is_soon_executed_by_single_tasks(
        self, clock: AgingClock, system: DueDocuments, calls: list[Written]
    ) -> None:
        ours = work_on(system, clock)
        accounts = [make_account(fixed=True) for _ in range(100)]
        with refusing(), commands() as sent:
            assert ours.execute_batch([item_of(ours, id) for id in accounts]) == [None] * 100
        assert calls == []
        assert sum(one.startswith("find accounts") for one in sent) <= 2 * work.MAX_REFUSALS

    def test_hook_receives_the_id_of_a_document_that_was_deleted_meanwhile(
        self, clock: AgingClock, system: DueDocuments, calls: list[Written]
    ) -> None:
        ours = work_on(system, clock)
        id = make_account()
        collection(outbox.OUTBOX_COLLECTION).insert_one(
            {"_id": "b", "system": system.name, "at": OVER, "items": [{"id": id, "due_at": OVER}]}
        )
        collection("accounts").delete_one({"_id": id})
        (call,) = scan(ours.after_calls)
        ours.after_calls.repeat(call.args[0])
        assert [one.document for one in calls] == [{"_id": id}]

    def test_hook_call_of_release_0_2_is_left_to_its_process_for_10_s(
        self, clock: AgingClock, system: DueDocuments
    ) -> None:
        calls = work_on(system, clock).after_calls
        # Release 0.2 writes no `postponed_until`.
        collection(outbox.OUTBOX_COLLECTION).insert_one({"_id": "b", "system": system.name, "at": T0, "items": []})
        clock.advance(seconds(9))
        assert scan(calls) == []
        clock.advance(seconds(1))
        assert [call.args[0] for call in scan(calls)] == ["b"]

    def test_hook_call_that_used_its_attempts_is_repeated_after_a_cool_down(
        self, clock: AgingClock, system: DueDocuments
    ) -> None:
        calls = work_on(system, clock).after_calls
        collection(outbox.OUTBOX_COLLECTION).insert_one({"_id": "b", "system": system.name, "at": OVER, "items": []})
        (call,) = scan(calls)
        calls.give_up(call, error="boom")
        assert scan(calls) == []
        clock.advance(minutes(1))
        assert [again.args for again in scan(calls)] == [call.args]

    @pytest.mark.parametrize("lost_by", [None, "it took longer than 2 s"], ids=["raised", "process ended"])
    def test_document_with_which_the_hook_fails_does_not_hold_up_its_batch(
        self, clock: AgingClock, lost_by: str | None
    ) -> None:
        done: list[Any] = []

        def after(written: Sequence[Written]) -> None:
            if any("bad" in one.document for one in written):
                raise ValueError("bad")
            done.extend(one.id for one in written)

        system = declare()
        system.after(after)
        ours = work_on(system, clock)
        accounts = [make_account(**({"bad": True} if number == 5 else {})) for number in range(13)]
        bad = accounts.pop(5)
        execute_batch(ours, [item_of(ours, id) for id in (*accounts, bad)])
        assert done == []

        while calls := scan(ours.after_calls):
            for call in calls:
                try:
                    ours.after_calls.repeat(call.args[0])
                except ValueError as error:
                    if lost_by is not None:
                        ours.after_calls.lost(call, lost_by)
                        ours.after_calls.cool_down_lost(call, MustCoolDown(2))
                    else:
                        ours.after_calls.give_up(call, error=str(error))

        assert sorted(done) == accounts  # each once
        clock.advance(minutes(1))
        (last,) = scan(ours.after_calls)
        pending = outbox.get(last.args[0])
        assert pending is not None
        assert list(pending.due_at) == [bad]
        assert pending.error == (lost_by or "ValueError: bad")

    def test_hook_call_whose_worker_was_lost_names_that(self, clock: AgingClock, system: DueDocuments) -> None:
        calls = work_on(system, clock).after_calls
        collection(outbox.OUTBOX_COLLECTION).insert_one({"_id": "b", "system": system.name, "at": OVER, "items": []})
        (call,) = scan(calls)
        calls.cool_down_lost(call, MustCoolDown(2))
        pending = outbox.get("b")
        assert pending is not None
        assert pending.error == "its process was lost 2 times in a row"

    def test_the_oldest_batches_that_fail_are_halved_first(self, clock: AgingClock) -> None:
        system = declare()
        system.after(Mock(side_effect=OSError("no service")))
        ours = work_on(system, clock)
        for _ in range(MAX_HALVED + 1):
            execute_batch(ours, [item_of(ours, make_account()) for _ in range(2)])
            clock.advance(seconds(1))
        oldest, *_, newest = scan(ours.after_calls)
        ours.after_calls.give_up(newest, error="no service")
        assert self.sizes() == [2] * (MAX_HALVED + 1)
        ours.after_calls.give_up(oldest, error="no service")
        assert sorted(self.sizes()) == [1, 1, *[2] * MAX_HALVED]

    def test_documents_that_always_fail_do_not_keep_later_batches_whole(self, clock: AgingClock) -> None:
        system = declare()
        system.after(Mock(side_effect=ValueError("bad")))
        ours = work_on(system, clock)
        for _ in range(MAX_HALVED + 1):
            execute_batch(ours, [item_of(ours, make_account())])
        clock.advance(seconds(1))
        execute_batch(ours, [item_of(ours, make_account()) for _ in range(2)])
        for call in scan(ours.after_calls):
            ours.after_calls.give_up(call, error="bad")
        assert self.sizes() == [1] * (MAX_HALVED + 3)

    def sizes(self) -> list[int]:
        """Return the numbers of documents of the pending calls."""
        return [len(record["items"]) for record in collection(outbox.OUTBOX_COLLECTION).find()]

    def test_system_without_the_hook_stores_no_record(self, clock: AgingClock) -> None:
        ours = work_on(declare(), clock)
        items = [item_of(ours, make_account())]
        with commands() as seen:
            ours.execute_batch(items)
        assert not [one for one in seen if outbox.OUTBOX_COLLECTION in one]


class TestFailure:
    def fail(self, ours: DocumentWork, times: int, clock: AgingClock) -> list[timedelta]:
        pauses = []
        for _ in range(times):
            (item,) = scan(ours)
            ours.give_up(item, error="boom")
            (record,) = collection(failed_item.FAILED_ITEMS_COLLECTION).find()
            pauses.append(record["retry_at"] - clock.now)
            assert scan(ours) == []
            clock.advance(pauses[-1])
        return pauses

    def test_failure_is_recorded_outside_the_document_with_a_growing_cool_down(self, clock: AgingClock) -> None:
        ours = work_on(declare(), clock)
        id = make_account()
        before = get_account(id)

        pauses = self.fail(ours, 8, clock)

        assert [pause / minutes(1) for pause in pauses] == [1, 2, 4, 8, 16, 32, 60, 60]
        (record,) = collection(failed_item.FAILED_ITEMS_COLLECTION).find()
        assert record["_id"] == {"system": "trial-end", "id": id}
        assert (record["due_at"], record["error"], record["failures"]) == (OVER, "boom", 8)
        assert get_account(id) == before

    def test_success_deletes_the_failure_record(self, clock: AgingClock) -> None:
        ours = work_on(declare(), clock)
        make_account()
        self.fail(ours, 2, clock)
        (item,) = scan(ours)
        execute(ours, item)
        assert collection(failed_item.FAILED_ITEMS_COLLECTION).count_documents({}) == 0

    def test_new_due_time_resets_the_failures(self, clock: AgingClock) -> None:
        ours = work_on(declare(), clock)
        id = make_account()
        self.fail(ours, 3, clock)
        collection("accounts").update_one({"_id": id}, {"$set": {"trial_ends_at": clock.now}})
        assert self.fail(ours, 1, clock) == [minutes(1)]

    def test_failure_record_belongs_to_one_system(self, clock: AgingClock) -> None:
        ours, others = work_on(declare(), clock), work_on(declare(name="trial-warning", due="warn_at"), clock)
        id = make_account(warn_at=OVER)
        for one in (ours, others):
            (item,) = scan(one)
            one.give_up(item, error="boom")
        clock.advance(minutes(1))
        (item,) = scan(others)
        execute(others, item)
        assert [one["_id"] for one in collection(failed_item.FAILED_ITEMS_COLLECTION).find()] == [
            {"system": "trial-end", "id": id}
        ]

    def test_hook_may_write_fields_of_its_own(self, clock: AgingClock) -> None:
        told: list[Failure] = []
        system = declare()

        @system.failed
        def tell(failure: Failure) -> Document:
            told.append(failure)
            return {"$set": {"error": failure.error}}

        ours = work_on(system, clock)
        id = make_account()
        self.fail(ours, 1, clock)
        assert told == [Failure(id=id, due_at=OVER, error="boom", failures=1, retry_at=T0 + minutes(1))]
        assert get_account(id)["error"] == "boom"

    def test_hook_may_write_nothing(self, clock: AgingClock) -> None:
        system = declare()
        system.failed(lambda failure: None)
        ours = work_on(system, clock)
        before = get_account(make_account())
        self.fail(ours, 1, clock)
        assert get_account(before["_id"]) == before

    @pytest.mark.parametrize(
        "hook",
        [
            *(lambda _: 1 / 0, lambda _: {"state": "failed"}, lambda _: True, lambda _: never_awaited()),
            *(lambda _: {"$set": {"_id": 5}}, lambda _: sys.exit(1)),
        ],
    )
    def test_failed_item_whose_hook_fails_still_cools_down(
        self, clock: AgingClock, hook: Callable[[Failure], Any], caplog: pytest.LogCaptureFixture
    ) -> None:
        system = declare()
        system.failed(hook)
        ours = work_on(system, clock)
        before = get_account(make_account())
        (item,) = scan(ours)
        ours.give_up(item, error="boom")
        assert "`failed` failed; the document is not marked" in caplog.text
        assert get_account(before["_id"]) == before
        assert lease_state(ours, item) == "cooling"
        assert collection(failed_item.FAILED_ITEMS_COLLECTION).count_documents({}) == 1

    def test_hook_writes_nothing_to_a_document_that_left_the_condition_meanwhile(self, clock: AgingClock) -> None:
        system = declare()

        @system.failed
        def tell(failure: Failure) -> Document:
            collection("accounts").update_one({"_id": failure.id}, {"$set": {"status": "paid"}})
            return {"$set": {"error": failure.error}}

        ours = work_on(system, clock)
        id = make_account()
        self.fail(ours, 1, clock)
        assert "error" not in get_account(id)

    def test_outage_during_the_hook_is_not_an_error_of_the_hook(
        self, clock: AgingClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def away(*_: Any) -> None:
            raise AutoReconnect("connection closed")

        system = declare()
        system.failed(lambda failure: {"$set": {"error": failure.error}})
        ours = work_on(system, clock)
        make_account()
        (item,) = scan(ours)
        monkeypatch.setattr(type(ours.documents), "update_if_due", away)
        with pytest.raises(AutoReconnect):
            ours.give_up(item, error="boom")

    def test_item_succeeds_although_its_failure_record_cannot_be_deleted(
        self, clock: AgingClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def away(*_: Any) -> None:
            raise AutoReconnect("connection closed")

        written: list[Written] = []
        system = declare()
        system.after(written.extend)
        ours = work_on(system, clock)
        item = item_of(ours, make_account())
        monkeypatch.setattr(failed_item, "delete", away)
        assert execute(ours, item)["success"] is True
        assert len(written) == 1

    def test_document_of_a_failed_task_without_a_due_time_cools_down(self, clock: AgingClock) -> None:
        ours = work_on(declare(), clock)
        item = item_of(ours, make_account(), None)
        with ours.attempt(item):
            assert lease_state(ours, item) == "in-progress"
        ours.give_up(item, error="boom")
        assert scan(ours) == []
        assert [one.id for one in DocumentList(work=ours).items("failed")] == [item.args[0]]
        assert lease_state(ours, item) == "free"
        clock.advance(minutes(1))
        assert len(scan(ours)) == 1

    def test_document_that_is_no_longer_due_has_no_failure_record(self, clock: AgingClock) -> None:
        ours = work_on(declare(), clock)
        id = make_account()
        (item,) = scan(ours)
        collection("accounts").update_one({"_id": id}, EXPIRE)
        ours.give_up(item, error="boom")
        assert collection(failed_item.FAILED_ITEMS_COLLECTION).count_documents({}) == 0
        assert lease_state(ours, item) == "free"

    def test_problems_name_one_item_and_several_as_the_system_does(self, clock: AgingClock) -> None:
        ours = work_on(declare(items_name="companies", item_name="company"), clock)
        ids = [make_account(), make_account()]
        items = scan(ours)
        ours.renew(items)
        clock.advance(minutes(2))
        assert stats(ours).problems[Rule.STUCK_ITEMS].startswith("2 stuck companies: due, ")
        ours.give_up(items[0], error="boom")
        assert stats(ours).problems[Rule.FAILED_ITEMS].startswith("1 failed company: ")
        assert str(ids[1]) in stats(ours).problems[Rule.STUCK_ITEMS]


class TestDeclaration:
    @pytest.mark.parametrize(
        ("fields", "sentence"),
        [
            ({"name": "Trial End"}, "name='Trial End' must be lower-case words with hyphens"),
            ({"collection": ""}, "collection='' must be the name of a collection"),
            ({"collection": 5}, "collection=5 must be a string"),
            ({"collection": "a$b"}, "collection='a$b' must be the name of a collection"),
            ({"collection": "system.x"}, "collection='system.x' must be the name of a collection"),
            ({"title": None}, "title=None must be a string"),
            ({"description": ["x"]}, "description=['x'] must be a string"),
            ({"items_name": 5}, "items_name=5 must be a string"),
            ({"page": 5}, "page=5 must be a string"),
            ({"flag": 5}, "flag=5 must be a string"),
            ({"queue": 5}, "queue=5 must be a string"),
            ({"scan_task": 5}, "scan_task=5 must be a string"),
            ({"batch": "no"}, "batch='no' must be True or False"),
            ({"may_run": True}, "may_run=True must be a function"),
            ({"on_time_within": 5}, "on_time_within=5 must be a timedelta"),
            ({"on_time_within": timedelta(seconds=3)}, "must be one of these numbers of milliseconds: 1, 2, 4, "),
            ({"due": "$now"}, "due='$now' must be the path of a field"),
            ({"due": ""}, "due='' must be the path of a field"),
            ({"due": "a..b"}, "due='a..b' must be the path of a field"),
            ({"where": "trial"}, "where='trial' must be a condition"),
            ({"where": {"status": {"$ne": "paid"}}}, "with no operators but"),
            ({"where": {"$nor": [{"a": 1}]}}, "with no operators but"),
            ({"where": {"$and": [{"a": {"$nin": [1]}}]}}, "with no operators but"),
            ({"where": {"$or": []}}, "must be a condition"),
            ({"where": {"a": {"$in": []}}}, "must be a condition"),
            ({"where": {"a": {"$in": "trial"}}}, "must be a condition"),
            ({"where": {"a": {"$in": [re.compile("x")]}}}, "must be a condition"),
            ({"where": {"a..b": 1}}, "must be a condition"),
            ({"where": {"trial_ends_at.x": 1}}, "on other fields than the date"),
            ({"where": {"a": {"$exists": False}}}, "with no operators but"),
            ({"where": {"trial_ends_at": {"$exists": True}}}, "on other fields than the date"),
            ({"where": {"_id": {"$gt": 5}}}, "on other fields than the date and `_id`"),
            ({"where": {"a": re.compile("x")}}, "must be a condition"),
            ({"where": {"a": {"$gt": 1, "b": 2}}}, "must be a condition"),
            ({"where": {"a": {"$exists": False, "$type": "null"}}}, "must be a condition"),
            ({"where": {"a": {1}}}, "must be a condition"),
            ({"where": {1: 2}}, "must be a condition"),
            ({"where": {"$and": 5}}, "must be a condition"),
            ({"due": "_id"}, "due='_id' must be the path of a field"),
            ({"due": None}, "due=None must be a string"),
            ({"max_rate": "5"}, "max_rate='5' must be a number of items per second, above zero"),
            ({"name": 5}, "name=5 must be lower-case words with hyphens"),
            ({"fields": 5}, "fields=5 must be a list of fields"),
            ({"fields": "status"}, "fields='status' must be a list of fields"),
            ({"fields": [1]}, "must be a list of fields"),
            ({"fields": ["$status"]}, "fields=['$status'] must be a list of fields"),
            ({"shown": "name"}, "shown='name' must be a list of fields"),
            ({"catch_up": "twice"}, "catch_up='twice' must be 'once' or 'all'"),
            ({"done": "delete"}, "done='delete' must be 'unset' or None"),
            ({"max_rate": 0}, "max_rate=0 must be a number of items per second, above zero"),
            ({"every": timedelta(0)}, "must be a timedelta of at least 0.1 s"),
            ({"every": timedelta(milliseconds=99)}, "must be a timedelta of at least 0.1 s"),
            ({"scan_task": "scan"}, "scan_task='scan' must be a task's name"),
            ({"queue": "scans"}, "queue='scans' must be a queue of its own"),
            ({"trigger": "x"}, "trigger='x' must be a path of two words or more"),
            ({"page": "x"}, "page='x' must be a path"),
            ({"flag": "QM_NONSENSE"}, "flag='QM_NONSENSE' must be the name of the setting that switches"),
        ],
    )
    def test_wrong_field_is_refused_in_one_sentence(self, fields: dict[str, Any], sentence: str) -> None:
        with pytest.raises(ConfigurationError) as error:
            declare(**fields)
        assert sentence in str(error.value)
        assert "\n" not in str(error.value)

    @pytest.mark.parametrize(
        ("arguments", "function", "sentence"),
        [
            ({"retry": 5}, lambda account: EXPIRE, "retry=5 must be a RetryPolicy"),
            ({"task": "x"}, lambda account: EXPIRE, "item_task='x' must be a task's name"),
            ({}, never_awaited, "must be a plain function of the document"),
            ({}, None, "must be a plain function of the document"),
            ({}, lambda one, two: EXPIRE, "must be a plain function of the document"),
            ({}, lambda *, account: EXPIRE, "must be a plain function of the document"),
            ({}, lambda *accounts: EXPIRE, "must be a plain function of the document"),
            ({}, dict, "builtins.dict must be a plain function of the document"),
            ({}, never_awaited, f"{__name__}.never_awaited must be a plain function of the document, neither `async`"),
        ],
    )
    def test_wrong_function_or_option_is_refused_in_one_sentence(
        self, arguments: dict[str, Any], function: Any, sentence: str
    ) -> None:
        system = replace(declare(), functions=type(declare().functions)())
        with pytest.raises(ConfigurationError) as error:
            system.item(**arguments)(function)
        assert sentence in str(error.value)

    def test_invalid_period_is_refused_in_one_sentence(self) -> None:
        with pytest.raises(ConfigurationError, match="`every` returned 5, not a timedelta"):
            declare(every=lambda chosen: 5).period(settings())
        with pytest.raises(ConfigurationError, match=r"not a timedelta of at least 0\.1 s"):
            declare(every=lambda chosen: timedelta(milliseconds=99)).period(settings())

    def test_declaration_has_one_function(self) -> None:
        system = declare()
        system.check()
        with pytest.raises(ConfigurationError, match="'trial-end': it has an item function already"):
            system.item()(lambda account: EXPIRE)

    def test_declaration_without_a_function_is_incomplete(self) -> None:
        system = replace(declare(), functions=type(declare().functions)())
        with pytest.raises(ConfigurationError, match=r"'trial-end' has no item function: decorate one with"):
            system.check()

    def test_names_are_derived_from_the_name_of_the_system(self) -> None:
        system = declare()
        assert (system.queue, system.page, system.trigger) == (
            "trial-end",
            "/systems/trial-end",
            "systems/trial-end",
        )
        assert (system.scan_task, system.item_task) == (
            "tasks.due_documents.scan_trial_end",
            "billing.trial_end.end_trial",
        )
        assert system.functions.retry == RetryPolicy(max_attempts=5, base=seconds(1))


def test_a_backlog_beyond_the_limit_of_counting_stays_at_the_limit_while_items_are_in_flight(
    clock: AgingClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[stats.__module__], "MAX_COUNT", 5)
    work = work_on(declare(), clock, max_queue=3)
    for _ in range(10):
        make_account()
    assert len(scan(work)) == 3
    numbers = stats(work).numbers
    assert (numbers["pending"], numbers["in_progress"]) == (5, 3)


def test_pending_documents_of_a_large_backlog_are_not_counted_each_time(
    clock: AgingClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cached_answer, "MAX_FRESH_COUNT", 3)
    monkeypatch.setattr(cached_answer, "CACHE_FACTOR", 1e12)
    work, found = work_on(declare(), clock), []
    for _ in range(5):
        make_account()
        found.append(stats(work).numbers["pending"])
    assert found == [1, 2, 3, 4, 4]
    scan(work)
    assert stats(work).numbers["in_progress"] == 5


def test_leases_of_documents_that_are_not_due_any_more_do_not_count_beyond_the_limit_of_comparing(
    clock: AgingClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[stats.__module__], "MAX_COMPARED", 20)
    ours = work_on(declare(), clock)
    for number in range(80):
        make_account(_id=number)
    items = scan(ours)
    ours.renew(items[:40])
    ours.leases.release([item.lease for item in items[40:]], cool_down=hours(24))
    clock.advance(ours.leases.lease + ours.system.late_after(settings()) + seconds(1))
    collection("accounts").update_many({"_id": {"$lt": 30}}, {"$set": {"status": "expired"}})
    collection("accounts").update_many({"_id": {"$gte": 40, "$lt": 60}}, {"$set": {"status": "expired"}})
    numbers = stats(ours).numbers
    assert 5 < numbers["stuck"] < 15  # 10 of 40
    assert 15 < numbers["cooling_off"] < 25  # 20 of 40
    collection("accounts").update_many({}, {"$set": {"status": "expired"}})
    assert (stats(ours).numbers["stuck"], stats(ours).problems) == (0, {})


def test_stuck_items_beyond_the_limit_of_comparing_are_counted_by_their_leases(
    clock: AgingClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[stats.__module__], "MAX_COMPARED", 2)
    ours = work_on(declare(), clock)
    for _ in range(5):
        make_account()
    ours.renew(scan(ours))
    clock.advance(ours.leases.lease + ours.system.late_after(settings()) + seconds(1))
    found = stats(ours)
    assert (found.numbers["stuck"], found.numbers["pending"], found.numbers["in_progress"]) == (5, 0, 0)
    assert found.problems[Rule.STUCK_ITEMS].startswith("5 stuck items: ")
    assert found.problems[Rule.STUCK_ITEMS].endswith(" and 3 more)")


@pytest.mark.parametrize(("cooling", "compared"), [(0, 5), (1, 100), (150, 200), (300, 300)])
def test_statistics_read_due_documents_until_some_are_not_cooling(
    clock: AgingClock, monkeypatch: pytest.MonkeyPatch, cooling: int, compared: int
) -> None:
    ours = work_on(declare(), clock, batch=1_000, max_queue=1_000)
    collection("accounts").insert_many(
        {"_id": number, "status": "trial", "trial_ends_at": OVER + seconds(number / 10)} for number in range(300)
    )
    ours.leases.release([item.lease for item in scan(ours)[:cooling]], cool_down=hours(1))
    names: list[str] = []
    real = Leases.statuses

    def statuses(leases: Leases, some: Sequence[str]) -> list[LeaseStatus]:
        names.extend(some)
        return real(leases, some)

    monkeypatch.setattr(Leases, "statuses", statuses)
    found = stats(ours)
    assert len(names) == compared
    assert found.numbers["lag_seconds"] == (300 - cooling / 10 if cooling < 300 else 0)
    assert found.late == [str(number) for number in range(cooling, 300)][:5]


@pytest.mark.parametrize(("documents", "lag"), [(3, 0), (4, None), (5, None)])
def test_the_lag_is_unknown_if_as_many_documents_cool_down_as_statistics_read(
    clock: AgingClock, monkeypatch: pytest.MonkeyPatch, documents: int, lag: float | None
) -> None:
    monkeypatch.setattr(sys.modules[stats.__module__], "MAX_READ", 4)
    ours = work_on(declare(), clock)
    collection("accounts").insert_many(
        {"_id": number, "status": "trial", "trial_ends_at": OVER + seconds(number)} for number in range(documents)
    )
    ours.leases.release([item.lease for item in scan(ours)[:4]], cool_down=hours(1))
    found = stats(ours)
    assert (found.numbers.get("lag_seconds"), found.late) == (lag, [])
