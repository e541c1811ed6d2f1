"""The application, in which rooms wake at the fourth attempt; `celery -A tests.e2e.fourth_try_app worker`."""

from __future__ import annotations

from typing import Any

from celery import current_task

from models.due_documents import DueCollection
from services.due_documents.work import DocumentWork
from tasks import app

__all__ = ["app"]

apply = DueCollection.apply


def apply_late(documents: DueCollection, *arguments: Any, **options: Any) -> Any:
    if current_task.request.retries < 3:
        raise RuntimeError("not yet")
    return apply(documents, *arguments, **options)


def execute_none(*_: Any, **__: Any) -> Any:
    raise RuntimeError("one by one")


DueCollection.apply = apply_late  # type: ignore[assignment,method-assign]
DocumentWork.execute_batch = execute_none  # type: ignore[method-assign]
