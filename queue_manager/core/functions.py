"""Functions that users register: plain ones, whose work is done when they return."""

from __future__ import annotations

from inspect import (
    isasyncgen,
    isasyncgenfunction,
    isawaitable,
    iscoroutine,
    iscoroutinefunction,
    isgenerator,
    isgeneratorfunction,
)
from typing import TypeVar

from queue_manager.core.errors import PermanentError

T = TypeVar("T")


def is_plain(function: object) -> bool:
    """Return True if it can be called and is not known to return a coroutine or a generator."""
    return callable(function) and not any(
        is_lazy(function) for is_lazy in (iscoroutinefunction, isgeneratorfunction, isasyncgenfunction)
    )


def require_done(result: T, what: str) -> T:
    """Return the result of a call.

    Raises PermanentError for a coroutine or a generator, of which nothing was executed yet.
    """
    if isawaitable(result) or isgenerator(result) or isasyncgen(result):
        if iscoroutine(result):
            result.close()
        kind = type(result).__name__
        raise PermanentError(f"{what} returned a {kind}, so nothing was done: it must be a plain function")
    return result
