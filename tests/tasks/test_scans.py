"""Scans at the Celery edge: what they send, report and record, and how they fail."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from bson import Decimal128
from kombu.exceptions import BatchPublishError, OperationalError
from pymongo.errors import AutoReconnect
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import OutOfMemoryError, ResponseError

from models import outbox, scan_run, support_room
from models.database import Document, collection, server_now
from queue_manager.batching.publish import publish
from queue_manager.broker import channel
from queue_manager.broker.backlog import Backlog
from queue_manager.core.clock import hours, minutes, seconds, to_iso
from queue_manager.core.errors import ScanFailed, Unavailable
from queue_manager.leases import Leases
from services import support_snooze
from services.due_documents.work import DocumentWork
from services.due_work import Due, DueBatch
from tasks import scan as scan_module
from tasks.retry import retry
from tasks.review_requests import scan_eligible_agencies
from tasks.support_snooze import scan_expired_snoozes
from tests.room_lease import lease
from tests.rooms import get_room, make_room
from tests.tasks.hand_worker import run, take, waiting_messages

QUEUE = "support-snooze"
SCAN = "tasks.support_snooze.scan_expired_snoozes"


def test_scan_sends_one_message_per_room(broker: str) -> None:
    due = [make_room(server_now() - minutes(age)) for age in (3, 2, 1)]
    make_room(server_now() + minutes(1))

    run = scan_expired_snoozes()

    messages = waiting_messages(broker, QUEUE)
    assert [message.args[0] for message in messages] == [str(room) for room in due]
    assert len({message.id for message in messages}) == 3
    assert [message.args[1] for message in messages] == [to_iso(get_room(room)["snooze_time"]["time"]) for room in due]
    assert all(message.expires is None and message.eta is None for message in messages)
    assert (run["found"], run["claimed"], run["enqueued"], run["errors"]) == (3, 3, 3, 0)


def test_items_whose_arguments_name_another_lease_are_not_sent(broker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    room = make_room(server_now() - minutes(1))
    due_of = DocumentWork.due_of
    wrong = (str(room), to_iso(server_now()))
    monkeypatch.setattr(DocumentWork, "due_of", lambda work, document: replace(due_of(work, document), args=wrong))
    with pytest.raises(ScanFailed, match="give `Due` no `args`, or override `lease_of`"):
        scan_expired_snoozes()
    assert waiting_messages(broker, QUEUE) == []
    assert Leases(QUEUE).stats().in_progress == 0


@pytest.mark.parametrize("is_manual", [False, True], ids=["scan", "retry"])
@pytest.mark.parametrize("batching", ["true", "false"])
def test_item_whose_arguments_cannot_be_encoded_does_not_hold_up_its_batch(
    batching: str, is_manual: bool, broker: str, monkeypatch: pytest.MonkeyPatch, change_settings: Callable[..., None]
) -> None:
    change_settings(QM_BATCHING=batching)
    rooms = [make_room(server_now() - minutes(age)) for age in (4, 3, 2, 1)]
    due_of = DocumentWork.due_of

    def due_with_decimal(work: DocumentWork, document: Document) -> Due:
        due = due_of(work, document)
        return replace(due, args=(due.args[0], Decimal128("1"))) if document["_id"] == rooms[2] else due

    monkeypatch.setattr(DocumentWork, "due_of", due_with_decimal)
    if is_manual:
        assert len(retry(support_snooze.system, support_snooze.system.open_items(), list(map(str, rooms)))) == 3
    else:
        with pytest.raises(ScanFailed, match="1 item could not be sent: Object of type Decimal128 is not JSON"):
            scan_expired_snoozes()

    sent = {message.args[0] for message in waiting_messages(broker, QUEUE)}
    assert sent == {str(room) for room in rooms if room != rooms[2]}
    assert [lease(room).state for room in rooms] == ["in-progress", "in-progress", "free", "in-progress"]


@pytest.fixture
def pending_call() -> str:
    """Return the id of a batch whose call of `after` is pending."""
    record = {"_id": "batch", "system": QUEUE, "at": server_now() - hours(1), "items": []}
    collection(outbox.OUTBOX_COLLECTION).insert_one(record)
    return "batch"


def test_pending_calls_of_after_are_counted_apart_from_rooms(broker: str, pending_call: str) -> None:
    make_room(server_now() - minutes(1))
    run = scan_expired_snoozes()
    assert [message.args[0] for message in waiting_messages(broker, QUEUE)][1:] == [pending_call]
    assert (run["found"], run["claimed"], run["enqueued"], run["after"]) == (1, 1, 1, 1)
    assert "after" not in scan_expired_snoozes()


def test_a_dry_run_does_not_count_pending_calls_of_after(
    broker: str, pending_call: str, change_settings: Callable[..., None]
) -> None:
    change_settings(QM_DRY_RUN=QUEUE)
    make_room(server_now() - minutes(1))
    run = scan_expired_snoozes()
    assert (run["found"], run["dry_run"]) == (1, 1)
    assert waiting_messages(broker, QUEUE) == []


@pytest.fixture
def times_left(monkeypatch: pytest.MonkeyPatch) -> list[timedelta]:
    """The time that a scan leaves to the items of each kind."""
    times: list[timedelta] = []
    real = Backlog.of_queue

    def measured(*arguments: Any, time_left: timedelta) -> Backlog:
        times.append(time_left)
        return real(*arguments, time_left=time_left)

    monkeypatch.setattr(Backlog, "of_queue", measured)
    return times


def test_pending_calls_of_after_get_the_time_that_the_rooms_left(
    broker: str, pending_call: str, times_left: list[timedelta]
) -> None:
    make_room(server_now() - minutes(1))
    scan_expired_snoozes()
    of_rooms, of_calls = times_left
    assert of_calls < of_rooms


@pytest.mark.parametrize(("period", "longest"), [("10", seconds(9)), ("3600", minutes(1))])
def test_a_scan_ends_after_nine_tenths_of_its_period_or_after_a_minute(
    period: str, longest: timedelta, broker: str, change_settings: Callable[..., None], times_left: list[timedelta]
) -> None:
    change_settings(QM_SNOOZE_SCAN_SECONDS=period)
    make_room(server_now() - minutes(1))
    scan_expired_snoozes.delay()
    run(take(broker, "scans"))
    assert times_left[0] <= longest


def test_room_due_soon_is_sent_with_its_exact_time(broker: str, change_settings: Callable[..., None]) -> None:
    change_settings(QM_SNOOZE_SCAN_SECONDS="600")
    due_at = server_now() + minutes(5)
    make_room(due_at)
    scan_expired_snoozes()
    (message,) = waiting_messages(broker, QUEUE)
    assert message.eta == due_at


def test_run_is_recorded_for_health(broker: str) -> None:
    make_room(server_now() - minutes(1))
    began = server_now()

    run = scan_expired_snoozes()

    stored = scan_run.last(SCAN)
    assert stored is not None
    counted = {**vars(stored), **stored.noted}
    assert counted.items() >= {**run, "found": 1, "claimed": 1, "enqueued": 1, "errors": 0}.items()
    assert began - seconds(1) < stored.at < server_now() + seconds(1)
    assert stored.duration_ms >= 0


def test_tick_is_skipped_while_another_run_in_this_process_has_not_ended(
    broker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_and_tick() -> scan_module.ScanReport:
        monkeypatch.setattr(scan_expired_snoozes, "run", scan_module.ScanReport)
        assert scan_expired_snoozes.apply().get() == {"skipped": True}
        return scan_module.ScanReport()

    monkeypatch.setattr(scan_expired_snoozes, "run", run_and_tick)
    assert "skipped" not in scan_expired_snoozes.apply().get()
    assert "skipped" not in scan_expired_snoozes.apply().get()


def test_each_scan_that_hangs_is_logged(
    broker: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    began = time.monotonic() - scan_run.RUN_LEASE.total_seconds() - 1
    hanging = [scan_expired_snoozes, scan_eligible_agencies]
    monkeypatch.setattr(scan_module, "_runs", {one.name: began for one in hanging})
    scan_module._warnings.clear()
    for one in hanging * 2:
        assert one.apply().get() == {"skipped": True}
    logged = [record.msg for record in caplog.records if record.levelname == "WARNING"]
    assert [line["scan"] for line in logged if isinstance(line, dict)] == [one.name for one in hanging]


def test_scan_logs_a_summary_only_if_it_sent_messages(broker: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    scan_expired_snoozes()
    assert not [record for record in caplog.records if "Processed snooze rooms." in str(record.msg)]
    make_room(server_now() - minutes(1))
    scan_expired_snoozes()
    (record,) = [record for record in caplog.records if "Processed snooze rooms." in str(record.msg)]
    assert "QM/conversations/support-snooze" in str(record.msg)


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (ResponseError("OOM"), "free"),
        (OperationalError("connection refused"), "in-progress"),
        (BatchPublishError("delivery is uncertain"), "in-progress"),
    ],
    ids=["refused", "uncertain", "uncertain without the fast path"],
)
def test_batch_refused_by_the_broker_is_released_and_the_scan_continues(
    error: Exception,
    state: str,
    broker: str,
    monkeypatch: pytest.MonkeyPatch,
    change_settings: Callable[..., None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    change_settings(QM_CLAIM_BATCH="2")
    rooms = [make_room(server_now() - minutes(age)) for age in (6, 5, 4, 3, 2, 1)]
    calls: list[Any] = []

    def second_fails(*args: Any) -> None:
        calls.append(args)
        if len(calls) == 2:
            raise error
        publish(*args)

    monkeypatch.setattr(scan_module, "publish", second_fails)
    with pytest.raises(ScanFailed, match=f"2 items could not be sent: {error}"):
        scan_expired_snoozes()

    assert [message.args[0] for message in waiting_messages(broker, QUEUE)] == [
        str(room) for room in (*rooms[:2], *rooms[4:])
    ]
    assert [lease(room).state for room in rooms] == [*["in-progress"] * 2, state, state, *["in-progress"] * 2]
    assert [get_room(room)["snooze_queue_in_progress"] for room in rooms[2:4]] == [state == "in-progress"] * 2
    stored = scan_run.last(SCAN)
    assert stored is not None
    assert (stored.claimed, stored.enqueued, stored.errors) == (6, 4, 1)
    assert any("Error occured while removing snooze time for rooms" in str(r.msg) for r in caplog.records)


@pytest.fixture
def takes_two(broker: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A broker that takes two messages, and then no more."""
    monkeypatch.setattr(channel, "PUSH_BATCH_SIZE", 2)
    lpush, calls = Redis.lpush, []

    def second_is_refused(self: Redis, name: str, *messages: str) -> object:
        calls.append(messages)
        if len(calls) == 2:
            raise OutOfMemoryError("command not allowed when used memory > 'maxmemory'")
        return lpush(self, name, *messages)

    monkeypatch.setattr(Redis, "lpush", second_is_refused)
    return broker


def test_batch_partly_accepted_by_the_broker_keeps_its_leases(takes_two: str) -> None:
    rooms = [make_room(server_now() - minutes(age)) for age in (3, 2, 1)]

    with pytest.raises(ScanFailed, match="3 items could not be sent: command not allowed"):
        scan_expired_snoozes()

    assert [message.args[0] for message in waiting_messages(takes_two, QUEUE)] == [str(room) for room in rooms[:2]]
    assert [lease(room).state for room in rooms] == ["in-progress"] * 3


def test_a_manual_retry_partly_accepted_by_the_broker_fails_and_keeps_its_leases(
    takes_two: str,
) -> None:
    rooms = [make_room(server_now() - minutes(1)) for _ in range(3)]
    listed = support_snooze.system.items
    assert listed is not None

    with pytest.raises(Unavailable, match="only some of the messages were taken"):
        retry(support_snooze.system, listed(), [str(room) for room in rooms])

    assert len(waiting_messages(takes_two, QUEUE)) == 2
    assert [lease(room).state for room in rooms] == ["in-progress"] * 3


def test_items_of_a_manual_retry_that_could_not_be_sent_are_due_immediately(
    broker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = make_room(server_now() - minutes(1))
    listed = support_snooze.system.items
    assert listed is not None

    def refuses(*_: object) -> None:
        raise OutOfMemoryError("command not allowed when used memory > 'maxmemory'")

    monkeypatch.setattr(Redis, "lpush", refuses)
    with pytest.raises(Unavailable, match="command not allowed"):
        retry(support_snooze.system, listed(), [str(room)])

    assert lease(room).state == "free"


def test_sent_rooms_are_not_released_if_the_scan_cannot_be_recorded(
    broker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = make_room(server_now() - minutes(1))

    def fails(*_: object) -> None:
        raise Unavailable("Redis does not answer")

    monkeypatch.setattr(DocumentWork, "mark_dispatched", fails)
    with pytest.raises(ScanFailed, match="Unavailable: Redis does not answer"):
        scan_expired_snoozes()

    assert len(waiting_messages(broker, QUEUE)) == 1
    assert lease(room).state == "in-progress"
    stored = scan_run.last(SCAN)
    assert stored is not None
    assert stored.enqueued == 1


def test_database_error_during_a_scan_is_raised_after_the_claimed_items_are_sent(
    broker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_room(server_now() - minutes(1))
    take_due = DocumentWork.take_due

    def breaks_after_one(self: DocumentWork, measure: Callable[[], Backlog]) -> Iterator[DueBatch]:
        yield next(take_due(self, measure))
        raise AutoReconnect("connection closed")

    monkeypatch.setattr(DocumentWork, "take_due", breaks_after_one)
    with pytest.raises(ScanFailed, match="connection closed"):
        scan_expired_snoozes()
    assert len(waiting_messages(broker, QUEUE)) == 1


def test_full_queue_stops_new_claims(broker: str, change_settings: Callable[..., None]) -> None:
    change_settings(QM_MAX_QUEUE="3")
    for _ in range(5):
        make_room(server_now() - minutes(1))
    first, second = scan_expired_snoozes(), scan_expired_snoozes()
    assert (first["enqueued"], second["enqueued"]) == (3, 0)
    assert len(waiting_messages(broker, QUEUE)) == 3


def test_missing_index_error_names_the_command_to_run(broker: str) -> None:
    support_room.rooms().drop_indexes()
    with pytest.raises(ScanFailed, match="an index of support_rooms is missing: run `queue-manager migrate`"):
        scan_expired_snoozes()


@pytest.mark.parametrize("place", ["in a batch", "outside"])
def test_unexpected_error_is_logged_once_with_its_traceback(
    place: str, broker: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def breaks(*_: object) -> Iterator[DueBatch]:
        raise KeyError("surprise")

    if place == "in a batch":
        monkeypatch.setattr(DocumentWork, "take_due", breaks)
    else:
        monkeypatch.setattr("tasks.support_snooze.dispatch", breaks)
    with pytest.raises(ScanFailed, match="KeyError: 'surprise'"):
        scan_expired_snoozes()
    (error,) = [said["exc_info"] for said in _said(caplog) if "exc_info" in said]
    assert traceback.extract_tb(error.__traceback__)[-1].name == "breaks"


def test_error_of_a_scan_without_a_report_says_what_it_must_return(
    broker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.support_snooze.dispatch", lambda *_: None)
    said = f"{SCAN} returned None, not the report of `fan_out`"
    with pytest.raises(ScanFailed, match=said):
        scan_expired_snoozes()
    run = scan_run.last(SCAN)
    assert run is not None
    assert said in (run.error or "")


@pytest.mark.parametrize("error", [AutoReconnect("connection closed"), RedisConnectionError("refused")])
def test_server_outage_is_logged_in_one_line_without_a_traceback(
    error: Exception, broker: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def away(*_: object) -> Iterator[DueBatch]:
        raise error

    monkeypatch.setattr(DocumentWork, "take_due", away)
    scan_expired_snoozes.delay()
    assert isinstance(run(take(broker, "scans")), ScanFailed)
    failures = [record for record in caplog.records if record.levelname in ("ERROR", "CRITICAL")]
    assert len(failures) == 1
    assert not [record for record in caplog.records if record.exc_info]
    assert not [said for said in _said(caplog) if "exc_info" in said]


def _said(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    """Return the lines of our own loggers."""
    return [record.msg for record in caplog.records if isinstance(record.msg, dict)]
