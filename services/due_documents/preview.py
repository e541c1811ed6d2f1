"""Preview of a system before it is switched on: what a scan would find, and what its items would write."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from models.database import Document
from models.document_id import shown_id
from models.due_documents import StillDue, Update
from queue_manager.core.errors import typed_reason
from services.due_documents.declaration import Run
from services.due_documents.updates import update_of
from services.due_documents.work import DocumentWork


@dataclass(frozen=True, kw_only=True)
class Preview:
    """One due document, and the update or the error of its function."""

    id: str
    due_at: datetime
    update: Update | None = None
    error: str | None = None


def previews(work: DocumentWork, documents: Sequence[Document], *, now: datetime) -> Iterator[Preview]:
    """Call the function for documents that are due `now`; try each update in a transaction that is aborted."""
    run = Run(id="preview", now=now)
    for document in documents:
        about: dict[str, Any] = {"id": shown_id(document["_id"]), "due_at": work.documents.due_at(document)}
        try:
            update = update_of(work.system, document, run)
            work.documents.rehearse(document, update, now=run.now)
        except StillDue:
            yield Preview(**about, error=work.still_due("the document"))
        except Exception as error:  # the function is the user's
            yield Preview(**about, error=typed_reason(error))
        else:
            yield Preview(**about, update=update)
