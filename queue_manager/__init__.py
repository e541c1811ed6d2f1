"""Queue Manager: systems of due work, job queues, and the message queue.

The names below are public. The modules of this package are the machinery behind them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from models.database import collection
    from models.document_id import id_text, read_id
    from queue_manager.core.errors import Contended, PermanentError
    from queue_manager.core.retry import RetryPolicy
    from queue_manager.system import System
    from services.due_documents import CallAgain, DueDocuments, Failure, Run, Written
    from services.due_work import Due, DueWork, leases_of
    from services.job_queues import DuplicateJob, InvalidJob, JobCancelled, JobRun, UnknownJob, WrongState, job
    from services.job_queues.jobs import jobs
    from services.message_queue import (
        InvalidMessage,
        LockLost,
        MessageTooLarge,
        QueueFull,
        QueueUnavailable,
        UnknownMessage,
        async_message_queue,
        message_queue,
    )
    from tasks.item import item_task
    from tasks.scan import fan_out, scan_task

_NAMES = {
    "models.database": ("collection",),
    "models.document_id": ("id_text", "read_id"),
    "queue_manager.core.errors": ("Contended", "PermanentError"),
    "queue_manager.core.retry": ("RetryPolicy",),
    "queue_manager.system": ("System",),
    "services.due_documents": ("CallAgain", "DueDocuments", "Failure", "Run", "Written"),
    "services.due_work": ("Due", "DueWork", "leases_of"),
    "services.job_queues": (
        *("DuplicateJob", "InvalidJob", "JobCancelled", "JobRun", "UnknownJob", "WrongState"),
        *("job", "jobs"),
    ),
    "services.message_queue": (
        *("InvalidMessage", "LockLost", "MessageTooLarge", "QueueFull", "QueueUnavailable", "UnknownMessage"),
        *("async_message_queue", "message_queue"),
    ),
    "tasks.item": ("item_task",),
    "tasks.scan": ("fan_out", "scan_task"),
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names}
__all__ = [
    "CallAgain",
    "Contended",
    "Due",
    "DueDocuments",
    "DueWork",
    "DuplicateJob",
    "Failure",
    "InvalidJob",
    "InvalidMessage",
    "JobCancelled",
    "JobRun",
    "LockLost",
    "MessageTooLarge",
    "PermanentError",
    "QueueFull",
    "QueueUnavailable",
    "RetryPolicy",
    "Run",
    "System",
    "UnknownJob",
    "UnknownMessage",
    "Written",
    "WrongState",
    "async_message_queue",
    "collection",
    "fan_out",
    "id_text",
    "item_task",
    "job",
    "jobs",
    "leases_of",
    "message_queue",
    "read_id",
    "scan_task",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: most modules need none of them."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import_module("queue_manager.core.imports").require_own_packages()
    return getattr(import_module(_MODULES[name]), name)
