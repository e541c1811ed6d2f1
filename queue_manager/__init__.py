"""Queue Manager: declare a kind of due work. The rest of this package is the machinery behind it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from queue_manager.core.retry import RetryPolicy
    from queue_manager.system import System
    from services.due_documents import DueDocuments, Failure, Run, Written
    from services.due_work import Due, DueWork, leases_of
    from tasks.item import item_task
    from tasks.scan import fan_out, scan_task

_MODULES = {
    "Due": "services.due_work",
    "DueDocuments": "services.due_documents",
    "Failure": "services.due_documents",
    "DueWork": "services.due_work",
    "RetryPolicy": "queue_manager.core.retry",
    "Run": "services.due_documents",
    "System": "queue_manager.system",
    "Written": "services.due_documents",
    "fan_out": "tasks.scan",
    "item_task": "tasks.item",
    "leases_of": "services.due_work",
    "scan_task": "tasks.scan",
}
__all__ = [
    "Due",
    "DueDocuments",
    "DueWork",
    "Failure",
    "RetryPolicy",
    "Run",
    "System",
    "Written",
    "fan_out",
    "item_task",
    "leases_of",
    "scan_task",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: most modules need none of them."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import_module("queue_manager.core.imports").require_own_packages()
    return getattr(import_module(_MODULES[name]), name)
