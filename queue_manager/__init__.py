"""Queue Manager: `System` declares a kind of due work. The rest of this package is the machinery behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from queue_manager.system import System

__all__ = ["System"]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: most modules need none of them."""
    if name == "System":
        from queue_manager.system import System

        return System
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
