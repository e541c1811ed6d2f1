"""Why an item is in its state: the explanation of each state, and the timeline."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from bson import ObjectId
from bson.datetime_ms import DatetimeMS

from models import item_events, pulse, site, subscription
from models.database import collection, server_now
from models.document_id import id_text
from queue_manager import leases
from queue_manager.broker import dead_letters
from queue_manager.core.clock import LAST_DATE, hours, minutes, seconds
from queue_manager.core.redis_client import connect
from queue_manager.core.wording import clock, error_summary, ordinal, rounded, sentence, span, when
from queue_manager.explanation import DispatchState, Explanation
from queue_manager.items import DueItem
from queue_manager.leases import MustCoolDown
from queue_manager.operations import diagnosis
from queue_manager.operations.diagnosis import diagnose
from queue_manager.telemetry import worker_heartbeats
from services import review_requests, stale_thumbnails, support_snooze
from services.due_documents import DueDocuments, work_of
from services.due_documents.explanation import explain
from services.due_documents.work import DocumentWork
from services.due_work import leases_of
from tests.eventually import eventually
from tests.odd_ids import ODD_IDS
from tests.real_servers import Servers
from tests.rooms import T0, execute, get_room, lose, make_room, make_work, resnooze, scan
from tests.services.test_due_documents import declare, make_account, work_on

pytestmark = pytest.mark.usefixtures("clean")
AFTER_LAST_DATE = DatetimeMS(8_640_000_000_000_000)  # the last date of JavaScript; read as that of Python


def dispatch(now: datetime, **fields: Any) -> DispatchState:
    """Return the state of a system whose scans run as usual, with these changes."""
    usual = DispatchState(
        system=support_snooze.system,
        now=now,
        is_on=True,
        idle=None,
        has_leader=True,
        next_scan_at=now + seconds(5),
        workers=["worker@here"],
    )
    return replace(usual, **fields)


def why(room: ObjectId, work: DocumentWork, now: datetime, **fields: Any) -> Explanation:
    (found,) = explain(work, str(room), dispatch(now, **fields))
    return found


@pytest.fixture
def work() -> DocumentWork:
    return make_work(server_now)


class TestNotDue:
    def test_snooze_and_the_scan_that_can_end_it(self, work: DocumentWork) -> None:
        room = make_room(T0 + hours(3) + minutes(12))
        found = why(room, work, T0)
        assert (found.label, found.tone, found.title) == ("snoozed", "neutral", str(get_room(room)["account_id"]))
        assert found.answer == (
            "Snoozed until 12:42 UTC, in 3 h 12 min; not dispatched; the scan that can take it runs at 12:41:55 UTC."
        )
        assert (found.page, found.retry) == (f"/rooms/{room}", None)
        assert found.document == f"/api/systems/support-snooze/items/{room}"

    def test_scan_that_can_end_it_if_nothing_is_dispatched_ahead(self, change_settings: Callable[..., None]) -> None:
        change_settings(QM_AHEAD_LIMIT="0")
        found = why(make_room(T0 + hours(3)), work_of(support_snooze.system), T0)
        assert found.answer.endswith("; not dispatched; the scan that can take it runs at 12:30:05 UTC.")

    @pytest.mark.parametrize("period", [seconds(10), hours(1), timedelta.max])
    def test_a_room_that_is_snoozed_until_the_last_date(self, work: DocumentWork, period: timedelta) -> None:
        for until in (LAST_DATE, AFTER_LAST_DATE):
            found = why(make_room(until), work, T0, system=replace(support_snooze.system, every=period))
            assert (found.label, found.due_at) == ("snoozed", LAST_DATE)
            assert "; the scan that can take it runs at 31 Dec 9999, 23:59:5" in found.answer

    @pytest.mark.parametrize(
        ("fields", "said"),
        [
            ({"is_on": False}, "; the system is off: see QM_CONVERSATIONS."),
            (
                {"idle": "paused"},
                "; the system is paused: see `queue-manager systems resume support-snooze`.",
            ),
            ({"idle": "dry run"}, "; the system is in a dry run: see QM_DRY_RUN."),
            ({"has_leader": False, "next_scan_at": None}, "no scan runs, because no beat is the leader."),
            ({"next_scan_at": None}, "the time of the next scan is unknown."),
        ],
    )
    def test_reasons_why_scans_do_not_dispatch(self, work: DocumentWork, fields: dict[str, Any], said: str) -> None:
        assert why(make_room(T0 + hours(3)), work, T0, **fields).answer.endswith(said)
        assert why(make_room(T0 - hours(3)), work, T0, **fields).answer.endswith(said)

    def test_a_room_that_is_dispatched_ahead_of_its_time(self, work: DocumentWork) -> None:
        now = server_now()
        room = make_room(now + seconds(8))
        scan(work)
        assert why(room, work, now).answer.endswith("; dispatched ahead of time, to be executed then.")

    @pytest.mark.parametrize(
        ("snooze", "said"),
        [
            ({"time": [T0]}, "Its snooze_time.time is malformed: it is a list, and must be a date"),
            ({"time": "soon"}, "Its snooze_time.time is malformed: it is a string, and must be a date"),
            ({"time": T0.replace(year=1969)}, "Its snooze_time.time is malformed: it is before 1970"),
            ({}, "Its snooze_time is malformed: it has no time"),
            ("tomorrow", "Its snooze_time is malformed: it is a string, and must be a document"),
        ],
    )
    def test_malformed_snoozes(self, work: DocumentWork, snooze: Any, said: str) -> None:
        found = why(make_room(snooze_time=snooze), work, T0)
        assert (found.label, found.tone) == ("malformed", "bad")
        assert found.answer == f"{said}; `queue-manager health` counts such rooms; it can never fall due."

    def test_a_room_that_was_woken(self, work: DocumentWork) -> None:
        room = make_room(server_now() - minutes(1))
        (item,) = scan(work)
        execute(work, item)
        now = get_room(room)["unsnoozed_at"] + minutes(2)
        found = why(room, work, now)
        assert found.label == "open"
        assert found.answer == f"Open since {when(now - minutes(2), now)}; unsnoozed by the task {item.task_id}."

    def test_a_room_that_was_never_snoozed(self, work: DocumentWork) -> None:
        assert why(make_room(status="open", snooze_time=None), work, T0).answer == "Not snoozed; its status is open."

    def test_a_document_on_the_path_with_a_field_named_0_is_malformed(self, clock: Any) -> None:
        work = work_on(declare(due="trial.ends_at"), clock)
        id = (
            collection("accounts")
            .insert_one({"status": "trial", "trial": {"ends_at": T0 - hours(3), "0": 1}})
            .inserted_id
        )
        assert scan(work) == []
        (found,) = explain(work, str(id), dispatch(T0, system=work.system))
        assert found.label == "malformed"
        assert found.answer == "Its trial is malformed: it has a field named 0, like a list; it can never fall due."

    def test_a_document_that_does_not_meet_the_condition(self, clock: Any) -> None:
        work = work_on(declare(), clock)
        (found,) = explain(work, str(make_account(status="paid")), dispatch(T0, system=work.system))
        assert found.label == "not due"
        assert found.answer == (
            'It does not meet the condition of the system, {"status": "trial"}; '
            "its date, trial_ends_at, was 09:25 UTC, 5 min ago."
        )
        (found,) = explain(work, str(make_account(None)), dispatch(T0, system=work.system))
        assert found.answer == "It has no date at trial_ends_at, so it is not due."


class TestDone:
    def executed(self, system: DueDocuments, count: int = 1) -> tuple[DocumentWork, list[DueItem]]:
        """Execute due accounts as a worker does, one alone or several together."""
        work = work_on(system, server_now)
        for _ in range(count):
            make_account(server_now() - minutes(5))
        items = scan(work)
        work.record_executed(items, [execute(work, item) for item in items], took=seconds(1))
        eventually(lambda: collection("qm_item_events").count_documents({}) == 2)
        return work, items

    def why(self, work: DocumentWork, item: DueItem) -> Explanation:
        (found,) = explain(work, item.args[0], dispatch(server_now(), system=work.system))
        return found

    def test_done_item_whose_call_of_after_fails_has_its_error(self) -> None:
        def fail(written: object) -> None:
            raise ValueError("no such customer")

        system = declare()
        system.after(fail)
        work, items = self.executed(system, 2)
        make_account(status="paid", _id="paid")
        for item in items:
            found = self.why(work, item)
            assert (found.label, found.tone) == ("done", "bad")
            assert ". Its call of `after` has not succeeded since " in found.answer
            assert found.answer.endswith("; it is repeated; last error: ValueError: no such customer.")
        paused = dispatch(server_now(), system=system, idle="paused")
        (found,) = explain(work, items[0].args[0], paused)
        assert "; the system is paused: see `queue-manager systems resume trial-end`; last error: " in found.answer
        (other,) = explain(work, '"paid"', paused)
        assert "`after`" not in other.answer

    @pytest.mark.parametrize("count", [1, 3])
    def test_done_item_has_its_time_and_its_task(self, count: int) -> None:
        work, items = self.executed(declare(), count)
        for item in items:
            found = self.why(work, item)
            assert (found.label, found.tone, found.retry) == ("done", "good", None)
            assert found.answer.startswith("Done at ")
            assert found.answer.endswith(
                f', by the task {item.task_id}; it no longer meets the condition of the system, {{"status": "trial"}}.'
            )

    def test_a_date_that_was_removed(self) -> None:
        work, (item,) = self.executed(declare(lambda account: {}, done="unset"))
        found = self.why(work, item)
        assert (found.label, found.tone) == ("done", "good")
        assert found.answer.endswith(
            f", by the task {item.task_id}. It has no date at trial_ends_at, so it is not due."
        )

    def test_item_with_nothing_to_do_is_done(self) -> None:
        work, (item,) = self.executed(declare())
        work.record_executed([item], [{"skipped": True, "reason": "Changed"}], took=seconds(1))
        eventually(lambda: collection("qm_item_events").count_documents({}) == 3)
        assert self.why(work, item).label == "done"

    def test_item_dispatched_again_or_for_an_earlier_date_is_not_done(self) -> None:
        work, (first,) = self.executed(declare())
        collection("accounts").update_one({}, {"$set": {"trial_ends_at": server_now() + minutes(1)}})
        later = server_now() + minutes(2)
        (found,) = explain(work, first.args[0], dispatch(later, system=work.system))
        assert found.label == "not due"
        work.record_attempt(first, "lost", error="Boom")
        eventually(lambda: collection("qm_item_events").count_documents({}) == 3)
        assert self.why(work, first).label == "not due"


class TestDue:
    def test_a_room_that_no_scan_has_found_yet(self, work: DocumentWork) -> None:
        room = make_room(T0 - minutes(5))
        found = why(room, work, T0)
        assert (found.label, found.tone, found.retry) == ("due", "warn", f"{found.document}/retry")
        assert found.answer == (
            "Due since 09:25 UTC, 5 min ago; not dispatched yet; the next scan runs at 09:30:05 UTC."
        )

    def test_rooms_that_wait_in_the_queue(self, work: DocumentWork) -> None:
        now = server_now()
        first = make_room(now - minutes(5))
        scan(work)
        second = make_room(now - minutes(4))
        scan(work)
        for room, place in ((first, "as the next one"), (second, "behind 1 other")):
            found = why(room, work, now)
            assert (found.label, found.tone) == ("queued", "good")
            assert found.answer.endswith(f"; waiting in the queue support-snooze {place}.")
        found = why(first, work, now, workers=[])
        assert found.tone == "bad"
        assert found.answer.endswith("; no worker consumes that queue.")

    def test_a_room_that_a_worker_has(self, work: DocumentWork) -> None:
        room = make_room(server_now() - minutes(5))
        (item,) = scan(work)
        work.renew([item])
        assert why(room, work, server_now()).answer.endswith("; received by a worker, and not started yet.")
        with work.attempt(item) as attempts:
            found = why(room, work, server_now())
            assert found.label == "in progress"
            assert "; being executed by worker@here since " in found.answer
            assert "; being executed since " in why(room, work, server_now(), workers=["a@b", "c@d"]).answer
            attempts.done.add(item.lease)
        assert why(room, work, server_now()).answer.endswith("; its attempt ended a moment ago.")

    def test_a_room_whose_worker_died(self, work: DocumentWork) -> None:
        room = make_room(server_now() - minutes(5))
        (item,) = scan(work)
        lose(work, item, ago=seconds(30))
        found = why(room, work, server_now())
        assert (found.label, found.tone, found.retry) == ("stuck", "bad", f"{found.document}/retry")
        assert "; the lease of its worker ended without a result at " in found.answer

    def test_a_room_that_killed_its_process_before(self, work: DocumentWork) -> None:
        room = make_room(server_now() - minutes(5))
        (item,) = scan(work)
        with pytest.raises(SystemExit), work.attempt(item):
            raise SystemExit
        with work.attempt(item):
            assert "after its process was lost 1 time in a row" in why(room, work, server_now()).answer

    def test_a_room_that_took_too_long_several_times(self, work: DocumentWork) -> None:
        room = make_room(server_now() - minutes(5))
        (item,) = scan(work)
        work.lost(item, "it took longer than 120 s, so its process was ended")
        eventually(lambda: collection("qm_item_events").count_documents({"event": "lost"}) == 1)
        work.cool_down_lost(item, MustCoolDown(2))
        found = why(room, work, server_now())
        assert ". Last error: its process was lost 2 times in a row. It took longer than 120 s, so its" in found.answer
        (lost,) = [one for one in found.timeline if one.event == "Process lost"]
        assert (lost.error, lost.worker) == ("It took longer than 120 s, so its process was ended.", None)

    def test_a_room_that_failed(self, work: DocumentWork) -> None:
        room = make_room(server_now() - minutes(5))
        for times in ("", ", 2 times in a row"):
            (item,) = work.take_manually([work.due_of(get_room(room))])
            work.give_up(item, error="Boom")
            now = server_now()
            found = why(room, work, now)
            assert (found.label, found.tone, found.retry) == ("failed", "bad", f"{found.document}/retry")
            assert found.answer.startswith(f"All attempts failed{times}; it cools down until ")
            assert found.answer.endswith(". Last error: Boom.")
        found = why(room, work, now + hours(1), idle="paused")
        assert found.label == "failed"
        assert "2 times in a row; its cool-down is over; the system is paused" in found.answer

    def test_a_room_between_two_attempts(self, work: DocumentWork) -> None:
        room = make_room(server_now() - minutes(5))
        (item,) = scan(work)
        work.renew([item])
        work.record_attempt(item, "retried", error="Boom", attempt=1)
        work.postpone([item], wait=minutes(1))
        eventually(lambda: len(item_events.of_item("support-snooze", str(room)).events) == 2)
        found = why(room, work, server_now())
        assert (found.label, found.tone) == ("waiting", "warn")
        assert "; attempt 1 failed, and the next one starts at " in found.answer
        assert found.answer.endswith(". Last error: Boom.")

    def test_a_room_that_failed_before_it_was_dispatched(self, work: DocumentWork) -> None:
        room = make_room(server_now() - minutes(5))
        (item,) = scan(work)
        work.record_attempt(item, "retried", error="Boom", attempt=1)
        resnooze(room, server_now() - minutes(1))
        (item,) = scan(work)
        work.postpone([item], wait=minutes(1))
        eventually(lambda: len(item_events.of_item("support-snooze", str(room)).events) == 3)
        assert "; dispatched, to be executed at " in why(room, work, server_now()).answer


class TestTimeline:
    def test_a_batch_is_one_record_with_a_line_for_each_item(self, work: DocumentWork) -> None:
        rooms = [make_room(server_now() - minutes(age)) for age in (3, 2, 1)]
        items = scan(work)
        work.record_executed(
            items, [{"success": True}, {"skipped": True, "reason": "Snooze changed"}, None], took=seconds(1)
        )
        eventually(lambda: collection("qm_item_events").count_documents({}) == 2)

        first, second, third = (item_events.of_item("support-snooze", str(room)) for room in rooms)

        assert [(one.event, one.items) for one in first.events] == [("executed", 2), ("dispatched", 3)]
        assert [one.skipped for one in second.events] == ["Snooze changed", None]
        assert [one.event for one in third.events] == ["dispatched"]
        assert [one.events[-1].task for one in (first, second, third)] == [item.task_id for item in items]
        assert first.events[0].took == seconds(1)

    def test_batches_and_retries_are_kept_for_a_day_and_failures_for_a_month(self, work: DocumentWork) -> None:
        make_room(server_now() - minutes(5))
        items = scan(work)
        work.record_executed(items, [{"success": True}], took=seconds(1))
        for event in ("retried", "failed", "lost"):
            work.record_attempt(items[0], event, error="Boom", attempt=1)
        events = collection("qm_item_events")
        eventually(lambda: events.count_documents({}) == 5)
        kept = {one["event"]: one["expires_at"] - one["at"] for one in events.find()}
        day, month = hours(24), hours(24 * 30)
        assert kept == {"dispatched": day, "executed": day, "retried": day, "failed": month, "lost": month}

    def test_entries_come_newest_first_and_with_those_of_the_document(self, work: DocumentWork) -> None:
        room = make_room(server_now() - minutes(5))
        (item,) = scan(work)
        work.record_attempt(item, "retried", error="Boom", attempt=1)
        eventually(lambda: collection("qm_item_events").count_documents({}) == 2)
        retried, sent, snoozed = why(room, work, server_now()).timeline
        assert (retried.event, retried.error, retried.task_id) == ("Attempt 1 failed", "Boom", item.task_id)
        assert retried.worker is not None
        assert (sent.event, sent.task_id) == ("Dispatched", item.task_id)
        assert (snoozed.event, snoozed.detail) == ("Snoozed", f"by {get_room(room)['snooze_time']['set_by']}")

    def test_timeline_shows_what_an_operator_dispatched(self, work: DocumentWork) -> None:
        room = make_room(server_now() - minutes(5))
        work.mark_dispatched_manually(work.take_manually([work.due_of(get_room(room))]))
        eventually(lambda: collection("qm_item_events").count_documents({}) == 1)
        assert why(room, work, server_now()).timeline[0].event == "Dispatched by an operator"

    def test_an_id_that_another_one_contains_is_not_found(self) -> None:
        for id in ("a", "ba", "a@b"):
            item_events.record_dispatched("s", "t", [leases.name(id, T0)], is_manual=False)
        eventually(lambda: collection("qm_item_events").count_documents({}) == 3)
        for id in ("a", "ba", "a@b"):
            assert len(item_events.of_item("s", id).events) == 1

    def test_an_error_text_that_mongodb_cannot_store_is_not_recorded(self) -> None:
        item_events.record_attempt("s", "a@1", "failed", task="t", error="\ud800")
        assert item_events.of_item("s", "a").events == []


class TestFinding:
    @pytest.mark.parametrize("id", ODD_IDS, ids=str)
    def test_ids_of_any_type(self, id: Any) -> None:
        make_room(server_now() + hours(1), _id=id)
        assert [one.id for one in diagnose(id_text(id)).found] == [id_text(id)]
        if type(id) is str and id:
            assert id_text(id) in [one.id for one in diagnose(id).found]

    def test_a_text_of_several_ids_finds_them_all(self) -> None:
        for id in (5, "5"):
            make_room(server_now() + hours(1), _id=id)
        assert sorted(one.id for one in diagnose("5").found) == ['"5"', '{"$numberInt": "5"}']

    def test_a_bug_of_one_system_does_not_hide_what_others_have(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(id: str, state: DispatchState) -> Any:
            raise KeyError("address")

        broken = replace(stale_thumbnails.system, flag=None, explain=fail)
        monkeypatch.setattr(diagnosis, "systems", lambda: [broken, support_snooze.system])
        room = str(make_room(server_now() + hours(1)))
        found = diagnose(room)
        assert [one.id for one in found.found] == [room]
        assert found.unread == {"stale-thumbnails": "its `explain` raised KeyError: 'address'"}

    def test_the_task_of_an_item(self, work: DocumentWork) -> None:
        rooms = [make_room(server_now() - minutes(age)) for age in (3, 2)]
        items = scan(work)
        work.record_attempt(items[1], "failed", error="Boom")
        eventually(lambda: collection("qm_item_events").count_documents({}) == 2)
        for room, item in zip(rooms, items, strict=True):
            assert [one.id for one in diagnose(item.task_id).found] == [str(room)]
        assert diagnose("f" * 32 + "-0").found == []

    def test_an_item_whose_message_is_a_dead_letter(self, clean: Servers, work: DocumentWork) -> None:
        rooms = [make_room(server_now() - minutes(age)) for age in (3, 2)]
        items = scan(work)
        worker_heartbeats.record("another@here", ["scans"])
        eventually(lambda: collection("qm_item_events").count_documents({}) == 1)
        with connect(clean.valkey.url) as client:
            for task in (items[1].task_id, f"{items[0].task_id}0"):  # the second one is of another item
                message = json.dumps({"headers": {"id": task}})
                letter = {"at": 0, "queue": "support-snooze", "reason": "unknown task", "message": message}
                client.lpush(dead_letters.DEAD_LETTERS, json.dumps(letter))
        queued, dead = (diagnose(str(room)).found[0] for room in rooms)
        assert queued.answer.endswith(
            "; waiting in the queue support-snooze as the next one; no worker consumes that queue."
        )
        assert (dead.label, dead.tone) == ("dead letter", "bad")
        assert dead.answer.endswith("; its message is a dead letter: see `queue-manager dead-letters`.")

    @pytest.mark.parametrize("reason", [None, "Build changed"])
    def test_the_task_of_an_item_whose_id_has_spaces(self, reason: str | None) -> None:
        name = leases.name("a site @ home", T0)
        skipped = {} if reason is None else {name: reason}
        item_events.record_executed("stale-thumbnails", [name], skipped, task="t", took=seconds(1))
        eventually(lambda: item_events.item_of_task("t") == ("stale-thumbnails", name))

    def test_one_system_alone(self) -> None:
        room = str(make_room(server_now() + hours(1)))
        assert [one.system for one in diagnose(room, system_names=["support-snooze"]).found] == ["support-snooze"]
        assert diagnose(room, system_names=["stale-thumbnails"]).found == []


class TestSites:
    def build(self, started_at: Any, **fields: Any) -> ObjectId:
        building = {"thumbnail_build_in_progress": True, "thumbnail_process_started_at": started_at}
        return collection("instasites").insert_one({"status": "PUBLISHED", **building, **fields}).inserted_id

    def why(self, id: str, now: datetime) -> Explanation:
        (found,) = stale_thumbnails.system.explain(id, dispatch(now, system=stale_thumbnails.system))
        return found

    def test_a_build_that_is_not_hung_yet(self) -> None:
        now, threshold = server_now(), stale_thumbnails.threshold()
        site_id = self.build(now - minutes(1))
        found = self.why(str(site_id), now)
        assert (found.label, found.id) == ("building", f"instasites:{site_id}")
        assert f"the build counts as hung at {when(now - minutes(1) + threshold, now)}" in found.answer

    def test_a_build_that_hangs(self) -> None:
        now = server_now()
        site_id = self.build(now - hours(5), thumbnail_reset_count=2)
        for id in (f"instasites:{site_id}", f"instasites {site_id}"):
            found = self.why(id, now)
            assert (found.label, found.retry) == ("due", f"{found.document}/retry")
            assert "not dispatched yet; the next scan runs at " in found.answer
            assert found.answer.endswith(" It was reset 2 times in a row.")

    def test_a_build_that_cools_down_can_be_reset(self) -> None:
        now = server_now()
        site_id = self.build(now - hours(5))
        lease = leases.name(f"instasites {site_id}", now - hours(5))
        leases_of("stale-thumbnails").release([lease], cool_down=minutes(1))
        found = self.why(str(site_id), now)
        assert (found.label, found.retry) == ("failed", f"{found.document}/retry")

    def test_other_sites(self) -> None:
        now = server_now()
        assert self.why(str(self.build("never")), now).answer.startswith("The build has no valid start time")
        draft = self.build(now - hours(5), status="DRAFT")
        assert "only sites with status PUBLISHED are reset" in self.why(str(draft), now).answer
        done = collection("agency_websites").insert_one({}).inserted_id
        assert self.why(str(done), now).label == "not building"

    def test_its_resets_are_on_the_timeline(self) -> None:
        site_id = self.build(server_now())
        site.record_outcome("r-t-0", "instasites", str(site_id), "failed", now=server_now(), error="Boom")
        (entry,) = self.why(str(site_id), server_now()).timeline
        assert (entry.event, entry.error, entry.task_id) == ("Reset failed", "Boom", "r-t-0")


class TestAgencies:
    def subscribe(self, started_at: datetime | DatetimeMS, **fields: Any) -> ObjectId:
        parent = ObjectId()
        plan = {"metadata": {"product_type": "seo"}}
        subscription.subscriptions().insert_one(
            {
                "account": parent,
                "status": "active",
                "created_at": started_at,
                "plan": plan,
                "metadata": {"account_id": ObjectId()},
                **fields,
            }
        )
        return parent

    def why(self, parent: Any) -> Explanation:
        (found,) = review_requests.system.explain(str(parent), dispatch(server_now(), system=review_requests.system))
        return found

    def test_due_agency_that_then_gets_a_request(self) -> None:
        parent = self.subscribe(server_now() - timedelta(days=40))
        assert self.why(parent).label == "due"
        requests = review_requests.review_requests()
        (item,) = requests.take_manually(
            [requests.due_of(one) for one in subscription.agencies(["seo"], accounts=[parent])]
        )
        requests.create(*item.args)
        found = self.why(parent)
        assert found.label == "asked"
        assert found.answer.startswith("A review request has been open since ")
        assert self.why(item.args[0]).id == str(parent)

    def test_agency_that_is_blocked_by_a_request_to_another_agency_of_its_account(self) -> None:
        account_id = ObjectId()
        parent = self.subscribe(server_now() - timedelta(days=40), metadata={"account_id": account_id})
        request = {"type": pulse.REVIEW_REQUEST, "account_id": str(account_id), "status": "pending"}
        pulse.pulses().insert_one({**request, "created_at": server_now(), "metadata": {"parent_account": ObjectId()}})
        assert self.why(parent).label == "asked"

    def test_agency_that_is_not_yet_a_customer_for_long_enough(self) -> None:
        found = self.why(self.subscribe(server_now() - timedelta(days=4)))
        assert found.label == "not due"
        assert "it is asked 30 days later, at " in found.answer

    def test_agency_that_is_due_again_since_the_window_after_its_last_request(self) -> None:
        now = server_now()
        parent = self.subscribe(now - timedelta(days=700))
        request = {"type": pulse.REVIEW_REQUEST, "status": "completed", "metadata": {"parent_account": parent}}
        for days in (80, 40):
            created_at = now - timedelta(days=days)
            completed_at = created_at + timedelta(days=1)
            pulse.pulses().insert_one({**request, "created_at": created_at, "completed_at": completed_at})
        found = self.why(parent)
        due_at = now - timedelta(days=8)
        assert (found.label, found.due_at) == ("due", due_at)
        assert found.answer.startswith(f"Due to be asked since {when(due_at, now)}")

    def test_agency_with_dates_after_the_last_one(self) -> None:
        parent = self.subscribe(AFTER_LAST_DATE)
        assert (self.why(parent).label, self.why(parent).due_at) == ("not due", LAST_DATE)
        request = {"type": pulse.REVIEW_REQUEST, "status": "completed", "metadata": {"parent_account": parent}}
        pulse.pulses().insert_one({**request, "created_at": server_now(), "completed_at": AFTER_LAST_DATE})
        assert self.why(parent).label == "asked"

    def test_agency_whose_subscription_has_no_account(self) -> None:
        found = self.why(self.subscribe(server_now() - timedelta(days=40), metadata={}))
        assert (found.label, found.tone) == ("not asked", "bad")


class TestWords:
    def test_times(self) -> None:
        assert clock(T0, T0) == "09:30 UTC"
        assert clock(T0 + seconds(5), T0) == "09:30:05 UTC"
        assert clock(T0 + timedelta(days=1), T0) == "1 Feb, 09:30 UTC"
        assert clock(T0 - timedelta(days=60), T0) == "2 Dec 2025, 09:30 UTC"
        assert when(T0, T0) == "09:30 UTC, now"

    @pytest.mark.parametrize(
        ("time", "text"),
        [
            (0.4, "less than a second"),
            (59, "59 s"),
            (60, "1 min"),
            (3_605, "1 h"),
            (11_520, "3 h 12 min"),
            (90_000, "1 d 1 h"),
        ],
    )
    def test_spans_have_two_units(self, time: float, text: str) -> None:
        assert span(seconds(time)) == text

    @pytest.mark.parametrize(
        ("time", "least", "text"),
        [
            (-1, 1, "0 s"),
            (0.4, 2, "0 s"),
            (90, 1, "2 min"),
            (119, 2, "119 s"),
            (120, 2, "2 min"),
            (7_199, 2, "120 min"),
            (86_400, 1, "1 d"),
            (1e18, 1, "11574074074074 d"),
        ],
    )
    def test_rounded_times_have_one_unit(self, time: float, least: int, text: str) -> None:
        assert rounded(time, least=least) == text

    def test_ordinals(self) -> None:
        assert [ordinal(number) for number in (1, 2, 3, 4, 11, 21, 112)] == [
            "1st",
            "2nd",
            "3rd",
            "4th",
            "11th",
            "21st",
            "112th",
        ]

    @pytest.mark.parametrize(
        ("error", "text"),
        [
            ("", "."),
            ("Boom", "Boom."),
            ("\nError: broken\n    at send (mail.js:1)\n", "Error: broken."),
            ("Traceback (most recent call last):\n  File 'mail.py', line 1\nKeyError: 'to'\n", "KeyError: 'to'."),
            ("X" * 301, f"{'X' * 300} …"),
        ],
        ids=["empty", "line", "lines", "traceback", "long"],
    )
    def test_errors_in_a_sentence(self, error: str, text: str) -> None:
        assert sentence(error_summary(error)) == text
