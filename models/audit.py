"""The audit log: collection `qm_audit`, one document for each action of an operator or a program.

    {_id, at, who, via: "page", "api" or "cli", address, action, system?, ids, total?, filter?, detail?, count?,
     before?, after?, outcome: "unknown", "done" or "failed", error?, undo_until?, undo_ends_at?, expires_at}

While the action is being undone, `undo_ends_at` is when another undo may begin, also if this one was killed.

Only `services.audit` writes the entries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Annotated, Any, Literal, get_args

from bson import ObjectId
from pydantic import Field, TypeAdapter, with_config
from pymongo import IndexModel, ReturnDocument
from pymongo.collection import Collection

from models import listing, site
from models.archive import UNDO_TIME
from models.database import Document, collection
from models.document_id import id_candidates, id_text, shown_id
from models.listing import Position
from models.malformed import readable, readable_one, typed
from queue_manager.core.clock import milliseconds
from queue_manager.core.json_types import ALWAYS_PRESENT, Moment

AUDIT_COLLECTION = "qm_audit"
MAX_LISTED_IDS = 20  # of one entry in a list; `get` returns all that are stored
MAX_OF_ONE_ID = 100  # the newest entries about one id
AUDIT_ORDER = ("at", "_id")

ActionName = Literal[
    "adopt",
    "cancel",
    "clear",
    "delete",
    "edit",
    "import",
    "mark",
    "migrate",
    "move",
    "pause",
    "remove",
    "replay",
    "requeue",
    "reschedule",
    "resume",
    "retry",
    "run",
    "scan",
    "silence",
    "undo",
    "unsilence",
]
AUDITED_ACTIONS: tuple[ActionName, ...] = get_args(ActionName)
UNDOABLE_ACTIONS: tuple[ActionName, ...] = ("clear", "delete", "remove")
Via = Literal["page", "api", "cli"]
Outcome = Literal["unknown", "done", "failed"]

_FIELDS = ("who", "action", "system")
"""The fields of the conditions; each, and `ids`, has an index in the order of the list."""


@with_config(ALWAYS_PRESENT)
@dataclass(frozen=True, kw_only=True)
class AuditEntry:
    """An action of the audit log: who changed what, when, from where, and with which outcome."""

    id: str
    at: Moment
    who: Annotated[
        str, Field(description="The name of a key, `loopback` without keys, or the user who ran the command.")
    ]
    via: Via
    address: Annotated[str, Field(description="The IP address of the client, or the host on which the command ran.")]
    action: ActionName
    system: str | None = None
    ids: Annotated[
        Sequence[str],
        Field(description="What it was done to: in a list the first 20, of one entry up to 1,000."),
    ] = ()
    total: Annotated[int | None, Field(description="How many it was to be done to, if that is known.")] = None
    filter: Annotated[
        Mapping[str, Any] | None,
        Field(description="How they were selected, unless by their ids."),
    ] = None
    detail: str = ""
    count: Annotated[int | None, Field(description="How many were changed, where that is counted.")] = None
    before: Annotated[
        Mapping[str, Any] | None, Field(description="The values that an edit changed; long ones end with `…`.")
    ] = None
    after: Mapping[str, Any] | None = None
    outcome: Annotated[
        Outcome, Field(description="`unknown` while it runs, and if its process or a server failed meanwhile.")
    ] = "unknown"
    error: str | None = None
    undo_until: Annotated[
        Moment | None, Field(description="Until when what it deleted can be restored; null if it cannot.")
    ] = None

    @property
    def is_unfinished(self) -> bool:
        """Whether no end was recorded: the action still runs, or its process was killed."""
        return self.outcome == "unknown" and self.error is None


_ENTRY = TypeAdapter(AuditEntry)


@dataclass(frozen=True, kw_only=True)
class AuditQuery:
    """Conditions on entries; `None` matches everything."""

    id: str | None = None
    """Of an item, message or job, also as people write it: a text without quotation marks, a UUID, a number."""
    who: str | None = None
    action: str | None = None
    system: str | None = None
    since: datetime | None = None
    until: datetime | None = None


def begin(document: Document, *, retention: timedelta) -> None:
    """Insert an entry with the server's time, so that the entries of all processes are in order."""
    times = {"at": "$$NOW", "expires_at": {"$add": ["$$NOW", milliseconds(retention)]}}
    stored = {"$mergeObjects": [{"$literal": document}, times]}
    _audit().update_one({"_id": document["_id"]}, [{"$replaceWith": stored}], upsert=True)


def finish(id: ObjectId, fields: Document, *, undo_within: timedelta | None = None) -> None:
    """Add to an entry the fields that are known after its action, and until when it can be undone."""
    known: Document = {name: {"$literal": value} for name, value in fields.items()}
    if undo_within is not None:
        known["undo_until"] = {"$add": ["$$NOW", milliseconds(undo_within)]}
    _audit().update_one({"_id": id}, [{"$set": known}])


def prolong_undo(id: str, undo_within: timedelta) -> None:
    """Extend the deadline of an undo to this time from now."""
    until = {"$add": ["$$NOW", milliseconds(undo_within)]}
    _audit().update_one({"_id": ObjectId(id)}, [{"$set": {"undo_until": until}}])


def begin_undo(id: str, *, within: timedelta) -> datetime | None:
    """Return when another undo of an action may begin, `None` if one is running. `release_undo` it with this time."""
    is_free = {"$expr": {"$lte": ["$undo_ends_at", "$$NOW"]}}  # also if there is no such field
    ends_at = {"$add": ["$$NOW", milliseconds(within)]}
    changed = _audit().find_one_and_update(
        {"_id": ObjectId(id), **is_free},
        [{"$set": {"undo_ends_at": ends_at}}],
        projection=["undo_ends_at"],
        return_document=ReturnDocument.AFTER,
    )
    return None if changed is None else changed["undo_ends_at"]


def release_undo(id: str, ends_at: datetime) -> None:
    """Let another undo of an action begin, unless one has begun since, because this one took too long."""
    _audit().update_one({"_id": ObjectId(id), "undo_ends_at": ends_at}, {"$unset": {"undo_ends_at": ""}})


def end_undo(id: str) -> None:
    """Record that an action was undone: it cannot be undone again."""
    _audit().update_one({"_id": ObjectId(id)}, {"$set": {"undo_until": None}})


def get(id: str) -> AuditEntry | None:
    """Return an entry with all its ids."""
    found = _audit().find_one({"_id": ObjectId(id)}) if ObjectId.is_valid(id) else None
    return readable_one(found, read_entry, of=AUDIT_COLLECTION)


def page(query: AuditQuery, *, after: Position | None, limit: int) -> tuple[list[AuditEntry], Position | None]:
    """Return the entries after a position, newest first, and the position of the next page; `None` at the end.

    Raises:
        NoPosition: `after` does not fit the order of the list.
    """
    given: Document = {field: value for field in _FIELDS if (value := getattr(query, field)) is not None}
    if query.id is not None:
        given["ids"] = {"$in": [query.id, *map(id_text, id_candidates(query.id)), *site.item_ids(query.id)]}
    times = {"$gte": query.since, "$lte": query.until}
    if wanted := {operator: moment for operator, moment in times.items() if moment is not None}:
        given["at"] = wanted
    return _page(given, after=after, limit=limit)


def _page(given: Document, *, after: Position | None, limit: int) -> tuple[list[AuditEntry], Position | None]:
    # The server chooses the index: the audit must be readable after an upgrade, before `migrate` creates them.
    found, end = listing.newest(_audit(), given, index=None, order=AUDIT_ORDER, after=after, limit=limit)
    return list(readable(found, partial(read_entry, max_ids=MAX_LISTED_IDS), of=AUDIT_COLLECTION)), end


def of_id(id: str) -> list[AuditEntry]:
    """Return the newest entries about an id, in any system, newest first."""
    return _page({"ids": id}, after=None, limit=MAX_OF_ONE_ID)[0]


AUDIT_INDEXES = {
    AUDIT_COLLECTION: [
        IndexModel(AUDIT_ORDER, name="audit_by_time"),
        *(IndexModel([field, *AUDIT_ORDER], name=f"audit_by_{field}") for field in ("ids", *_FIELDS)),
        IndexModel("expires_at", name="audit_kept_until", expireAfterSeconds=0),
    ]
}


def read_entry(document: Document, *, max_ids: int | None = None) -> AuditEntry:
    known = {name: value for name, value in document.items() if name in AuditEntry.__dataclass_fields__}
    known |= {name: _shown(known[name]) for name in ("filter", "before", "after") if isinstance(known.get(name), dict)}
    ids = typed(document, "ids", list)[:max_ids]
    entry = _ENTRY.validate_python({**known, "id": str(document["_id"]), "ids": ids})
    if entry.is_unfinished and entry.action in UNDOABLE_ACTIONS and "undo_until" not in document:
        return replace(entry, undo_until=entry.at + UNDO_TIME)
    return entry


def _shown(values: Document) -> Document:
    """Return values, with text instead of values that the API cannot return, which only another program can store."""
    kinds = (bool, int, float, str, datetime)
    return {name: value if isinstance(value, kinds) else shown_id(value) for name, value in values.items()}


def _audit() -> Collection[Document]:
    return collection(AUDIT_COLLECTION)
