"""What happened to items: collection `qm_item_events`, for their timelines.

    {system, event: dispatched, at, items, task, is_manual?, expires_at}            a batch, kept for a day
    {system, event: executed, at, items, task?, worker, took_ms, expires_at}        a batch, kept for a day
    {system, event: retried, at, id, attempt?, error, worker, task, expires_at}     kept for a day
    {system, event: failed, at, id, attempt?, error, worker, task, expires_at}      kept for 30 days
    {system, event: lost, at, id, error, task, expires_at}                          kept for 30 days

`items` has a line for each item: the name of its lease, and why it was skipped if it was. `task` is what the ids of a
dispatched batch's tasks begin with, followed by the position of the item; elsewhere it is the id of one task.

Guarantee: recording never raises, never waits for the server to acknowledge, and costs one insert for a batch.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from bson.errors import BSONError
from pymongo import DESCENDING, IndexModel, WriteConcern
from pymongo.collection import Collection

from models.database import Document, Error, collection, estimated_now, within
from models.malformed import readable, typed
from queue_manager import leases
from queue_manager.core.clock import hours, milliseconds, seconds
from queue_manager.core.errors import reason
from queue_manager.core.log import get_logger
from queue_manager.core.process import PerProcess, process_name

ITEM_EVENTS_COLLECTION = "qm_item_events"
BY_TIME, BY_ITEM, BY_TASK, BY_EXPIRY = "events_by_time", "events_of_an_item", "events_of_a_task", "expired_events"
EVENT_RETENTION, FAILURE_RETENTION = hours(24), hours(24 * 30)
EVENT_INSERT_TIMEOUT = seconds(1)
EVENT_RETRY_DELAY = 5.0  # seconds in which nothing is recorded after the server failed
MAX_EVENT_ERROR_LENGTH = 2_000  # characters
MAX_EVENTS_SHOWN = 100  # of each kind, the newest
BATCH_SEARCH_TIMEOUT = seconds(1.5)  # of reading the batches of a day

_LINE = re.compile(r"(?P<lease>.*@-?\d*)(?: .*)?")  # the id in the name of a lease may contain spaces
_ANY_LINE = re.compile(r"^\S*(?: (.*))?$", re.MULTILINE)

BatchEvent = Literal["dispatched", "executed"]
AttemptEvent = Literal["retried", "failed", "lost"]

log = get_logger("QM/items")


@dataclass(frozen=True, kw_only=True)
class ItemEvent:
    """One event of one item."""

    event: BatchEvent | AttemptEvent
    at: datetime
    items: int = 1
    """The number of items in the batch."""
    is_manual: bool = False
    """Whether an operator dispatched it."""
    skipped: str | None = None
    """Why the item was skipped; `None` if it was not."""
    attempt: int | None = None
    error: str | None = None
    worker: str | None = None
    """Host and process, as `host:pid`."""
    took: timedelta | None = None
    """The duration of the whole batch."""
    task: str | None = None


@dataclass(frozen=True, kw_only=True)
class ItemHistory:
    """The events of one item, newest first. Not complete if reading the batches of the day took too long."""

    events: Sequence[ItemEvent]
    is_complete: bool


# Recording


def record_dispatched(system: str, task: str, names: Sequence[str], *, is_manual: bool) -> None:
    """Record that a batch was dispatched; the ids of its tasks are `task` and the position of the item."""
    _record(system, "dispatched", items=_lines(names), task=task, is_manual=is_manual or None)


def record_executed(
    system: str, names: Sequence[str], skipped: Mapping[str, str], *, task: str | None, took: timedelta
) -> None:
    """Record that items were executed together, with the reasons of those that had nothing to do.

    Args:
        task: the id of the task, if it is one.
    """
    lines = [f"{name} {skipped[name]}" if name in skipped else name for name in names]
    _record(system, "executed", items=_lines(lines), task=task, worker=process_name(), took_ms=milliseconds(took))


def record_attempt(
    system: str, name: str, event: AttemptEvent, *, task: str, error: str, attempt: int | None = None
) -> None:
    """Record an attempt at one item that did not succeed."""
    error, id = error[:MAX_EVENT_ERROR_LENGTH], leases.id_of(name)
    worker = None if event == "lost" else process_name()  # which records what another process did
    _record(system, event, id=id, task=task, error=error, worker=worker, attempt=attempt)


def _lines(items: Iterable[str]) -> str:
    return "\n".join(item.replace("\n", " ") for item in items)


def _record(system: str, event: BatchEvent | AttemptEvent, **fields: Any) -> None:
    """Insert an event with those of `fields` that are not `None`."""
    now, kept_for = estimated_now(), FAILURE_RETENTION if event in ("failed", "lost") else EVENT_RETENTION
    known = {name: value for name, value in fields.items() if value is not None}
    _inserter().insert({"system": system, "event": event, "at": now, **known, "expires_at": now + kept_for})


class _EventInserter:
    """Inserts without waiting for the server, and not at all for a while after it failed."""

    def __init__(self) -> None:
        self._retry_at = 0.0

    def insert(self, document: Document) -> None:
        if time.monotonic() < self._retry_at:
            return
        try:
            with within(EVENT_INSERT_TIMEOUT):
                _events().with_options(write_concern=WriteConcern(w=0)).insert_one(document)
        except (BSONError, ValueError) as error:  # a text may have unpaired surrogates
            log.warning("An event of an item cannot be recorded", error=reason(error))
        except Error as error:
            self._retry_at = time.monotonic() + EVENT_RETRY_DELAY
            log.warning("Events of items are not recorded for now", error=reason(error))


_inserter = PerProcess(_EventInserter)


# Reading


def of_item(system: str, id: str) -> ItemHistory:
    """Return the events of an item; `id` is the one in the names of its leases."""
    attempts = _events().find(
        {"system": system, "id": id}, sort=[("at", DESCENDING)], limit=MAX_EVENTS_SHOWN, hint=BY_ITEM
    )
    line = re.compile(rf"^{re.escape(id)}@-?\d*(?: (.*))?$", re.MULTILINE)
    events = list(readable(attempts, _attempt_event, of=ITEM_EVENTS_COLLECTION))
    is_complete = True
    try:
        with within(BATCH_SEARCH_TIMEOUT):
            batches = _batches_with(system, line.pattern)
            events += readable(batches, lambda one: _batch_event(one, line), of=ITEM_EVENTS_COLLECTION)
    except Error as error:
        if not error.timeout:
            raise
        is_complete = False
    events.sort(key=lambda one: (one.at, one.event != "dispatched"), reverse=True)  # times are in ms
    return ItemHistory(events=events, is_complete=is_complete)


def last_loss(system: str, name: str, *, since: datetime) -> str | None:
    """Return why the process of an item was lost the last time, if that was recorded after `since`. Best effort."""
    where = {"system": system, "id": leases.id_of(name), "at": {"$gt": since}, "event": "lost"}
    with suppress(Error), within(EVENT_INSERT_TIMEOUT):
        found = _events().find(where, sort=[("at", DESCENDING)], limit=1, hint=BY_ITEM)
        return next((one.error for one in readable(found, _attempt_event, of=ITEM_EVENTS_COLLECTION)), None)
    return None


def _batches_with(system: str, pattern: str) -> list[Document]:
    """Return the newest batches with a line that matches."""
    where = {"system": system, "items": {"$regex": pattern, "$options": "m"}}
    return list(_events().find(where, sort=[("at", DESCENDING)], limit=MAX_EVENTS_SHOWN, hint=BY_TIME))


def item_of_task(task: str) -> tuple[str, str] | None:
    """Return the system and the name of the lease of the item that a task was sent for, or `None`."""
    batch, _, number = task.rpartition("-")
    names = [task, batch] if batch and number.isdecimal() else [task]
    events = _events().find({"task": {"$in": names}}, hint=BY_TASK)
    items = readable(events, lambda one: _item_of(one, task, batch, number), of=ITEM_EVENTS_COLLECTION)
    return next((item for item in items if item is not None), None)


def _item_of(found: Document, task: str, batch: str, number: str) -> tuple[str, str] | None:
    system = typed(found, "system", str)
    if found["event"] == "dispatched" and found["task"] == batch:
        lines = found["items"].split("\n")
        return (system, lines[int(number)]) if int(number) < len(lines) else None
    if found["task"] == task and "id" in found:
        return system, f"{found['id']}@"
    line = _LINE.fullmatch(found["items"])
    return (system, line["lease"]) if found["task"] == task and line is not None else None


def read_event(document: Document) -> ItemEvent:
    """Return an event; for a batch, that of its first item."""
    return _batch_event(document, _ANY_LINE) if "items" in document else _attempt_event(document)


def _attempt_event(document: Document) -> ItemEvent:
    return ItemEvent(
        event=document["event"],
        at=typed(document, "at", datetime),
        attempt=document.get("attempt"),
        error=typed(document, "error", str),
        worker=typed(document, "worker", str) if "worker" in document else None,
        task=typed(document, "task", str),
    )


def _batch_event(document: Document, line: re.Pattern[str]) -> ItemEvent:
    items = typed(document, "items", str)
    found = line.search(items)
    assert found is not None
    position = items.count("\n", 0, found.start())
    is_dispatch, took_ms = document["event"] == "dispatched", document.get("took_ms")
    return ItemEvent(
        event=document["event"],
        at=typed(document, "at", datetime),
        items=items.count("\n") + 1,
        is_manual=document.get("is_manual", False),
        skipped=found[1],
        worker=document.get("worker"),
        took=None if took_ms is None else timedelta(milliseconds=took_ms),
        task=f"{document['task']}-{position}" if is_dispatch else document.get("task"),
    )


def _events() -> Collection[Document]:
    return collection(ITEM_EVENTS_COLLECTION)


EVENT_INDEXES = {
    ITEM_EVENTS_COLLECTION: [
        IndexModel(["system", ("at", DESCENDING)], name=BY_TIME),
        IndexModel(
            ["system", "id", ("at", DESCENDING)], name=BY_ITEM, partialFilterExpression={"id": {"$exists": True}}
        ),
        IndexModel("task", name=BY_TASK, sparse=True),
        IndexModel("expires_at", name=BY_EXPIRY, expireAfterSeconds=0),
    ]
}
