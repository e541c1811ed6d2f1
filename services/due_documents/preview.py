"""What a scan would find and what its items would write, for a look before the system is switched on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from models.database import shown_id
from models.due_documents import Update
from queue_manager.core.errors import reason
from services.due_documents.declaration import Run
from services.due_documents.work import DocumentWork


@dataclass(frozen=True, kw_only=True)
class Preview:
    """One due document, and the update or the error of its function."""

    id: str
    due_at: datetime
    update: Update | None = None
    error: str | None = None
    may_stay_due: bool = False
    """Only the write can tell whether the update makes the document not due; one that does not is refused then."""


def previews(work: DocumentWork, *, limit: int) -> Iterator[Preview]:
    """Call the function for some due documents, and write nothing."""
    run = Run(id="preview", now=work.clock())
    for document in work.documents.sample(run.now, work.system.fields, limit=limit):
        about: dict[str, Any] = {"id": shown_id(document["_id"]), "due_at": work.documents.due_at(document)}
        try:
            change = work.change_of(document, run)
        except Exception as error:  # the function is the user's
            yield Preview(**about, error=f"{type(error).__name__}: {reason(error)}")
        else:
            yield Preview(**about, update=change.update, may_stay_due=not change.is_sure_to_end)
