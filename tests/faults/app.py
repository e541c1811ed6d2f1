"""The product's own application, in which rooms with certain ids are poison; `celery -A tests.faults.app …`."""

from __future__ import annotations

import faulthandler
import os
import signal
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

from bson import ObjectId

from models.due_documents import DueCollection
from services.due_documents.work import DocumentWork
from tasks import app
from tests.e2e.poison import poison
from tests.faults import notes

__all__ = ["app"]

LOG_VARIABLE = "FAULTS_POISON_LOG"

STACKS_SIGNAL = signal.SIGUSR2
"""Writes what every thread of the process does to its log."""
faulthandler.register(STACKS_SIGNAL, all_threads=True)

SLOW_ITEMS = 4.0
"""Seconds after which an item or batch writes the stacks of its process to the log, and again and again."""

POISONS = ("exit", "raise-exit", "hang", "hold-gil", "memory", "raise", "out-of-memory")
PREFIX = "badbad"


def poison_id(does: str, number: int) -> ObjectId:
    return ObjectId(f"{PREFIX}{POISONS.index(does):02x}{number:016x}")


def poison_of(id: Any) -> str | None:
    """Return what waking the room does, if it is poison."""
    text = str(id)
    return POISONS[int(text[len(PREFIX) : len(PREFIX) + 2], 16)] if text.startswith(PREFIX) else None


apply = DueCollection.apply


def poisoned(documents: DueCollection, due_at: Mapping[Any, Any], *arguments: Any, **options: Any) -> Any:
    for id in due_at:
        if (does := poison_of(id)) and documents.get(id) is not None:  # its schedule is not over
            notes.append(os.environ[LOG_VARIABLE], what="begin", room=str(id), others=len(due_at) - 1)
            poison(does)
            notes.append(os.environ[LOG_VARIABLE], what="end", room=str(id))
    return apply(documents, due_at, *arguments, **options)


def watched(execute: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function, which writes the stacks of its process to the log if it takes long."""

    @wraps(execute)
    def execute_watched(*arguments: Any, **options: Any) -> Any:
        faulthandler.dump_traceback_later(SLOW_ITEMS, repeat=True)
        try:
            return execute(*arguments, **options)
        finally:
            faulthandler.cancel_dump_traceback_later()

    return execute_watched


DocumentWork.execute = watched(DocumentWork.execute)  # type: ignore[method-assign]
DocumentWork.execute_batch = watched(DocumentWork.execute_batch)  # type: ignore[method-assign]
DueCollection.apply = poisoned  # type: ignore[assignment,method-assign]
