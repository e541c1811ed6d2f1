"""Items at the Celery edge: retries, exhaustion, permanent errors and clocks that run ahead."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from bson import ObjectId
from celery import Celery, Signature
from celery.app import trace
from celery.exceptions import Ignore, Reject, Retry
from pymongo.errors import AutoReconnect, ExecutionTimeout, OperationFailure
from redis.exceptions import ResponseError

from models import database
from models.database import server_now
from models.due_documents import DueCollection
from queue_manager.batching import execution
from queue_manager.batching.task import WAIT_IN_PLACE, PoolRequest
from queue_manager.core.clock import minutes, seconds, to_iso
from queue_manager.core.errors import FunctionExited, PermanentError
from queue_manager.core.settings import settings
from queue_manager.items import Verdict
from services.due_documents import updates
from services.due_documents.work import DocumentWork
from tasks import app, item
from tasks.item import MAX_FREE_REPEATS, REPEATS_HEADER
from tasks.support_snooze import scan_expired_snoozes, unsnooze_room
from tests.pace import paced
from tests.room_lease import LEASES, lease
from tests.rooms import T0, get_room, make_room
from tests.tasks.hand_worker import run, take, waiting_messages

QUEUE = "support-snooze"


def test_the_application_has_the_time_zone_of_its_configuration() -> None:
    assert app.uses_utc_timezone() == Celery.uses_utc_timezone(app)


@pytest.fixture
def broken_database(monkeypatch: pytest.MonkeyPatch) -> None:
    fail_writes(monkeypatch, OperationFailure("the index is corrupt"))


def fail_writes(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(DueCollection, "apply", fail)


def test_delay_from_another_program_wakes_a_room(broker: str) -> None:
    room = make_room(server_now() - minutes(1))

    sent = unsnooze_room.delay(str(room))
    result = run(take(broker, QUEUE))

    assert result["success"] is True
    assert get_room(room)["status"] == "open"
    assert get_room(room)["unsnoozed_by_task"] == sent.id


@pytest.mark.usefixtures("broken_database")
def test_backoff_is_1_2_4_up_to_256_seconds_and_the_tenth_failure_is_final(
    broker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = make_room(server_now() - minutes(1))
    scan_expired_snoozes()
    (token,) = [message.id for message in waiting_messages(broker, QUEUE)]
    for attempt, wait in enumerate([1, 2, 4, 8, 16, 32, 64, 128, 256], start=1):
        message = take(broker, QUEUE)
        assert (message.id, message.retries, message.expires) == (token, attempt - 1, None)
        began = datetime.now(UTC)
        monkeypatch.setattr(item, "estimated_now", lambda now=began: now)
        assert isinstance(run(message), Retry)
        (again,) = waiting_messages(broker, QUEUE)
        assert again.eta == began + seconds(wait)
        held_until = lease(room).ends_at
        assert held_until is not None
        # In whole milliseconds.
        assert began - seconds(0.001) <= held_until - seconds(wait) - minutes(1) <= datetime.now(UTC)

    result = run(take(broker, QUEUE))

    assert isinstance(result, OperationFailure)
    assert waiting_messages(broker, QUEUE) == []
    stored = get_room(room)
    assert stored["snooze_queue_in_progress"] is False
    assert stored["unsnooze_error"] == "the index is corrupt"
    assert stored["unsnooze_failures"] == 1
    assert stored["snooze_time"]["time"] < server_now()


def test_mongodb_outage_does_not_count_as_an_attempt(broker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    room = make_room(server_now() - minutes(1))
    sent = unsnooze_room.delay(str(room))
    with monkeypatch.context() as outage:
        outage.setattr(item, "estimated_now", lambda: T0)
        outage.setattr(database, "answers", lambda limit: False)
        fail_writes(outage, AutoReconnect("connection closed"))
        for _ in range(12):
            message = take(broker, QUEUE)
            assert (message.id, message.retries) == (sent.id, 0)
            assert isinstance(run(message), Ignore)
            (again,) = waiting_messages(broker, QUEUE)
            assert again.eta == T0 + seconds(1)
        assert "unsnooze_failures" not in get_room(room)

    assert run(take(broker, QUEUE))["success"] is True


@pytest.mark.parametrize("error", [Ignore(), Reject("full"), Retry("later")], ids=["ignore", "reject", "retry"])
def test_errors_by_which_a_task_of_the_product_controls_celery_are_failures(
    broker: str, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """A function that calls such a task raises them. Celery would end the item without a record."""
    room = make_room(server_now() - minutes(1))
    fail_writes(monkeypatch, error)

    unsnooze_room.apply_async([str(room)], retries=9)

    assert isinstance(run(take(broker, QUEUE)), FunctionExited)
    assert get_room(room)["unsnooze_error"] == f"the function raised Celery's {type(error).__name__}"
    assert waiting_messages(broker, QUEUE) == []


def test_malformed_number_of_repeats_counts_as_none(broker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    room = make_room(server_now() - minutes(1))
    unsnooze_room.apply_async([str(room)], headers={REPEATS_HEADER: "x"})
    fail_writes(monkeypatch, ExecutionTimeout("operation exceeded time limit"))
    assert isinstance(run(take(broker, QUEUE)), Ignore)
    (again,) = waiting_messages(broker, QUEUE)
    assert again.headers[REPEATS_HEADER] == 1


def test_outages_count_as_attempts_after_many_repeats_if_mongodb_answers(
    broker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = make_room(server_now() - minutes(1))
    unsnooze_room.delay(str(room))
    monkeypatch.setattr(item, "estimated_now", lambda: T0)
    fail_writes(monkeypatch, ExecutionTimeout("operation exceeded time limit"))
    results, attempts = [], []
    for _ in range(MAX_FREE_REPEATS + 10):
        message = take(broker, QUEUE)
        attempts.append(message.retries)
        results.append(run(message))

    assert attempts == [*[0] * (MAX_FREE_REPEATS + 1), *range(1, 10)]
    kinds = [type(result) for result in results]
    assert kinds == [*[Ignore] * MAX_FREE_REPEATS, *[Retry] * 9, ExecutionTimeout]
    assert waiting_messages(broker, QUEUE) == []
    assert get_room(room)["unsnooze_failures"] == 1


def test_repeats_are_in_a_row_so_another_error_ends_them(broker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    unsnooze_room.apply_async([str(make_room(server_now() - minutes(1)))], headers={REPEATS_HEADER: MAX_FREE_REPEATS})
    with monkeypatch.context() as refusal:
        fail_writes(refusal, OperationFailure("the index is corrupt"))
        assert isinstance(run(take(broker, QUEUE)), Retry)
    fail_writes(monkeypatch, ExecutionTimeout("operation exceeded time limit"))
    message = take(broker, QUEUE)
    assert (message.retries, message.headers[REPEATS_HEADER]) == (1, 0)
    assert isinstance(run(message), Ignore)
    (again,) = waiting_messages(broker, QUEUE)
    assert (again.retries, again.headers[REPEATS_HEADER]) == (1, 1)


@pytest.mark.parametrize("is_away", [False, True])
def test_items_of_a_batch_that_took_too_long_are_left_to_smaller_batches_if_mongodb_answers(
    broker: str, monkeypatch: pytest.MonkeyPatch, is_away: bool
) -> None:
    sent = [unsnooze_room.delay(str(make_room(server_now() - minutes(1)))) for _ in range(3)]
    messages = [take(broker, QUEUE) for _ in sent]
    monkeypatch.setattr(database, "answers", lambda limit: not is_away)
    fail_writes(monkeypatch, ExecutionTimeout("operation exceeded time limit"))

    requests: list[PoolRequest] = [(one.id, one.headers, (one.args, one.kwargs, {})) for one in messages]
    with unsnooze_room.execute_batch(requests) as outcomes:
        assert outcomes == [None if is_away else Verdict.UNREACHED] * 3


def test_a_coroutine_among_the_outcomes_of_a_batch_is_an_error(broker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def wake() -> None:
        """Is not called by a batch function that returns its coroutine."""

    unsnooze_room.delay(str(make_room(server_now() - minutes(1))))
    message = take(broker, QUEUE)
    monkeypatch.setattr(DocumentWork, "execute_batch", lambda *_: [wake()])
    with unsnooze_room.execute_batch([(message.id, message.headers, (message.args, message.kwargs, {}))]) as outcomes:
        (outcome,) = outcomes
    assert isinstance(outcome, PermanentError)
    assert "returned a coroutine, so nothing was done" in str(outcome)


@pytest.mark.parametrize(
    ("lease", "timeout", "expected"), [("60", "120", 60), ("60", "40", 40), ("60", "5", 30), ("5", "120", 30)]
)
def test_a_batch_has_one_lease_or_the_timeout_of_an_item_and_at_least_30_s(
    change_settings: Callable[..., None], lease: str, timeout: str, expected: float
) -> None:
    change_settings(QM_LEASE_SECONDS=lease, QM_ITEM_TIMEOUT_SECONDS=timeout)
    assert unsnooze_room.batch_timeout == expected


def test_invalid_id_fails_immediately_and_is_not_retried(broker: str, caplog: pytest.LogCaptureFixture) -> None:
    unsnooze_room.delay("nonsense")

    result = run(take(broker, QUEUE))

    assert isinstance(result, PermanentError)
    assert "room_id: 'nonsense'" in str(result)
    assert waiting_messages(broker, QUEUE) == []
    assert any("room_id: 'nonsense'" in str(record.msg) and record.levelname == "ERROR" for record in caplog.records)
    assert LEASES.stats().in_progress == 0


@pytest.mark.parametrize("moment", ["yesterday", "2026-01-31T09:30:00", "", 5])
def test_malformed_due_time_is_a_permanent_error(broker: str, moment: Any) -> None:
    unsnooze_room.delay(str(ObjectId()), moment)
    result = run(take(broker, QUEUE))
    assert isinstance(result, PermanentError)
    assert "snoozed_until" in str(result)
    assert LEASES.stats().in_progress == 0


def test_item_executed_slightly_early_by_a_fast_clock_waits_for_its_due_time(broker: str) -> None:
    with paced() as pace:
        due_at = server_now() + WAIT_IN_PLACE - seconds(0.1)
        room = make_room(due_at)
        scan_expired_snoozes()
        result = run(take(broker, QUEUE))

    woken_at = get_room(room)["unsnoozed_at"]
    assert result["unsnoozed_at"] == to_iso(woken_at)
    assert due_at <= woken_at < due_at + seconds(pace.allowed(1))


@pytest.fixture
def rare_scans(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The next scan is ten minutes away, so that what is due before it need not be close."""
    with monkeypatch.context() as patch:
        patch.setenv("QM_SNOOZE_SCAN_SECONDS", "600")
        settings.cache_clear()
        yield
    settings.cache_clear()


@pytest.mark.usefixtures("rare_scans")
def test_item_executed_too_early_by_a_fast_clock_is_requeued_without_counting_an_attempt(broker: str) -> None:
    due_at = server_now() + minutes(5)
    room = make_room(due_at)
    scan_expired_snoozes()
    message = take(broker, QUEUE)

    with paced() as pace:
        assert isinstance(run(message), Ignore)

    again = take(broker, QUEUE)
    assert (again.id, again.args, again.retries) == (message.id, [str(room), to_iso(due_at)], 0)
    assert again.eta is not None
    assert seconds(-0.5) <= again.eta - due_at <= seconds(pace.allowed(0.5))
    held_until = lease(room).ends_at
    assert held_until is not None
    assert held_until > due_at + seconds(55)


def test_direct_call_executes_the_task_in_process(broker: str) -> None:
    room = make_room(server_now() - minutes(1))
    assert unsnooze_room(str(room))["success"] is True
    assert get_room(room)["unsnoozed_by_task"].startswith("direct-")


@pytest.mark.parametrize(("args", "kwargs"), [(["a", "b", "c"], {}), ([], {}), ([], {"room": 1})])
def test_call_by_name_with_other_arguments_is_a_permanent_error(
    broker: str, args: list[str], kwargs: dict[str, int]
) -> None:
    app.send_task("tasks.support_snooze.unsnooze_room", args, kwargs, queue=QUEUE)
    result = run(take(broker, QUEUE))
    assert isinstance(result, PermanentError)
    assert "unsnooze_room(room_id: 'str', snoozed_until: 'str | None' = None)" in str(result)
    assert waiting_messages(broker, QUEUE) == []


@pytest.mark.parametrize(("args", "kwargs"), [(["room"], {}), ([], {"room_id": "room"})])
def test_item_of_a_call_has_the_defaults_of_its_task(args: list[str], kwargs: dict[str, str]) -> None:
    assert unsnooze_room.item("task", args, kwargs).args == ("room", None)


@pytest.mark.usefixtures("broken_database")
def test_call_by_name_with_keyword_arguments_is_retried(broker: str) -> None:
    room = make_room(server_now() - minutes(1))
    app.send_task("tasks.support_snooze.unsnooze_room", kwargs={"room_id": str(room)}, queue=QUEUE)
    for _ in range(9):
        assert isinstance(run(take(broker, QUEUE)), Retry)
    assert isinstance(run(take(broker, QUEUE)), OperationFailure)
    assert get_room(room)["unsnooze_error"] == "the index is corrupt"


@pytest.mark.parametrize(("wait", "slept"), [(0.5, 0.5), (600.0, 5.0)])
def test_message_whose_retry_cannot_be_published_is_requeued_after_a_delay(
    broker: str, monkeypatch: pytest.MonkeyPatch, wait: float, slept: float
) -> None:
    waits: list[float] = []

    def refuse(*_: Any, **__: Any) -> None:
        raise Reject(ResponseError("no memory is left"))

    monkeypatch.setattr(item, "time", SimpleNamespace(sleep=waits.append))
    monkeypatch.setattr(unsnooze_room, "retry", refuse)
    with pytest.raises(Reject) as put_back:
        unsnooze_room._retry(unsnooze_room.item("1", [str(ObjectId())], {}), ValueError("boom"), seconds(wait))
    assert put_back.value.requeue
    assert put_back.value.reason == "no memory is left"
    assert put_back.value.reason.server == "the broker"  # so that it is logged once, and without a traceback
    assert waits == [slept]


def test_function_that_fails_in_a_batch_is_called_once_an_attempt(broker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rooms = [str(make_room(server_now() - minutes(1))) for _ in range(3)]
    calls: list[str] = []

    def fail(system: Any, document: Any, run: Any) -> None:
        calls.append(str(document["_id"]))
        raise ValueError("boom")

    monkeypatch.setattr(updates, "update_of", fail)
    monkeypatch.setattr(trace, "trace_task_ret", partial(trace.trace_task_ret, app=app))
    ended = execution.run(unsnooze_room.name, [(room, {"id": room, "retries": 0}, ((room,), {}, {})) for room in rooms])

    assert sorted(calls) == sorted(rooms)
    assert [str(one[1].exception.exc.exc) for one in ended if not isinstance(one, Verdict)] == ["boom"] * 3
    assert [(one.id, one.retries) for one in waiting_messages(broker, QUEUE)] == [(room, 1) for room in rooms]


def test_failures_for_which_a_batch_has_no_time_are_left_to_the_next_one(
    broker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rooms = [str(make_room(server_now() - minutes(1))) for _ in range(3)]

    def fail(*_: Any) -> None:
        raise ValueError("boom")

    monkeypatch.setattr(updates, "update_of", fail)
    monkeypatch.setattr(trace, "trace_task_ret", partial(trace.trace_task_ret, app=app))
    # The first failure is completed in time; it takes longer than the batch may.
    monkeypatch.setattr(execution, "monotonic", iter([0.0, 0.1, 0.1, 0.2, *[60.0] * 9]).__next__)
    ended = execution.run(unsnooze_room.name, [(room, {"id": room, "retries": 0}, ((room,), {}, {})) for room in rooms])

    assert [one is Verdict.UNREACHED for one in ended] == [False, True, True]
    assert [(one.id, one.retries) for one in waiting_messages(broker, QUEUE)] == [(rooms[0], 1)]


@pytest.mark.parametrize("error", [AutoReconnect("connection closed"), OperationFailure("the index is corrupt")])
def test_batch_publishes_and_waits_once_while_the_broker_takes_no_messages(
    broker: str, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    rooms = [str(make_room(server_now() - minutes(1))) for _ in range(3)]
    waits: list[float] = []
    published: list[str] = []

    def refuse(sent: Signature, *_: Any, **__: Any) -> None:
        published.append(sent.id)
        raise ResponseError("no memory is left")

    fail_writes(monkeypatch, error)
    monkeypatch.setattr(database, "answers", lambda limit: False)
    monkeypatch.setattr(item, "time", SimpleNamespace(sleep=waits.append, monotonic=time.monotonic))
    monkeypatch.setattr(Signature, "apply_async", refuse)
    monkeypatch.setattr(trace, "trace_task_ret", partial(trace.trace_task_ret, app=app))
    ended = execution.run(unsnooze_room.name, [(room, {"id": room, "retries": 0}, ((room,), {}, {})) for room in rooms])

    rejected = [outcome[1].exception.exc for outcome in ended if not isinstance(outcome, Verdict)]
    assert [(type(one), one.requeue, one.reason) for one in rejected] == [(Reject, True, "no memory is left")] * 3
    assert published == rooms[:1]
    assert waits == [1.0]
