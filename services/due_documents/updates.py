"""Calls the function of a system for documents, and validates and groups the updates that it returns."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple, cast

import bson
from bson import ObjectId

from models import transaction
from models.database import Document, as_stored, copy_of, value_at, with_value
from models.due_documents import Update, UpdateGroup
from queue_manager.core.errors import PermanentError
from queue_manager.core.functions import contained
from services.due_documents.declaration import DueDocuments, Run

MAX_CALL_TIME = 0.25  # seconds for the functions of one transaction; the other items of a batch are in the next one
_COMPARED_ALIKE = (str, bool, int, ObjectId)  # types whose values are equal in Python if they are equal in MongoDB
MAX_CATCH_UP_TIME = 5.0  # seconds for the dates that a repeating item missed; the next scan continues with the rest


class FailedCall(NamedTuple):
    """The document whose function failed, and the error."""

    id: Any
    due_at: datetime
    error: Exception


@dataclass(kw_only=True)
class Unwritten:
    """What a transaction of a batch did not write."""

    unreached: list[Any] = field(default_factory=list)
    """The ids of documents that were not read, or not reached within `MAX_CALL_TIME`."""
    failed: list[FailedCall] = field(default_factory=list)


def update_of(system: DueDocuments, document: Document, run: Run) -> Update:
    """Return the update of one document; if it repeats and missed several dates, that of the last one."""
    ends_at = time.monotonic() + MAX_CATCH_UP_TIME
    may_repeat, due_at = system.catch_up == "once", value_at(document, system.due)
    update, later = _checked(system, _call(system, document, run))
    # A date that is not later is no repetition: such an update may leave `where`, and is refused if it does not.
    while may_repeat and later is not None and due_at < later <= run.now and time.monotonic() < ends_at:
        document, due_at = with_value(document, system.due, later), later
        update, later = _checked(system, _call(system, document, run))
    return update


def grouped_updates(
    system: DueDocuments, documents: Sequence[Document], run: Run, *, unwritten: Unwritten | None
) -> list[UpdateGroup]:
    """Call the function for each document; documents with equal updates are written together.

    In a batch, `unwritten` gets the documents whose function fails, and those that are not reached in time.
    """
    groups: dict[bytes, UpdateGroup] = {}
    if unwritten is not None:
        unwritten.failed.clear()  # of an earlier try of the transaction
    began = time.monotonic()
    for number, document in enumerate(documents):
        if unwritten is not None and time.monotonic() > began + MAX_CALL_TIME:
            unwritten.unreached += [one["_id"] for one in documents[number:]]
            break
        try:
            update = update_of(system, document, run)
            key = bson.encode({"update": update})
        except Exception as error:
            if unwritten is None:
                raise
            if not isinstance(error, MemoryError):  # its own task may have enough
                unwritten.failed.append(FailedCall(document["_id"], value_at(document, system.due), error))
            continue
        if key not in groups:
            is_sure_to_end = _is_sure_to_end(system, update, run.now)
            groups[key] = UpdateGroup(documents=[], update=update, is_sure_to_end=is_sure_to_end)
        groups[key].documents.append(document)
    if time.monotonic() > began + transaction.MAX_TRANSACTION.total_seconds():
        raise PermanentError(
            f"the function took {time.monotonic() - began:.0f} s; a transaction may take "
            f"{transaction.MAX_TRANSACTION.total_seconds():.0f} s: put slow work into `after`"
        )
    return list(groups.values())


def _call(system: DueDocuments, document: Document, run: Run) -> Any:
    item, own = system.functions.item, copy_of(document)  # which the function may change
    assert item is not None
    with contained():
        return item.function(own, run=run) if item.wants_run else item.function(own)


def _checked(system: DueDocuments, update: Any) -> tuple[Update, datetime | None]:
    """Return the update that a function returned, and the date that it sets.

    With `done="unset"`, the removal of the date is added to the update.
    """
    require_update(update, system.item_task)
    if update == {} and system.done is None:
        raise PermanentError(f'{system.item_task} returned {{}}, which needs `done="unset"`')
    later = _value_set(update, system.due)
    if later is not None and (not isinstance(later, datetime) or later.tzinfo is None):
        raise PermanentError(
            f"{system.item_task} sets {system.due} to {later!r:.100}, but it must be a datetime with a "
            "time zone, such as run.now + timedelta(days=1)"
        )
    if system.done is None:
        return cast(Update, update), later
    if isinstance(update, list):
        return [*update, {"$unset": system.due}], None
    return {**update, "$unset": {**update.get("$unset", {}), system.due: ""}}, None


def documents_after(system: DueDocuments, group: UpdateGroup) -> list[Document] | None:
    """Return the documents of a group as its update left them; `None` if only the server knows."""
    update, seen = group.update, system.read_fields
    if isinstance(update, list) or not update.keys() <= {"$set", "$unset"}:
        return None
    set_, removed = as_stored(update.get("$set", {})), update.get("$unset", {})
    if any("." in path for path in (*set_, *removed)):
        return None
    if seen is not None:
        if any(path.startswith(tuple(f"{name}." for name in set_)) for path in seen):
            return None
        set_ = {name: value for name, value in set_.items() if name in seen}
    return [
        {name: copy_of(value) for name, value in {**document, **set_}.items() if name not in removed}
        for document in group.documents
    ]


def _is_sure_to_end(system: DueDocuments, update: Update, now: datetime) -> bool:
    """Return True if the update alone ensures that no document stays due."""
    due = system.due
    removed = _unset(update[-1] if isinstance(update, list) else update)
    if any(due == path or due.startswith(f"{path}.") for path in removed):
        return True
    if isinstance(update, list):
        return False
    later = _value_set(update, due)
    if isinstance(later, datetime):
        return later > now
    set_ = update.get("$set", {})
    return any(
        type(wanted) in _COMPARED_ALIKE and type(set_.get(path)) is type(wanted) and set_[path] != wanted
        for path, wanted in system.where.items()
    )


def require_update(update: Any, of: str | None) -> None:
    """Raise PermanentError if a function returned neither operators nor a pipeline."""
    is_update = (
        isinstance(update, dict)
        and all(str(name).startswith("$") and isinstance(of_fields, dict) for name, of_fields in update.items())
    ) or (isinstance(update, list) and update and all(isinstance(stage, dict) for stage in update))
    if not is_update:
        raise PermanentError(
            f"{of} returned {update!r:.100}, but it must return an update such as "
            '{"$set": {"status": "done"}}, or a pipeline of such stages'
        )


def _unset(stage: Mapping[str, Any]) -> list[str]:
    """Return the paths that an update, or a stage of a pipeline, removes."""
    removed = stage.get("$unset", [])
    return [removed] if isinstance(removed, str) else list(removed)


def _value_set(update: Update, path: str) -> Any:
    """Return the value that an update sets at a path, directly or within a document; `None` if it sets none."""
    set_ = update.get("$set", {}) if isinstance(update, dict) else {}
    for outer, value in set_.items():
        if path == outer:
            return value
        if path.startswith(f"{outer}.") and isinstance(value, dict):
            return value_at(value, path[len(outer) + 1 :])
    return None
