"""Queue Manager: declare a kind of due work. The rest of this package is the machinery behind it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from queue_manager.core.retry import RetryPolicy
    from queue_manager.system import System
    from services.due_documents import DueDocuments, Failure, Run, Written

__all__ = ["DueDocuments", "Failure", "RetryPolicy", "Run", "System", "Written"]

_MODULES = {"System": "queue_manager.system", "RetryPolicy": "queue_manager.core.retry"}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: most modules need none of them."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES.get(name, "services.due_documents")), name)
