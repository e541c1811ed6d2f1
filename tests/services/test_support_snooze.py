"""What a scan takes and what an item does with one room, on the real MongoDB."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from bson import Binary, Code, Decimal128, MaxKey, MinKey, ObjectId, Regex, Timestamp
from pymongo.errors import AutoReconnect
from rooms import T0, HandClock, RecordedEvents, get_room, make_room, make_service, resnooze

from models import support_room
from models.support_room import Malformed
from queue_manager.core.clock import hours, minutes, seconds, to_iso
from queue_manager.core.errors import NotYetDue, PermanentError
from services.due_work import Backlog, DueItem
from services.support_snooze import SupportSnooze

pytestmark = pytest.mark.usefixtures("clean")

OVER = T0 - minutes(5)
OF_OTHER_TYPES: list[Any] = [
    *("2026-01-01", "", 0, 2**40, 1.5, True, Decimal128("1"), ObjectId(), [], b"now", Binary(b"now", 128)),
    *(Timestamp(5, 1), Regex("now"), Code("now"), Code("now", {}), MinKey(), MaxKey()),
]
"""Values of every BSON type that can be stored and is neither a date, a document nor null."""


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def events() -> RecordedEvents:
    return RecordedEvents()


@pytest.fixture
def snooze(clock: HandClock, events: RecordedEvents) -> SupportSnooze:
    return make_service(clock, events)


def claim(snooze: SupportSnooze, waiting: int = 0) -> list[DueItem]:
    return [item for batch in snooze.claim_due(Backlog(waiting)) for item in batch.items]


def room_of(item: DueItem) -> ObjectId:
    return ObjectId(item.args[0])


def claimed_ids(snooze: SupportSnooze, waiting: int = 0) -> list[ObjectId]:
    return [room_of(item) for item in claim(snooze, waiting)]


def run_item(snooze: SupportSnooze, item: DueItem) -> dict[str, Any]:
    return snooze.unsnooze(*item.args, token=item.token)


class TestScan:
    def test_ended_snooze_is_claimed_and_sent_with_its_end(self, snooze: SupportSnooze) -> None:
        room = make_room(OVER)

        (item,) = claim(snooze)

        assert item.args == (str(room), "2026-01-31T09:25:00.000Z")
        assert item.eta is None
        stored = get_room(room)
        assert stored["snooze_queue_in_progress"] is True
        assert stored["claim"] == {
            "token": item.token,
            "held": True,
            "claimed_until": T0 + seconds(60),
            "due_at": OVER,
            "losses": 0,
        }

    def test_oldest_come_first(self, snooze: SupportSnooze) -> None:
        rooms = [make_room(T0 - minutes(age)) for age in (1, 9, 5)]
        assert claimed_ids(snooze) == [rooms[1], rooms[2], rooms[0]]

    def test_room_with_a_live_claim_is_left_alone(self, snooze: SupportSnooze) -> None:
        make_room()
        claim(snooze)
        assert claim(snooze) == []

    def test_expired_lease_is_reclaimed(self, snooze: SupportSnooze, clock: HandClock) -> None:
        room = make_room()
        (first,) = claim(snooze)
        clock.advance(seconds(60))

        (second,) = claim(snooze)

        assert room_of(second) == room
        assert second.token != first.token

    def test_each_lost_lease_doubles_the_next_up_to_an_hour(self, snooze: SupportSnooze, clock: HandClock) -> None:
        room = make_room()
        leases = []
        for _ in range(8):
            claim(snooze)
            ends_at = get_room(room)["claim"]["claimed_until"]
            leases.append((ends_at - clock.now).total_seconds())
            clock.now = ends_at
        assert leases == [60, 120, 240, 480, 960, 1920, 3600, 3600]

    def test_room_that_could_not_be_published_is_claimable_at_once(self, snooze: SupportSnooze) -> None:
        make_room()
        items = claim(snooze)

        snooze.release(items)

        assert get_room(room_of(items[0]))["snooze_queue_in_progress"] is False
        assert claimed_ids(snooze) == [room_of(items[0])]

    def test_release_leaves_a_claim_of_somebody_else(self, snooze: SupportSnooze, clock: HandClock) -> None:
        make_room()
        (lost,) = claim(snooze)
        clock.advance(seconds(60))
        (held,) = claim(snooze)

        snooze.release([lost])

        assert get_room(room_of(held))["claim"]["token"] == held.token

    def test_flag_of_the_old_system_is_taken_one_lease_later(self, snooze: SupportSnooze, clock: HandClock) -> None:
        room = make_room(snooze_queue_in_progress=True)

        assert claim(snooze) == []
        clock.advance(seconds(59))
        assert claim(snooze) == []
        clock.advance(seconds(1))
        assert claimed_ids(snooze) == [room]

    @pytest.mark.parametrize("flag", [0, 1, "true", {}, []])
    def test_odd_flag_hides_a_room_for_one_lease_at_most(
        self, snooze: SupportSnooze, clock: HandClock, flag: Any
    ) -> None:
        room = make_room(snooze_queue_in_progress=flag)
        claim(snooze)
        clock.advance(seconds(60))
        assert claimed_ids(snooze) == [room]

    def test_claim_of_a_room_that_was_opened_by_hand_is_cleared_when_its_worker_died(
        self, snooze: SupportSnooze, clock: HandClock
    ) -> None:
        room = make_room()
        claim(snooze)
        support_room.rooms().update_one({"_id": room}, {"$unset": {"snooze_time": ""}, "$set": {"status": "open"}})
        clock.advance(minutes(2))
        claim(snooze)
        stored = get_room(room)
        assert stored["snooze_queue_in_progress"] is False
        assert "claim" not in stored

    def test_room_with_an_odd_id_does_not_stop_the_others(self, snooze: SupportSnooze) -> None:
        support_room.rooms().insert_one({"_id": {"a": 1}, "status": "snoozed", "snooze_time": {"time": OVER}})
        good = make_room(OVER)
        assert str(good) in [item.args[0] for item in claim(snooze)]

    @pytest.mark.parametrize("flag", [False, None])
    def test_flag_that_is_not_true_does_not_hide_a_room(self, snooze: SupportSnooze, flag: bool | None) -> None:
        room = make_room(snooze_queue_in_progress=flag)
        assert claimed_ids(snooze) == [room]

    def test_room_waiting_for_its_retry_time_is_left_alone(self, snooze: SupportSnooze, clock: HandClock) -> None:
        room = make_room(unsnooze_retry_at=T0 + hours(1))
        assert claim(snooze) == []
        clock.advance(hours(1))
        assert claimed_ids(snooze) == [room]

    @pytest.mark.parametrize(
        "snoozed_until",
        [datetime(1, 1, 1, tzinfo=UTC), None, {}, [OVER], *OF_OTHER_TYPES],
        ids=lambda value: type(value).__name__,
    )
    def test_malformed_snooze_is_counted_and_never_claimed(self, snooze: SupportSnooze, snoozed_until: Any) -> None:
        room = make_room(snoozed_until)
        good = make_room(OVER)

        assert claimed_ids(snooze) == [good]
        assert support_room.malformed() == Malformed(count=1, ids=[room])

    @pytest.mark.parametrize(
        "snooze_time",
        [{"set_by": 1}, {"time": None}, {}, [1], [{"time": OVER}], [OVER], OVER, *OF_OTHER_TYPES],
        ids=lambda value: type(value).__name__,
    )
    def test_malformed_snooze_document_is_counted(self, snooze: SupportSnooze, snooze_time: Any) -> None:
        room, good = make_room(snooze_time=snooze_time), make_room(OVER)
        assert claimed_ids(snooze) == [good]
        assert support_room.malformed().ids == [room]


class TestAheadOfTime:
    def test_room_due_before_the_next_scan_is_sent_with_its_time(self, snooze: SupportSnooze) -> None:
        room = make_room(T0 + seconds(7))
        make_room(T0 + seconds(11))

        (item,) = claim(snooze)

        assert (room_of(item), item.eta) == (room, T0 + seconds(7))
        assert get_room(room)["claim"]["claimed_until"] == T0 + seconds(67)

    def test_it_is_bounded_and_due_rooms_do_not_count(self, clock: HandClock) -> None:
        snooze = make_service(clock, ahead=2)
        for _ in range(4):
            make_room(T0 + seconds(5))
            make_room(OVER)
        etas = [item.eta for item in claim(snooze)]
        assert etas == [None] * 4 + [T0 + seconds(5)] * 2

    def test_item_before_its_time_comes_back(self, snooze: SupportSnooze) -> None:
        room = make_room(T0 + seconds(7))
        (item,) = claim(snooze)

        with pytest.raises(NotYetDue) as early:
            run_item(snooze, item)

        assert early.value.remaining == seconds(7)
        assert get_room(room)["claim"]["token"] == item.token


class TestBacklog:
    def test_new_claims_fill_the_queue_and_no_more(self, clock: HandClock) -> None:
        snooze = make_service(clock, max_queue=10, batch=4)
        for _ in range(12):
            make_room()
        assert len(claim(snooze, waiting=3)) == 7
        assert len(claim(snooze, waiting=10)) == 0

    def test_all_kinds_of_claims_share_the_capacity(self, clock: HandClock) -> None:
        snooze = make_service(clock, max_queue=10)
        lost = [make_room() for _ in range(8)]
        assert len(claim(snooze)) == len(lost)
        clock.advance(minutes(2))
        for _ in range(8):
            make_room()
            make_room(clock.now + seconds(5))
        assert len(claim(snooze)) == 10

    def test_slow_backlog_is_not_claimed_again(self, snooze: SupportSnooze, clock: HandClock) -> None:
        for _ in range(5):
            make_room()
        claim(snooze)
        clock.advance(minutes(2))
        assert claim(snooze, waiting=5) == []

    def test_only_what_no_longer_waits_is_reclaimed(self, snooze: SupportSnooze, clock: HandClock) -> None:
        for _ in range(5):
            make_room()
        claim(snooze)
        clock.advance(minutes(2))
        assert len(claim(snooze, waiting=3)) == 2

    def test_items_called_by_hand_do_not_disturb_the_renewal_of_others(
        self, snooze: SupportSnooze, clock: HandClock
    ) -> None:
        make_room()
        (item,) = claim(snooze)
        by_hand = [
            DueItem(token="7c3f0a52-6a5e-4a29-8f9b-0d4b3f1f8f11", args=(str(make_room(T0 + hours(1))), None)),
            DueItem(token="7c3f0a52-6a5e-4a29-8f9b-0d4b3f1f8f12", args=("nonsense",)),
        ]
        clock.advance(seconds(50))
        snooze.renew([*by_hand, item])
        clock.advance(seconds(50))
        assert claim(snooze) == []

    def test_kept_lease_does_not_run_out(self, snooze: SupportSnooze, clock: HandClock) -> None:
        make_room()
        items = claim(snooze)
        for _ in range(4):
            clock.advance(seconds(50))
            snooze.renew(items)
        assert claim(snooze) == []


class TestItem:
    def test_ended_snooze_wakes_the_room(self, snooze: SupportSnooze, events: RecordedEvents) -> None:
        room = make_room(OVER, unsnooze_error="old", unsnooze_failures=2)
        before = get_room(room)
        (item,) = claim(snooze)

        result = run_item(snooze, item)

        assert result == {"success": True, "room_id": str(room), "unsnoozed_at": "2026-01-31T09:30:00.000Z"}
        assert get_room(room) == {
            "_id": room,
            "account_id": before["account_id"],
            "assigned_to": before["assigned_to"],
            "status": "open",
            "snooze_queue_in_progress": False,
            "unsnoozed_at": T0,
            "unsnoozed_by_task": item.token,
        }
        data = {"room_id": str(room), "action": "unsnoozed", "timestamp": "2026-01-31T09:30:00.000Z"}
        assert events.sent == [("support_room_updated", data, f"support-{before['account_id']}")]

    def test_deleted_room_is_skipped(self, snooze: SupportSnooze) -> None:
        result = snooze.unsnooze(str(ObjectId()), None, token="t")
        assert result == {"skipped": True, "reason": "Room not found"}

    def test_resnoozed_room_is_left_alone_and_starts_clean(
        self, snooze: SupportSnooze, clock: HandClock, events: RecordedEvents
    ) -> None:
        room = make_room(OVER)
        (item,) = claim(snooze)
        resnooze(room, T0 + minutes(3))

        result = run_item(snooze, item)

        assert result == {"skipped": True, "reason": "Snooze changed"}
        stored = get_room(room)
        assert stored["snooze_time"]["time"] == T0 + minutes(3)
        assert stored["status"] == "snoozed"
        assert "claim" not in stored
        assert events.sent == []
        clock.advance(minutes(3))
        assert claimed_ids(snooze) == [room]

    def test_room_whose_snooze_was_removed_is_left_alone(self, snooze: SupportSnooze) -> None:
        room = make_room(OVER)
        (item,) = claim(snooze)
        support_room.rooms().update_one({"_id": room}, {"$unset": {"snooze_time": ""}, "$set": {"status": "open"}})

        assert run_item(snooze, item) == {"skipped": True, "reason": "Snooze changed"}
        assert get_room(room)["snooze_queue_in_progress"] is False

    def test_room_woken_by_another_task_is_left_alone(
        self, snooze: SupportSnooze, clock: HandClock, events: RecordedEvents
    ) -> None:
        make_room(OVER)
        (late,) = claim(snooze)
        clock.advance(minutes(1))
        (first,) = claim(snooze)
        run_item(snooze, first)

        assert run_item(snooze, late) == {"skipped": True, "reason": "Snooze changed"}
        assert len(events.sent) == 1

    def test_snooze_that_ends_between_two_looks_at_the_clock_is_not_given_back(self) -> None:
        due_at = T0 + seconds(1)
        moments = [T0, T0, T0, T0, due_at - timedelta(milliseconds=1), due_at, due_at]
        snooze = make_service(lambda: moments.pop(0) if len(moments) > 1 else moments[0])
        make_room(due_at)
        (item,) = claim(snooze)
        moments[:] = [due_at - timedelta(milliseconds=1), due_at]
        with pytest.raises(NotYetDue):
            run_item(snooze, item)

    def test_by_hand_before_its_end_it_is_still_snoozed(self, snooze: SupportSnooze) -> None:
        room = make_room(T0 + seconds(1))
        result = snooze.unsnooze(str(room), None, token="by-hand")
        assert result == {"skipped": True, "reason": "Still snoozed"}

    def test_by_hand_after_its_end_it_wakes_and_the_claim_of_the_scan_is_gone(self, snooze: SupportSnooze) -> None:
        room = make_room(OVER)
        (item,) = claim(snooze)

        assert snooze.unsnooze(str(room), None, token="by-hand")["success"] is True
        assert run_item(snooze, item) == {"skipped": True, "reason": "Snooze changed"}

    def test_second_delivery_sends_the_same_event_and_writes_nothing(
        self, snooze: SupportSnooze, clock: HandClock, events: RecordedEvents
    ) -> None:
        room = make_room(OVER)
        (item,) = claim(snooze)
        first = run_item(snooze, item)
        stored = get_room(room)
        clock.advance(minutes(1))

        assert run_item(snooze, item) == first
        assert events.sent[0] == events.sent[1]
        assert get_room(room) == stored

    def test_second_delivery_after_a_new_snooze_sends_the_event_again_and_writes_nothing(
        self, snooze: SupportSnooze, events: RecordedEvents
    ) -> None:
        room = make_room(OVER)
        (item,) = claim(snooze)
        first = run_item(snooze, item)
        resnooze(room, T0 + minutes(5))

        assert run_item(snooze, item) == first
        assert events.sent == 2 * events.sent[:1]
        assert get_room(room)["snooze_time"]["time"] == T0 + minutes(5)

    def test_closed_room_loses_its_snooze_and_stays_closed(self, snooze: SupportSnooze, events: RecordedEvents) -> None:
        room = make_room(OVER, status="closed")
        (item,) = claim(snooze)

        result = run_item(snooze, item)

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
    def test_emit_is_tried_three_times_and_never_fails_the_room(
        self, clock: HandClock, caplog: pytest.LogCaptureFixture, refusals: int, sent: int
    ) -> None:
        events = RecordedEvents(refusals=refusals)
        snooze = make_service(clock, events)
        room = make_room(OVER)

        result = snooze.unsnooze(str(room), to_iso(OVER), token="t")

        assert result["success"] is True
        assert get_room(room)["status"] == "open"
        assert len(events.sent) == sent
        assert sum("Socket emit failed" in str(record.msg) for record in caplog.records) == refusals

    def test_failed_write_is_logged_and_raised(
        self, snooze: SupportSnooze, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        room = make_room(OVER)

        def away(*_: object, **__: object) -> None:
            raise AutoReconnect("connection closed")

        monkeypatch.setattr(support_room, "wake", away)
        with pytest.raises(AutoReconnect):
            snooze.unsnooze(str(room), to_iso(OVER), token="t")
        assert "Database update failed: connection closed" in str(caplog.records[-1].msg)

    @pytest.mark.parametrize("room_id", ["nonsense", "", "z" * 24, 17, None, {"$ne": None}, ["a"]])
    def test_nonsense_is_a_permanent_error_that_names_the_value(self, snooze: SupportSnooze, room_id: Any) -> None:
        with pytest.raises(PermanentError, match="is not an id") as error:
            snooze.unsnooze(room_id, None, token="t")
        assert repr(room_id) in str(error.value)

    def test_task_id_that_looks_like_an_operator_stays_text(self, snooze: SupportSnooze) -> None:
        room = make_room(OVER)
        snooze.unsnooze(str(room), None, token="$status")
        assert get_room(room)["unsnoozed_by_task"] == "$status"


class TestExhaustion:
    def give_up(self, snooze: SupportSnooze, item: DueItem, error: str = "boom") -> None:
        snooze.give_up(item, error=error)

    def test_room_cools_off_and_says_why(self, snooze: SupportSnooze, caplog: pytest.LogCaptureFixture) -> None:
        room = make_room(OVER)
        (item,) = claim(snooze)

        self.give_up(snooze, item, "$boom")

        stored = get_room(room)
        assert stored["snooze_queue_in_progress"] is False
        assert stored["unsnooze_error"] == "$boom"
        assert stored["unsnooze_failures"] == 1
        assert stored["unsnooze_retry_at"] == T0 + minutes(1)
        assert caplog.records[-1].levelname == "ERROR"
        assert support_room.claims().figures(T0)["cooling_off"] == 1

    def test_pause_doubles_up_to_an_hour_and_never_ends_for_good(self, snooze: SupportSnooze, clock: HandClock) -> None:
        room = make_room(OVER)
        pauses = []
        for _ in range(8):
            (item,) = claim(snooze)
            self.give_up(snooze, item)
            assert claim(snooze) == []
            retry_at = get_room(room)["unsnooze_retry_at"]
            pauses.append((retry_at - clock.now).total_seconds() / 60)
            clock.now = retry_at
        assert pauses == [1, 2, 4, 8, 16, 32, 60, 60]

    def test_new_snooze_starts_clean_and_does_not_wait_for_the_pause(
        self, snooze: SupportSnooze, clock: HandClock
    ) -> None:
        room = make_room(OVER)
        for _ in range(3):
            (item,) = claim(snooze)
            self.give_up(snooze, item)
            clock.now = get_room(room)["unsnooze_retry_at"]
        (item,) = claim(snooze)
        self.give_up(snooze, item)
        resnooze(room, clock.now + minutes(1))
        clock.advance(minutes(1))

        (item,) = claim(snooze)
        self.give_up(snooze, item)

        stored = get_room(room)
        assert stored["unsnooze_failures"] == 1
        assert stored["unsnooze_retry_at"] == clock.now + minutes(1)

    def test_new_snooze_under_a_live_lease_wakes_at_its_own_time(self, snooze: SupportSnooze, clock: HandClock) -> None:
        room = make_room(OVER)
        (item,) = claim(snooze)
        snooze.postpone(item, wait=seconds(256))
        resnooze(room, T0 + seconds(20))
        clock.advance(seconds(20))
        assert claimed_ids(snooze) == [room]

    def test_giving_up_leaves_a_new_snooze_alone(self, snooze: SupportSnooze) -> None:
        room = make_room(OVER)
        (item,) = claim(snooze)
        resnooze(room, T0 + minutes(3))

        self.give_up(snooze, item)

        stored = get_room(room)
        assert "unsnooze_error" not in stored
        assert "claim" not in stored

    def test_giving_up_leaves_a_claim_of_somebody_else_alone(self, snooze: SupportSnooze, clock: HandClock) -> None:
        room = make_room(OVER)
        (lost,) = claim(snooze)
        clock.advance(seconds(60))
        (held,) = claim(snooze)

        self.give_up(snooze, lost)

        assert get_room(room)["claim"]["token"] == held.token
        assert "unsnooze_error" not in get_room(room)

    def test_waiting_to_retry_keeps_the_lease_a_minute_past_the_attempt(
        self, snooze: SupportSnooze, clock: HandClock
    ) -> None:
        room = make_room(OVER)
        (item,) = claim(snooze)
        snooze.postpone(item, wait=seconds(256))
        assert get_room(room)["claim"]["claimed_until"] == T0 + seconds(316)


def test_health_counts_every_state(snooze: SupportSnooze, clock: HandClock) -> None:
    make_room(T0 - minutes(9))
    (stuck,) = claim(snooze)
    clock.advance(seconds(60))
    working = make_room(clock.now - seconds(1))
    claim(snooze, waiting=1)
    resting = make_room(clock.now - seconds(2))
    (item,) = claim(snooze, waiting=1)
    assert room_of(item) == resting
    snooze.give_up(item, error="boom")
    make_room(clock.now - seconds(3))
    make_room(clock.now + hours(1))
    make_room("tomorrow")

    figures = support_room.claims().figures(clock.now)

    assert get_room(room_of(stuck))["claim"]["token"] == stuck.token
    assert get_room(working)["claim"]["held"] is True
    assert figures == {
        "pending": 1,
        "in_progress": 1,
        "stuck": 1,
        "cooling_off": 1,
        "lag_seconds": 600.0,
    }
    assert support_room.malformed().count == 1
