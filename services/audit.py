"""Recording of the audit: who changed what, with the values before and after, and how it ended.

    with recorded(actor, "replay", system="overdue-messages", ids=ids) as action:
        action.count = replay(ids)

Guarantee: an action that was begun is in the collection or, if MongoDB did not store its entry, in the log. Texts and
lists of ids are bounded, so that every entry is small.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import accumulate
from typing import Any

from bson import ObjectId
from bson.errors import BSONError
from pymongo.client_session import ClientSession

from models import archive, audit
from models.archive import MAX_ARCHIVED, UNDO_TIME, Kind
from models.audit import ActionName, AuditEntry, Outcome, Via
from models.database import Document, Error, describe, within
from queue_manager.core.clock import hours, seconds
from queue_manager.core.errors import Unavailable, reason, unavailable_server
from queue_manager.core.log import get_logger
from queue_manager.core.settings import settings
from queue_manager.core.wording import many
from queue_manager.explanation import TimelineEvent
from queue_manager.pauses import person

AUDIT_TIMEOUT = seconds(2.5)
MAX_AUDITED_IDS = 1_000
MAX_AUDITED_IDS_LENGTH = 1_000_000  # characters of all ids of an entry
MAX_AUDITED_ID_LENGTH = 8_192  # characters; entries are found by the whole id, and `ж` has six in extended JSON
MAX_VALUE_LENGTH = 1_000  # characters of one value before or after
MAX_AUDITED_ERROR_LENGTH = 500  # characters
OUTCOME_UNKNOWN = "the outcome is unknown"
INCOMPLETE_DETAIL = "stopped after its time; the rest is left"
MAX_STORED_INTEGER = 2**63 - 1  # larger ones, which other programs may have written, are stored as texts
ACTION_LABELS: Mapping[ActionName, str] = {
    "edit": "Edited",
    "delete": "Deleted",
    "move": "Moved",
    "replay": "Replayed",
    "retry": "Retried",
    "run": "Stored",
    "cancel": "Canceled",
    "reschedule": "Rescheduled",
    "remove": "Removed",
}
"""What the timelines call the actions that name ids."""
DELETING_ACTIONS: tuple[ActionName, ...] = ("delete", "remove")

ArchivedRecords = Sequence[Mapping[str, Any]]

log = get_logger("QM/audit")


@dataclass(frozen=True, kw_only=True)
class Actor:
    """Who acts, and from where; see `AuditEntry`."""

    who: str
    via: Via
    address: str


class Archive:
    """Where an action stores what it is about to delete, so that it can be undone."""

    def __init__(self, action: ObjectId) -> None:
        self.action = action
        self.count = 0

    def keep_jobs(self, jobs: Sequence[Document], session: ClientSession) -> None:
        """Store jobs in the transaction that deletes them. Raises the errors of the driver."""
        archive.add(self.action, "job", jobs, session)
        self.count += len(jobs)

    def keep(self, kind: Kind, records: ArchivedRecords) -> Callable[[ArchivedRecords], None]:
        """Store records from Redis. Returns a function that keeps only some of them.

        If MongoDB refuses them, for example because one is larger than 16 MB, that is logged, and they cannot be
        restored. Raises `Unavailable` if it is unavailable.
        """
        ids = self._stored(lambda: archive.add(self.action, kind, records))
        self.count += len(records) if ids else 0

        def keep_only(some: ArchivedRecords) -> None:
            if ids and self._stored(lambda: archive.add(self.action, kind, some)) is not None:
                archive.delete(ids)
                self.count -= len(records) - len(some)

        return keep_only

    @staticmethod
    def _stored(write: Callable[[], list[ObjectId]]) -> list[ObjectId] | None:
        try:
            with within(AUDIT_TIMEOUT):
                return write()
        except (Error, BSONError, ValueError) as error:
            if isinstance(error, Error) and unavailable_server(error):
                raise Unavailable(describe(error)) from error
            log.error("What an action deletes cannot be restored", error=str(reason(error)))
            return None


@dataclass(kw_only=True)
class AuditedAction:
    """What is known of an action so far. The block that acts completes it."""

    ids: Sequence[str] = ()
    """The ids of what the action changes; at the end, of what it has changed."""
    total: int | None = None
    """The number of things to change; by default the number of `ids`."""
    filter: Mapping[str, Any] | None = None
    detail: str = ""
    is_complete: bool = True
    """False if it stopped at its time limit; the detail of the entry states this."""
    count: int | None = None
    """The number of things that it has changed; `None` if that is not known."""
    before: Mapping[str, Any] | None = None
    after: Mapping[str, Any] | None = None
    archive: Archive | None = None
    """`None` if MongoDB did not store the entry: what is deleted then cannot be restored."""

    def __post_init__(self) -> None:
        if self.total is None and self.ids:
            self.total = len(self.ids)

    def keeper(
        self, kind: Kind, *, expected: int = 0
    ) -> Callable[[ArchivedRecords], Callable[[ArchivedRecords], None]] | None:
        """Return `Archive.keep` for records of a kind; `None` if so many cannot be restored."""
        archive = self._archive_of(expected)
        return None if archive is None else partial(archive.keep, kind)

    def job_keeper(self, *, expected: int = 0) -> Callable[[Sequence[Document], ClientSession], None] | None:
        """Return `Archive.keep_jobs`; `None` if so many cannot be restored."""
        archive = self._archive_of(expected)
        return None if archive is None else archive.keep_jobs

    def _archive_of(self, expected: int) -> Archive | None:
        return None if expected > MAX_ARCHIVED else self.archive

    @property
    def undo(self) -> str | None:
        """The id by which the action can be undone; `None` if it cannot, or if it changed nothing."""
        return str(self.archive.action) if self.archive and self.archive.count and self.count != 0 else None

    def succeeded(self, ids: Sequence[str]) -> None:
        """Record the ids of what was changed, and their number."""
        self.ids, self.count = ids, len(ids)

    def changed(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
        """Record the values that differ."""
        names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
        self.before = {name: before.get(name) for name in names}
        self.after = {name: after.get(name) for name in names}


class _Entry:
    """The entry of an action while it runs. Stores what is known, or logs it."""

    def __init__(self, actor: Actor, action: ActionName, system: str | None) -> None:
        about = {"who": _text(actor.who), "via": actor.via, "address": _text(actor.address)}
        of_system = {} if system is None else {"system": _text(system)}
        self._document: Document = {"_id": ObjectId(), **about, "action": action, **of_system}
        self._is_stored = False

    def begin(self, done: AuditedAction, *, is_in_redis: bool) -> None:
        self._document |= {**_fields(done), "outcome": "unknown"}
        error = _failure(lambda: audit.begin(self._document, retention=hours(24 * settings().qm_audit_days)))
        if isinstance(error, Error) and unavailable_server(error) and not is_in_redis:
            # Without a cause, since what happens to a request whose server fails meanwhile is unknown.
            raise Unavailable(f"{describe(error)}; nothing was changed") from None
        self._is_stored = error is None
        if error is not None:
            self._log(error)
        else:
            done.archive = Archive(self._document["_id"])

    def finish(self, done: AuditedAction, outcome: Outcome, error: str | None = None) -> None:
        fields: Document = {**_fields(done), "outcome": outcome, **({} if error is None else {"error": error})}
        self._document |= fields
        if not self._is_stored:
            self._log()  # the server did not answer before: do not wait for it again
        elif error_of_write := _failure(
            lambda: audit.finish(self._document["_id"], fields, undo_within=UNDO_TIME if done.undo else None)
        ):
            self._log(error_of_write)

    def _log(self, error: Exception | None = None) -> None:
        entry = json.dumps(self._document, default=str, ensure_ascii=False)
        why = {} if error is None else {"error": str(reason(error))}  # plain, or else an outage is logged only once
        log.error("An audit entry could not be stored", entry=entry, **why)


def _failure(write: Callable[[], None]) -> Exception | None:
    try:
        with within(AUDIT_TIMEOUT):
            write()
    except (Error, BSONError, ValueError) as error:
        return error
    return None


@contextmanager
def recorded(
    actor: Actor, action: ActionName, *, system: str | None = None, is_in_redis: bool = False, **known: Any
) -> Iterator[AuditedAction]:
    """Record what the block does: before it, with the outcome unknown, and after it, as the block completed it.

    The entry is stored first, so that a killed process leaves an entry without an outcome instead of an action without
    an entry. While MongoDB is unavailable, an action that needs it is not begun. One that needs only Redis is, because
    an operator must be able to pause a system or clear a queue then: its whole entry is logged, before and after it.
    The same applies if MongoDB refuses the entry, for example because its user has no rights on the collection.

    Args:
        is_in_redis: the action does not need MongoDB.
        known: the fields of `AuditedAction` that are known before the action.

    An error of the block is raised again, with notes: whether the outcome is unknown, because a server did not answer
    or Ctrl-C was pressed; how many things were changed before; and how to undo that.

    Raises:
        Unavailable: MongoDB is unavailable, and the action needs it. It was not begun.
    """
    done, entry = AuditedAction(**known), _Entry(actor, action, system)
    entry.begin(done, is_in_redis=is_in_redis)
    try:
        yield done
    except BaseException as error:
        is_unknown = not isinstance(error, Exception) or unavailable_server(error.__cause__ or error) is not None
        if is_unknown and done.count == 0:
            done.count = None
        for note in _notes(done, is_unknown):
            error.add_note(note)
        entry.finish(done, "unknown" if is_unknown else "failed", _text(reason(error), MAX_AUDITED_ERROR_LENGTH))
        raise
    entry.finish(done, "done")


def _notes(done: AuditedAction, is_unknown: bool) -> Iterator[str]:
    """Yield what is known of an action that ended with an error."""
    if done.count:
        yield f"{done.count:,} changed before"
    if is_unknown:
        yield OUTCOME_UNKNOWN
    if done.undo is not None:
        yield f"to {undo_hint(done.undo)}"


def undo_hint(id: str) -> str:
    """Return how to undo an action, to be put after the word `to`."""
    return f"undo it within {UNDO_TIME.total_seconds() / 60:.0f} minutes: queue-manager audit undo {id}"


def _fields(done: AuditedAction) -> Document:
    details = (done.detail, "" if done.is_complete else INCOMPLETE_DETAIL)
    known: Document = {
        "total": done.total,
        "filter": _bounded(done.filter),
        "detail": _text("; ".join(filter(None, details))),
        "count": done.count,
        "before": _bounded(done.before),
        "after": _bounded(done.after),
    }
    ids = [_text(id, MAX_AUDITED_ID_LENGTH) for id in done.ids[:MAX_AUDITED_IDS]]
    lengths = accumulate(map(len, ids))
    bounded = [id for id, length in zip(ids, lengths, strict=True) if length <= MAX_AUDITED_IDS_LENGTH]
    return {"ids": bounded} | {name: value for name, value in known.items() if value not in (None, {}, "")}


def _bounded(values: Mapping[str, Any] | None) -> Document | None:
    if values is None:
        return None
    return {name: _value(value) for name, value in values.items() if value is not None}


def _value(value: Any) -> Any:
    if isinstance(value, bool | float | datetime) or (isinstance(value, int) and abs(value) <= MAX_STORED_INTEGER):
        return value
    return _text(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str))


def _text(text: str, length: int = MAX_VALUE_LENGTH) -> str:
    """Return a text that BSON can encode, truncated with … to `length` characters."""
    text = text.encode("utf-8", "replace").decode()
    return text if len(text) <= length else f"{text[: length - 1]}…"


# Timelines


def timeline_event(entry: AuditEntry) -> TimelineEvent:
    """Return an entry as an event in the timeline of what it changed."""
    is_done = entry.outcome == "done"
    label = ACTION_LABELS.get(entry.action, entry.action.capitalize())
    who = person(entry.who)
    event = f"{label} by {who}" if is_done else f"Attempt to {entry.action} it by {who}"
    details = (
        changes_of(entry.before, entry.after),
        entry.detail,
        _selection(entry),
        OUTCOME_UNKNOWN * (entry.outcome == "unknown"),
    )
    return TimelineEvent(at=entry.at, event=event, detail="; ".join(filter(None, details)), error=entry.error)


def changes_of(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> str:
    """Return what an action changed, such as `priority 0 → 5`."""
    old, new = before or {}, after or {}
    return "; ".join(f"{name} {old.get(name, 'none')} → {new.get(name, 'none')}" for name in {**old, **new})


def _selection(entry: AuditEntry) -> str:
    others = (entry.count or entry.total or 1) - 1
    return f"with {many(others, 'other')}" if others else ""
