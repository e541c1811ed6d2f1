"""Documents that another program has written into our own collections harm nothing but themselves, and are named."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from bson import Decimal128, ObjectId, Regex
from bson.datetime_ms import DatetimeMS
from pydantic import TypeAdapter

from models import (
    alert,
    audit,
    failed_item,
    history,
    item_events,
    job_queue,
    malformed,
    mark,
    outbox,
    scan_run,
)
from models.database import Document, collection, server_now
from models.history import TEN_MINUTES
from queue_manager.core.clock import hours, minutes, seconds
from queue_manager.pauses import PauseState
from tests.job_lab import Lab
from tests.rooms import T0

pytestmark = pytest.mark.usefixtures("clean")

YEAR_300_000 = DatetimeMS(9_400_000_000_000_000)
ODD: dict[str, Any] = {
    "text": "a\u202e<b>\x1b[31m\n",
    "number": 7,
    "NaN": float("nan"),
    "decimal": Decimal128("NaN"),
    "list": [1, T0],
    "document": {"a": 1},
    "null": None,
    "ObjectId": ObjectId(),
    "expression": Regex("a"),
    "1900": datetime(1900, 1, 1, tzinfo=UTC),
    "300000": YEAR_300_000,
}
IDS = [value for value in ODD.values() if not isinstance(value, list | Regex)]
"""What MongoDB takes for an id."""
MISSING = object()
odd = pytest.mark.parametrize("value", [*ODD.values(), MISSING], ids=[*ODD, "missing"])


@pytest.fixture(autouse=True)
def _named_anew() -> Iterator[None]:
    malformed._named.clear()
    yield
    malformed._named.clear()


def with_odd(document: Document, name: str, value: Any) -> Document:
    return {field: one for field, one in {**document, name: value}.items() if one is not MISSING}


def fields(document: Document) -> list[str]:
    return [name for name in document if name != "_id"]


def runs_a_job() -> bool:
    """Return True if a dispatch finds a job of another name, and a run executes it."""
    lab = Lab(server_now)
    stored = lab.run("mail", 1)
    lab.serve(epoch=5)
    return lab.state(stored) == "success"


@odd
def test_a_malformed_pause_pauses_its_queue_and_no_other(value: Any) -> None:
    job_queue.queues().insert_one(with_odd({"_id": "report", "paused": True}, "pause", value))
    if value is not MISSING and not isinstance(value, list | Regex):
        job_queue.queues().insert_one({"_id": value, "paused": True})
    assert set(job_queue.pauses()) - {ODD["text"]} == {"report"}
    assert runs_a_job()


@odd
@pytest.mark.parametrize("name", ["epoch", "heartbeat", "since", "gap"])
def test_a_malformed_leader_is_replaced(name: str, value: Any) -> None:
    now = server_now()
    known = {"_id": job_queue.LEADER_ID, "epoch": 3, "heartbeat": now, "since": now}
    job_queue.leaders().insert_one(with_odd(known, name, None if value == 7 else value))
    assert runs_a_job()
    found = job_queue.leader()
    assert found is not None
    assert found["epoch"] == 5


@pytest.mark.parametrize(
    ("name", "value"),
    [*(("at", one) for one in (*ODD.values(), MISSING)), *(("_id", one) for one in (*IDS, MISSING))],
)
def test_a_malformed_outbox_record_does_not_stop_the_calls_of_other_batches(name: str, value: Any) -> None:
    records = collection(outbox.OUTBOX_COLLECTION)
    records.insert_one(with_odd({"_id": "odd", "system": "trial-end", "at": T0, "items": []}, name, value))
    records.insert_one({"_id": "good", "system": "trial-end", "at": T0, "items": []})
    assert "good" in [batch for batch, _ in outbox.pending("trial-end", now=server_now())]


def test_a_malformed_failed_item_is_skipped_and_named(caplog: pytest.LogCaptureFixture) -> None:
    known: Document = {"due_at": T0, "error": "e", "failures": 1, "failed_at": T0, "retry_at": T0}
    failed = collection(failed_item.FAILED_ITEMS_COLLECTION)
    for name in known:
        for value in (*ODD.values(), MISSING):
            failed.insert_one(with_odd({"_id": {"system": "trial-end", "id": ObjectId()}, **known}, name, value))
    failed.insert_one({"_id": {"system": "trial-end", "id": [1]}, **known})
    failed.insert_one({"_id": {"system": "trial-end", "id": "good"}, **known})
    for _ in range(2):
        found = list(failed_item.page("trial-end", since=T0 - hours(1), after=None, is_descending=True))
        assert "good" in [one.id for one in found]
        assert {type(one.due_at) for one in found} == {datetime}
    named = [record.msg["id"] for record in caplog.records if isinstance(record.msg, dict) and "id" in record.msg]
    assert len(named) == len(set(named)) > len(known)


@odd
def test_a_malformed_failure_record_counts_as_no_previous_failure(value: Any) -> None:
    failed = collection(failed_item.FAILED_ITEMS_COLLECTION)
    failed.insert_one(with_odd({"_id": {"system": "trial-end", "id": 1}, "due_at": T0}, "failures", value))
    failure = failed_item.record("trial-end", 1, T0, error="boom", now=T0)
    assert failure.failures == (8 if value == 7 else 1)


def test_malformed_scan_runs_are_skipped_and_a_run_of_the_future_hides_no_other() -> None:
    now, runs = server_now(), collection(scan_run.RUNS_COLLECTION)
    known: Document = {"scan": "s", "found": 1, "claimed": 1, "enqueued": 1, "errors": 1, "duration_ms": 3, "at": now}
    for name in fields(known)[1:]:
        runs.insert_many([with_odd(known, name, value) for value in (*ODD.values(), MISSING)])
    runs.insert_one({**known, "at": now + minutes(1), "more": Decimal128("1"), "error": "e"})
    last = scan_run.last("s")
    assert last is not None
    del known["scan"]
    assert vars(last).items() >= {**known, "at": now + minutes(1), "error": "e", "noted": {}}.items()
    for found in (
        scan_run.latest("s", limit=500),
        scan_run.page("s", after=None, limit=500)[0],
        scan_run.slowest("s", limit=500),
    ):
        assert {type(one.at) for one in found} == {datetime}
        assert {type(one.found) for one in found} == {int}
    assert isinstance(scan_run.count_errors(now - hours(1))["s"], int)


@odd
def test_a_malformed_mark_of_a_scan_is_replaced(value: Any) -> None:
    marks, now = collection(scan_run.RUNNING_COLLECTION), server_now()
    marks.insert_one(with_odd({"_id": "s"}, "runs", value))
    marks.insert_one({"_id": {"a": 1}, "runs": [{"token": "t", "until": now + hours(1)}]})
    scan_run.begin("s", "token", now=now)
    assert scan_run.running(now=now) == {"s"}


def test_malformed_chart_numbers_are_skipped_and_the_others_stored() -> None:
    at = T0.replace(minute=0)
    bucket = history.Bucket(system="a", at=at, length=TEN_MINUTES, counts={"done": 3})
    stored = collection(history.HISTORY_COLLECTION)
    history.store([bucket])
    stored.update_many({}, {"$set": {"counts": "x"}})
    for name in ("system", "at", "counts"):
        known: Document = {"system": "b", "seconds": 600, "at": at, "counts": {}}
        stored.insert_many([with_odd(known, name, value) for value in (*ODD.values(), MISSING)])
    other = history.Bucket(system="c", at=at, length=TEN_MINUTES, counts={"done": 3})
    history.store([bucket, other])
    assert [one for one in history.read(TEN_MINUTES, since=at) if one.system == "c"] == [other]
    newest = history.newest(at - hours(1), until=at + hours(1))
    assert newest == {"a": at, "b": at, "c": at, ODD["text"]: at}


@odd
def test_malformed_chart_marks_are_skipped_and_outages_still_detected(value: Any) -> None:
    marks, now = collection(mark.MARKS_COLLECTION), server_now()
    known: Document = {"kind": "deployment", "at": now, "until": now, "text": "t", "by": "me"}
    marks.insert_many([with_odd(known, name, value) for name in known])
    marks.insert_one(with_odd({"_id": mark.LAST_SEEN}, "seen_at", value))
    mark.add(mark.ChartMark(kind="deployment", at=now, text="good"))
    found = mark.read(now - hours(1))
    assert "good" in [one.text for one in found]
    assert {type(one.text) for one in found} == {str}
    mark.record_scan(now)
    outage = mark.current_outage(now + minutes(5), gap=minutes(1))
    assert outage is not None
    assert outage.at == now


def test_malformed_audit_entries_are_skipped() -> None:
    known: Document = {
        "at": T0,
        "who": "me",
        "via": "cli",
        "address": "h",
        "action": "retry",
        "ids": ["1"],
        "outcome": "done",
        "system": "trial-end",
        "filter": {"a": 1},
        "before": {"a": 1},
        "count": 1,
        "undo_until": T0,
    }
    entries = collection(audit.AUDIT_COLLECTION)
    for name in known:
        values = (value for value in (*ODD.values(), MISSING) if not isinstance(value, list) or name == "ids")
        entries.insert_many([with_odd(known, name, value) for value in values])  # an index refuses two lists
    entries.insert_one({**known, "after": {"a": Decimal128("1"), "b": {"c": 1}}})
    good = entries.insert_one(known).inserted_id
    found, _ = audit.page(audit.AuditQuery(), after=None, limit=500)
    assert str(good) in [one.id for one in found]
    assert {(type(one.at), type(one.who)) for one in found} == {(datetime, str)}
    TypeAdapter(list[audit.AuditEntry]).dump_json(found)


@odd
def test_a_malformed_alert_or_silence_does_not_prevent_alerts(value: Any) -> None:
    key, now = alert.Key("support-snooze", "late-items"), server_now()
    sent, silences = collection(alert.ALERTS_COLLECTION), collection(alert.SILENCES_COLLECTION)
    sent.insert_one(with_odd({"_id": key._asdict(), "text": "t"}, "sent_at", value))
    sent.insert_one(with_odd({"_id": "x"}, "text", value))
    for name in ("by", "reason"):
        known = {"_id": {"system": name, "rule": "r"}, "until": now + hours(1), "by": "me", "reason": "r"}
        silences.insert_one(with_odd(known, name, value))
    silences.insert_one({"_id": 5, "until": now + hours(1), "by": "me", "reason": "r"})
    alert.silence(key, until=now + hours(1), by="me", reason="known")
    assert key in [one.key for one in alert.silences(now)]
    assert alert.sent() == {key: "t"}
    assert alert.may_send(key, "text", repeat=hours(1), now=now)
    assert not alert.may_send(key, "text", repeat=hours(1), now=now + seconds(1))


@odd
def test_malformed_item_events_are_skipped(value: Any) -> None:
    events = collection(item_events.ITEM_EVENTS_COLLECTION)
    batch: Document = {"system": "trial-end", "event": "dispatched", "at": T0, "items": "1@5", "task": "t"}
    attempt: Document = {"system": "trial-end", "event": "failed", "at": T0, "id": "1", "error": "e", "worker": "w"}
    events.insert_many([with_odd(batch, name, value) for name in ("event", "at", "items", "task")])
    events.insert_many([with_odd({**attempt, "task": "t"}, name, value) for name in ("event", "at", "error", "worker")])
    events.insert_one({**batch, "at": T0 + seconds(1)})
    found = item_events.of_item("trial-end", "1").events
    assert T0 + seconds(1) in [one.at for one in found]
    assert item_events.item_of_task("t-0") == ("trial-end", "1@5")


def test_a_pause_without_details_is_a_pause() -> None:
    job_queue.queues().insert_one({"_id": "report", "paused": True})
    assert job_queue.pauses() == {"report": PauseState()}
