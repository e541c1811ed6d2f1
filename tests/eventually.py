"""Waiting in tests: repeat a check until it is true, instead of sleeping."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal, TypeVar

T = TypeVar("T")


# `...` and not `[]`: a lambda in a loop has the loop's variables as defaults of its parameters.
def eventually(check: Callable[..., T | Literal[False] | None], *, within: float = 60.0, every: float = 0.02) -> T:
    """Return the first truthy value of `check`, asked every `every` seconds.

    Raises AssertionError, naming the check and its last value, after `within` seconds. An AssertionError
    raised by the check itself counts as "not yet"; any other exception is passed on.
    """
    deadline = time.monotonic() + within
    while True:
        last: object
        try:
            value = check()
            if value:
                return value
            last = value
        except AssertionError as error:
            last = error
        if time.monotonic() >= deadline:
            raise AssertionError(f"{_describe(check)} still was {last!r} after {within:g} s")
        time.sleep(every)


def _describe(check: Callable[[], object]) -> str:
    """Where the check was written: a lambda's name says nothing, its line does."""
    code = getattr(check, "__code__", None)
    if code is None:
        return repr(check)
    return f"{check.__qualname__} ({code.co_filename}:{code.co_firstlineno})"
