"""What a scan of snoozed rooms dispatches, and what an item does with one room, on the real MongoDB."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from bson import Binary, Code, Decimal128, MaxKey, MinKey, ObjectId, Regex, Timestamp
from pymongo.errors import AutoReconnect, OperationFailure

from models import database, due_documents, failed_item, support_room
from models.database import collection
from models.listing import Sample
from queue_manager.core.clock import hours, minutes, seconds, to_iso
from queue_manager.core.errors import NotYetDue, PermanentError
from queue_manager.health_rules import Rule
from queue_manager.items import DueItem
from queue_manager.leases import lease_server
from services.due_documents import work as due_documents_work
from services.due_documents.listing import DocumentList
from services.due_documents.stats import stats
from services.due_documents.work import DocumentWork
from tests.rooms import (
    T0,
    AgingClock,
    RecordedEvents,
    execute,
    get_room,
    lease_state,
    make_room,
    make_work,
    resnooze,
    scan,
    unchangeable,
)

pytestmark = pytest.mark.usefixtures("clean", "events")

OVER = T0 - minutes(5)
OF_OTHER_TYPES: list[Any] = [
    *("2026-01-01", "", 0, 2**40, 1.5, True, Decimal128("1"), ObjectId(), [], b"now", Binary(b"now", 128)),
    *(Timestamp(5, 1), Regex("now"), Code("now"), Code("now", {}), MinKey(), MaxKey()),
]
"""Values of every BSON type that can be stored and is neither a date, a document nor null."""


def room_of(item: DueItem) -> ObjectId:
    return ObjectId(item.args[0])


def scanned_ids(snooze: DocumentWork, waiting: int = 0) -> list[ObjectId]:
    return [room_of(item) for item in scan(snooze, waiting)]


def lose_worker(snooze: DocumentWork, items: list[DueItem], clock: AgingClock) -> None:
    """Have a worker receive items and die: their leases end."""
    snooze.renew(items)
    clock.advance(minutes(1))


class TestScan:
    def test_ended_snooze_is_dispatched_with_its_end(self, snooze: DocumentWork) -> None:
        room = make_room(OVER)
        before = get_room(room)

        (item,) = scan(snooze)

        assert item.args == (str(room), "2026-01-31T09:25:00.000Z")
        assert item.eta is None
        assert get_room(room) == {**before, "snooze_queue_in_progress": True}
        assert lease_state(snooze, item) == "in-progress"

    def test_rooms_are_dispatched_oldest_first(self, snooze: DocumentWork) -> None:
        rooms = [make_room(T0 - minutes(age)) for age in (1, 9, 5)]
        assert scanned_ids(snooze) == [rooms[1], rooms[2], rooms[0]]

    def test_room_in_flight_is_not_dispatched_again(self, snooze: DocumentWork) -> None:
        make_room()
        scan(snooze)
        assert scan(snooze, waiting=1) == []

    def test_room_whose_lease_ended_is_dispatched_again(self, snooze: DocumentWork, clock: AgingClock) -> None:
        room = make_room()
        (first,) = scan(snooze)
        lose_worker(snooze, [first], clock)

        (second,) = scan(snooze)

        assert room_of(second) == room
        assert second.task_id != first.task_id

    def test_room_that_could_not_be_published_is_dispatched_by_the_next_scan(self, snooze: DocumentWork) -> None:
        make_room()
        items = scan(snooze)

        snooze.release(items)

        assert get_room(room_of(items[0]))["snooze_queue_in_progress"] is False
        assert scanned_ids(snooze) == [room_of(items[0])]

    def test_old_message_cannot_release_a_new_snooze(self, snooze: DocumentWork) -> None:
        room = make_room(OVER)
        (old,) = scan(snooze)
        resnooze(room, T0)
        (new,) = scan(snooze)  # our own flag of the first snooze does not delay the second one

        snooze.release([old])

        assert lease_state(snooze, new) == "in-progress"
        assert get_room(room)["snooze_queue_in_progress"] is True

    def test_flag_of_another_program_delays_a_room_by_one_lease(self, snooze: DocumentWork, clock: AgingClock) -> None:
        room = make_room(snooze_queue_in_progress=True)

        assert scan(snooze) == []
        clock.advance(seconds(50))
        assert scan(snooze) == []
        clock.advance(seconds(10))
        assert scanned_ids(snooze) == [room]

    def test_room_in_flight_is_delayed_by_one_lease_if_redis_loses_its_data(
        self, snooze: DocumentWork, clock: AgingClock
    ) -> None:
        room = make_room(OVER)
        assert scanned_ids(snooze) == [room]
        with lease_server() as client:
            client.flushdb()

        assert scan(snooze) == []  # its flag may be that of another program
        clock.advance(seconds(60))
        assert scanned_ids(snooze) == [room]

    @pytest.mark.parametrize("flag", [0, 1, "true", {}, []])
    def test_odd_flag_delays_a_room_by_one_lease_at_most(
        self, snooze: DocumentWork, clock: AgingClock, flag: Any
    ) -> None:
        room = make_room(snooze_queue_in_progress=flag)
        first = scanned_ids(snooze)
        clock.advance(seconds(60))
        assert first + scanned_ids(snooze, waiting=len(first)) == [room]

    @pytest.mark.parametrize("flag", [False, None])
    def test_flag_that_is_not_true_does_not_delay_a_room(self, snooze: DocumentWork, flag: bool | None) -> None:
        room = make_room(snooze_queue_in_progress=flag)
        assert scanned_ids(snooze) == [room]

    def test_flag_is_neither_read_nor_written_where_no_other_program_needs_it(
        self, snooze: DocumentWork, change_settings: Callable[..., None]
    ) -> None:
        change_settings(QM_SNOOZE_FLAG="false")
        room, other = make_room(OVER), make_room(OVER, snooze_queue_in_progress=True)
        assert set(scanned_ids(snooze)) == {room, other}
        assert "snooze_queue_in_progress" not in get_room(room)

    def test_rooms_whose_flag_cannot_be_set_are_due_for_the_next_scan(
        self, snooze: DocumentWork, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for _ in range(3):
            make_room()

        def refuse(*_: Any) -> None:
            raise OperationFailure("not authorized", 13)

        with monkeypatch.context() as patched:
            patched.setattr(due_documents.DueCollection, "update_range", refuse)
            with pytest.raises(OperationFailure):
                scan(snooze)
        assert len(scan(snooze)) == 3

    def test_a_room_that_mongodb_refuses_to_change_does_not_stop_the_others(
        self, snooze: DocumentWork, caplog: pytest.LogCaptureFixture
    ) -> None:
        rooms = [make_room(OVER + seconds(number)) for number in range(4)]
        with unchangeable(support_room.rooms().name, rooms[1]):
            assert scanned_ids(snooze) == rooms
        assert f"'ids': '{rooms[1]}'" in caplog.text
        assert [support_room.FLAG in get_room(room) for room in rooms] == [True, False, True, True]

    def test_scan_does_not_wait_for_a_locked_room_to_set_its_flag(
        self, snooze: DocumentWork, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(due_documents_work, "FLAG_TIMEOUT", seconds(0.5))
        rooms = [make_room(OVER + seconds(number)) for number in range(3)]
        with database.client().start_session() as other, other.start_transaction():
            support_room.rooms().update_one({"_id": rooms[0]}, {"$set": {"read": True}}, session=other)
            assert scanned_ids(snooze) == rooms
        assert get_room(rooms[0])["read"]  # MongoDB has not ended the transaction meanwhile

    def test_room_with_an_odd_id_does_not_stop_the_others(self, snooze: DocumentWork) -> None:
        support_room.rooms().insert_one({"_id": {"a": 1}, "status": "snoozed", "snooze_time": {"time": OVER}})
        good = make_room(OVER)
        assert str(good) in [item.args[0] for item in scan(snooze)]

    @pytest.mark.parametrize(
        "snoozed_until",
        [datetime(1, 1, 1, tzinfo=UTC), None, {}, [OVER], [None, OVER], *OF_OTHER_TYPES],
        ids=lambda value: type(value).__name__,
    )
    def test_malformed_snooze_is_counted_and_never_dispatched(self, snooze: DocumentWork, snoozed_until: Any) -> None:
        room = make_room(snoozed_until)
        good = make_room(OVER)

        assert scanned_ids(snooze) == [good]
        assert support_room.malformed() == Sample(count=1, ids=[room])

    @pytest.mark.parametrize(
        "snooze_time",
        [
            *({"set_by": 1}, {"time": None}, {}, [1], [{"time": OVER}], [None, {"time": OVER}], [OVER], OVER),
            *OF_OTHER_TYPES,
        ],
        ids=lambda value: type(value).__name__,
    )
    def test_malformed_snooze_document_is_counted(self, snooze: DocumentWork, snooze_time: Any) -> None:
        room, good = make_room(snooze_time=snooze_time), make_room(OVER)
        assert scanned_ids(snooze) == [good]
        assert support_room.malformed().ids == [room]


class TestAheadOfTime:
    def test_room_due_before_the_next_scan_is_sent_with_its_time(self, snooze: DocumentWork, clock: AgingClock) -> None:
        room = make_room(T0 + seconds(7))
        make_room(T0 + seconds(11))

        (item,) = scan(snooze)

        assert (room_of(item), item.eta) == (room, T0 + seconds(7))
        clock.advance(seconds(60))  # its lease ends a minute after its time
        assert room not in scanned_ids(snooze)
        clock.advance(seconds(7))
        assert scanned_ids(snooze, waiting=1) == [room]

    def test_rooms_dispatched_ahead_are_limited_and_due_rooms_do_not_count(self, clock: AgingClock) -> None:
        snooze = make_work(clock, ahead=2)
        for _ in range(4):
            make_room(T0 + seconds(5))
            make_room(OVER)
        etas = [item.eta for item in scan(snooze)]
        assert etas == [None] * 4 + [T0 + seconds(5)] * 2

    def test_item_executed_before_its_due_time_raises_and_keeps_its_lease(self, snooze: DocumentWork) -> None:
        make_room(T0 + seconds(7))
        (item,) = scan(snooze)

        with pytest.raises(NotYetDue) as early:
            execute(snooze, item)

        assert early.value.remaining == seconds(7)
        assert lease_state(snooze, item) == "in-progress"


class TestBacklog:
    def test_new_items_fill_the_queue_up_to_its_limit(self, clock: AgingClock) -> None:
        snooze = make_work(clock, max_queue=10, batch=4)
        for _ in range(12):
            make_room()
        assert len(scan(snooze, waiting=3)) == 7
        assert len(scan(snooze, waiting=10)) == 0

    def test_lost_due_and_upcoming_rooms_share_the_capacity(self, clock: AgingClock) -> None:
        snooze = make_work(clock, max_queue=10)
        lost = [make_room() for _ in range(8)]
        items = scan(snooze)
        assert len(items) == len(lost)
        lose_worker(snooze, items, clock)
        for _ in range(8):
            make_room()
            make_room(clock.now + seconds(5))
        assert len(scan(snooze)) == 10

    def test_slow_backlog_is_not_dispatched_again(self, snooze: DocumentWork, clock: AgingClock) -> None:
        for _ in range(5):
            make_room()
        scan(snooze)
        clock.advance(minutes(2))
        assert scan(snooze, waiting=5) == []

    def test_retry_that_waits_in_a_slow_backlog_is_not_dispatched_again(
        self, snooze: DocumentWork, clock: AgingClock
    ) -> None:
        make_room()
        (item,) = scan(snooze)
        for _ in range(3):
            with snooze.attempt(item):
                snooze.postpone([item], wait=seconds(4))
            snooze.renew([item])  # by the heartbeat, before the task that failed has ended
            for _ in range(10):
                clock.advance(minutes(1))
                assert scan(snooze, waiting=1) == []
        assert len(scan(snooze)) == 1  # the message was lost

    def test_retries_held_by_workers_until_their_eta_do_not_count_as_waiting(
        self, snooze: DocumentWork, clock: AgingClock
    ) -> None:
        rooms = [make_room() for _ in range(5)]
        retried, *_ = scan(snooze)
        clock.advance(minutes(2))
        with snooze.attempt(retried):
            snooze.postpone([retried], wait=minutes(4))
        assert scan(snooze, waiting=len(rooms) - 1) == []

    def test_only_items_whose_message_is_lost_are_dispatched_again(
        self, snooze: DocumentWork, clock: AgingClock
    ) -> None:
        for _ in range(5):
            make_room()
        scan(snooze)
        clock.advance(minutes(2))
        assert len(scan(snooze, waiting=3)) == 2

    def test_items_called_manually_do_not_affect_the_renewal_of_others(
        self, snooze: DocumentWork, clock: AgingClock
    ) -> None:
        make_room()
        (item,) = scan(snooze)
        by_hand = [
            DueItem(task_id=name, args=args, lease=snooze.lease_of(args))
            for name, args in (("one", (str(make_room(T0 + hours(1))), None)), ("other", ("nonsense",)))
        ]
        for _ in range(2):
            snooze.renew([*by_hand, item])
            clock.advance(seconds(50))
        assert scan(snooze) == []

    def test_renewed_lease_does_not_end(self, snooze: DocumentWork, clock: AgingClock) -> None:
        make_room()
        items = scan(snooze)
        for _ in range(4):
            snooze.renew(items)
            clock.advance(seconds(50))
        assert scan(snooze) == []


class TestItem:
    def test_ended_snooze_wakes_the_room(self, snooze: DocumentWork, events: RecordedEvents) -> None:
        room = make_room(OVER, unsnooze_error="old", unsnooze_failures=2)
        before = get_room(room)
        (item,) = scan(snooze)

        result = execute(snooze, item)

        assert result == {"success": True, "room_id": str(room), "unsnoozed_at": "2026-01-31T09:30:00.000Z"}
        assert get_room(room) == {
            "_id": room,
            "account_id": before["account_id"],
            "assigned_to": before["assigned_to"],
            "status": "open",
            "snooze_queue_in_progress": False,
            "unsnoozed_at": T0,
            "unsnoozed_by_task": item.task_id,
        }
        data = {"room_id": str(room), "action": "unsnoozed", "timestamp": "2026-01-31T09:30:00.000Z"}
        assert events.sent == [("support_room_updated", data, f"support-{before['account_id']}")]

    def test_room_without_a_status_is_opened(self, snooze: DocumentWork) -> None:
        room = make_room(OVER)
        support_room.rooms().update_one({"_id": room}, {"$unset": {"status": ""}})
        (item,) = scan(snooze)
        execute(snooze, item)
        assert get_room(room)["status"] == "open"

    def test_deleted_room_is_skipped(self, snooze: DocumentWork) -> None:
        result = snooze.execute(str(ObjectId()), None, task_id="t")
        assert result == {"skipped": True, "reason": "Room not found"}

    def test_resnoozed_room_is_skipped_and_its_failures_are_reset(
        self, snooze: DocumentWork, clock: AgingClock, events: RecordedEvents
    ) -> None:
        room = make_room(OVER)
        (item,) = scan(snooze)
        resnooze(room, T0 + minutes(3))

        result = execute(snooze, item)

        assert result == {"skipped": True, "reason": "Snooze changed"}
        stored = get_room(room)
        assert stored["snooze_time"]["time"] == T0 + minutes(3)
        assert (stored["status"], stored["snooze_queue_in_progress"]) == ("snoozed", False)
        assert events.sent == []
        clock.advance(minutes(3))
        assert scanned_ids(snooze) == [room]

    def test_flag_of_a_new_snooze_that_is_in_flight_stays(self, snooze: DocumentWork) -> None:
        room = make_room(OVER)
        (old,) = scan(snooze)
        resnooze(room, T0 + seconds(5))
        support_room.rooms().update_one({"_id": room}, {"$set": {"snooze_queue_in_progress": False}})
        (new,) = scan(snooze)

        assert execute(snooze, old) == {"skipped": True, "reason": "Snooze changed"}

        assert get_room(room)["snooze_queue_in_progress"] is True
        assert lease_state(snooze, new) == "in-progress"

    def test_room_whose_snooze_was_removed_is_skipped(self, snooze: DocumentWork) -> None:
        room = make_room(OVER)
        (item,) = scan(snooze)
        support_room.rooms().update_one({"_id": room}, {"$unset": {"snooze_time": ""}, "$set": {"status": "open"}})

        assert execute(snooze, item) == {"skipped": True, "reason": "Snooze changed"}
        assert get_room(room)["snooze_queue_in_progress"] is False

    def test_item_reads_the_clock_once_so_that_a_snooze_that_ends_meanwhile_is_not_yet_due(self) -> None:
        due_at = T0 + seconds(1)
        make_room(due_at)
        (item,) = scan(make_work(lambda: T0))
        moments = [due_at - timedelta(milliseconds=1), due_at]
        snooze = make_work(lambda: moments.pop(0) if len(moments) > 1 else moments[0])
        with pytest.raises(NotYetDue):
            execute(snooze, item)

    def test_manual_call_before_the_end_of_the_snooze_is_skipped(self, snooze: DocumentWork) -> None:
        room = make_room(T0 + seconds(1))
        result = snooze.execute(str(room), None, task_id="by-hand")
        assert result == {"skipped": True, "reason": "Still snoozed"}

    def test_second_delivery_writes_and_sends_nothing(
        self, snooze: DocumentWork, clock: AgingClock, events: RecordedEvents
    ) -> None:
        room = make_room(OVER)
        (item,) = scan(snooze)
        execute(snooze, item)
        stored = get_room(room)
        clock.advance(minutes(1))

        assert execute(snooze, item) == {"skipped": True, "reason": "Snooze changed"}
        assert len(events.sent) == 1
        assert get_room(room) == stored

    def test_closed_room_loses_its_snooze_and_stays_closed(self, snooze: DocumentWork, events: RecordedEvents) -> None:
        room = make_room(OVER, status="closed")
        (item,) = scan(snooze)

        result = execute(snooze, item)

        assert result == {
            "success": True,
            "room_id": str(room),
            "unsnoozed_at": to_iso(T0),
            "status": "closed",
        }
        stored = get_room(room)
        assert stored["status"] == "closed"
        assert "snooze_time" not in stored
        assert events.sent == []

    @pytest.mark.parametrize(("refusals", "sent"), [(0, 1), (2, 1), (3, 0)])
    def test_emit_is_attempted_three_times_and_does_not_fail_the_room(
        self,
        snooze: DocumentWork,
        events: RecordedEvents,
        caplog: pytest.LogCaptureFixture,
        refusals: int,
        sent: int,
    ) -> None:
        events.refusals = refusals
        room = make_room(OVER)

        result = snooze.execute(str(room), to_iso(OVER), task_id="t")

        assert result["success"] is True
        assert get_room(room)["status"] == "open"
        assert len(events.sent) == sent
        assert sum("Socket emit failed" in str(record.msg) for record in caplog.records) == refusals

    def test_event_that_was_not_sent_is_sent_later_with_the_same_timestamp(
        self, snooze: DocumentWork, clock: AgingClock, events: RecordedEvents
    ) -> None:
        events.refusals = 3
        room = make_room(OVER)
        result = snooze.execute(str(room), to_iso(OVER), task_id="t")
        clock.advance(minutes(1))

        (owed,) = scan(snooze.after_calls)
        snooze.after_calls.repeat(owed.args[0])

        ((_, data, _),) = events.sent
        assert (data["room_id"], data["timestamp"]) == (str(room), result["unsnoozed_at"])
        assert scan(snooze.after_calls) == []

    def test_event_is_sent_again_when_every_server_is_connected_also_if_the_room_is_snoozed_again(
        self, snooze: DocumentWork, clock: AgingClock, events: RecordedEvents
    ) -> None:
        events.again_in = minutes(1)
        room = make_room(OVER)
        result = snooze.execute(str(room), to_iso(OVER), task_id="t")
        resnooze(room, T0 + hours(1))
        clock.advance(seconds(59))
        assert scan(snooze.after_calls) == []
        clock.advance(seconds(1))
        events.again_in = seconds(0)

        (owed,) = scan(snooze.after_calls)
        snooze.after_calls.repeat(owed.args[0])

        assert [(data["room_id"], data["timestamp"]) for _, data, _ in events.sent] == [
            (str(room), result["unsnoozed_at"])
        ] * 2
        clock.advance(minutes(5))
        assert scan(snooze.after_calls) == []

    def test_a_room_is_logged_once_although_its_event_is_sent_again(
        self, snooze: DocumentWork, clock: AgingClock, events: RecordedEvents, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level("INFO", logger="queue_manager")
        events.again_in = minutes(1)
        snooze.execute(str(make_room(OVER)), to_iso(OVER), task_id="t")
        clock.advance(minutes(1))
        (owed,) = scan(snooze.after_calls)
        snooze.after_calls.repeat(owed.args[0])

        assert len(events.sent) == 2
        assert sum("Unsnoozed 1 rooms" in str(record.msg) for record in caplog.records) == 1

    def test_failed_write_is_logged_and_raised(
        self, snooze: DocumentWork, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        room = make_room(OVER)

        def away(*_: object, **__: object) -> None:
            raise AutoReconnect("connection closed")

        monkeypatch.setattr(due_documents, "transact", away)
        with pytest.raises(AutoReconnect):
            snooze.execute(str(room), to_iso(OVER), task_id="t")
        assert "Database update failed: connection closed" in str(caplog.records[-1].msg)
        assert "QM/conversations/support-snooze" in caplog.records[-1].name

    @pytest.mark.parametrize("room_id", ["nonsense", "", "z" * 24, 17, None, {"$ne": None}, ["a"]])
    def test_invalid_argument_is_a_permanent_error_that_names_the_value(
        self, snooze: DocumentWork, room_id: Any
    ) -> None:
        with pytest.raises(PermanentError, match="is not an id") as error:
            snooze.execute(room_id, None, task_id="t")
        assert repr(room_id) in str(error.value)

    def test_task_id_that_looks_like_an_operator_stays_text(self, snooze: DocumentWork) -> None:
        room = make_room(OVER)
        snooze.execute(str(room), None, task_id="$status")
        assert get_room(room)["unsnoozed_by_task"] == "$status"


class TestExhaustion:
    def test_failed_room_cools_down_and_stores_the_error(
        self, snooze: DocumentWork, caplog: pytest.LogCaptureFixture
    ) -> None:
        room = make_room(OVER)
        (item,) = scan(snooze)

        snooze.give_up(item, error="$boom")

        stored = get_room(room)
        assert stored["snooze_queue_in_progress"] is False
        assert stored["unsnooze_error"] == "$boom"
        assert stored["unsnooze_failures"] == 1
        assert stored["unsnooze_retry_at"] == T0 + minutes(1)
        assert caplog.records[-1].levelname == "ERROR"
        assert stats(snooze).numbers["cooling_off"] == 1

    def test_cool_down_doubles_up_to_an_hour_and_the_room_is_always_retried(
        self, snooze: DocumentWork, clock: AgingClock
    ) -> None:
        room = make_room(OVER)
        pauses = []
        for _ in range(8):
            (item,) = scan(snooze)
            snooze.give_up(item, error="boom")
            assert scan(snooze) == []
            pause = get_room(room)["unsnooze_retry_at"] - clock.now
            pauses.append(pause / minutes(1))
            clock.advance(pause)
        assert pauses == [1, 2, 4, 8, 16, 32, 60, 60]

    def test_waking_removes_the_failures_of_a_room(self, snooze: DocumentWork, clock: AgingClock) -> None:
        room = make_room(OVER)
        (item,) = scan(snooze)
        snooze.give_up(item, error="boom")
        clock.advance(minutes(1))

        (again,) = scan(snooze)
        execute(snooze, again)

        assert not {"unsnooze_error", "unsnooze_failures", "unsnooze_retry_at"} & get_room(room).keys()
        assert collection(failed_item.FAILED_ITEMS_COLLECTION).count_documents({}) == 0

    def test_new_snooze_under_a_live_lease_wakes_at_its_time(self, snooze: DocumentWork, clock: AgingClock) -> None:
        room = make_room(OVER)
        (item,) = scan(snooze)
        snooze.postpone([item], wait=seconds(256))
        resnooze(room, T0 + seconds(20))  # the product leaves the flag as it is
        clock.advance(seconds(20))
        assert scanned_ids(snooze) == [room]

    def test_final_failure_does_not_change_a_new_snooze(self, snooze: DocumentWork, clock: AgingClock) -> None:
        room = make_room(OVER)
        (item,) = scan(snooze)
        resnooze(room, T0 + minutes(3))

        snooze.give_up(item, error="boom")

        stored = get_room(room)
        assert "unsnooze_error" not in stored
        assert stored["snooze_queue_in_progress"] is False
        clock.advance(minutes(3))
        assert scanned_ids(snooze) == [room]

    def test_final_failure_does_not_release_the_lease_of_a_new_snooze(self, snooze: DocumentWork) -> None:
        room = make_room(OVER)
        (lost,) = scan(snooze)
        support_room.rooms().update_one({"_id": room}, {"$set": {"snooze_queue_in_progress": False}})
        resnooze(room, T0 - seconds(1))
        (held,) = scan(snooze)

        snooze.give_up(lost, error="boom")

        assert lease_state(snooze, held) == "in-progress"
        assert get_room(room)["snooze_queue_in_progress"] is True
        assert "unsnooze_error" not in get_room(room)

    def test_lease_of_an_item_that_waits_for_a_retry_ends_a_minute_after_the_attempt(
        self, snooze: DocumentWork, clock: AgingClock
    ) -> None:
        room = make_room(OVER)
        (item,) = scan(snooze)
        snooze.postpone([item], wait=seconds(256))
        clock.advance(seconds(300))
        assert scan(snooze) == []
        clock.advance(seconds(16))
        assert scanned_ids(snooze) == [room]


def test_a_failed_room_that_is_snoozed_again_is_not_a_health_problem(snooze: DocumentWork, clock: AgingClock) -> None:
    room, other = make_room(OVER), make_room(OVER)
    for item in scan(snooze):
        snooze.give_up(item, error="boom")
    resnooze(room, clock.now + hours(1))
    found = stats(snooze)
    assert found.numbers["cooling_off"] == 1
    ((rule, problem),) = found.problems.items()
    assert rule is Rule.FAILED_ITEMS
    assert str(other) in problem
    assert str(room) not in problem


def test_health_counts_every_state(snooze: DocumentWork, clock: AgingClock) -> None:
    make_room(T0 - minutes(9))
    lose_worker(snooze, scan(snooze), clock)
    clock.advance(minutes(1))  # a lease that ended just now is left to the next scan
    for age, act in ((2, snooze.renew), (3, lambda items: snooze.give_up(*items, error="boom"))):
        by_hand = DocumentList(work=snooze).take([str(make_room(clock.now - seconds(age)))])
        act(by_hand)
    make_room(clock.now - seconds(1))
    make_room(clock.now + hours(1))
    make_room("tomorrow")

    found = stats(snooze)

    assert found.numbers == {
        "pending": 1,
        "in_progress": 1,
        "stuck": 1,
        "cooling_off": 1,
        "pending_calls": 0,
        "lag_seconds": 660.0,
    }
    assert support_room.malformed().count == 1
