"""The tasks of systems that other packages declare with `DueDocuments`; their names are in the declaration."""

from __future__ import annotations

from typing import Any

from beat_schedule import systems
from services.due_documents import DueDocuments, work_of
from tasks.app import app
from tasks.document_tasks import after_of, dispatch, item_of
from tasks.item import ItemTask, current_task_id
from tasks.scan import ScanReport, scan_task


def bind(system: DueDocuments) -> ItemTask:
    """Register the tasks of a system, and return its item task."""

    def scan() -> ScanReport:
        return dispatch(system)

    def run(id: str, due_at: str | None = None) -> dict[str, Any]:
        return work_of(system).execute(id, due_at, task_id=current_task_id())

    scan_task(
        initiator=system.initiator, sent="Dispatched due items.", failed="Error in the scan", name=system.scan_task
    )(scan)
    if system.functions.after is not None:
        after_of(system)
    return item_of(system)(run)


def task_of(system: DueDocuments) -> ItemTask:
    """Return the item task of a system, even in a program whose settings do not name the system."""
    return app.tasks[system.item_task] if system.item_task in app.tasks else bind(system)


for _system in systems():
    if isinstance(_system, DueDocuments) and _system.scan_task.startswith(f"{__name__}."):
        bind(_system)
