"""Functions that users register: plain ones, whose work is done when they return."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import (
    isasyncgen,
    isasyncgenfunction,
    isawaitable,
    iscoroutine,
    iscoroutinefunction,
    isgenerator,
    isgeneratorfunction,
    signature,
)
from os import _exit as exit_at_once
from typing import Any, TypeVar

from billiard.common import terminate_handler_fired
from celery.exceptions import WorkerShutdown, WorkerTerminate

from queue_manager.core.errors import FunctionExited, PermanentError, typed_reason

T = TypeVar("T")


def is_plain(function: object) -> bool:
    """Return True if it can be called and is not known to return a coroutine or a generator."""
    return callable(function) and not any(
        is_lazy(function) for is_lazy in (iscoroutinefunction, isgeneratorfunction, isasyncgenfunction)
    )


def qualified_name(function: object) -> str:
    """Return the module and the name of a function, for errors; the text of an object that has none."""
    name = getattr(function, "__qualname__", None)
    return repr(function) if name is None else f"{getattr(function, '__module__', '?')}.{name}"


def takes_one(function: Callable[..., Any]) -> bool:
    """Return True unless it is known that a function cannot be called with one argument."""
    try:
        signature(function).bind(None)
    except TypeError:
        return False
    except ValueError:  # some functions written in C have no signature
        return True
    return True


@contextmanager
def contained() -> Iterator[None]:
    """Keep what a function does to its process within the block.

    An error that would end the process, such as `SystemExit`, is raised as `FunctionExited`, which fails the attempt
    like other errors; Ctrl-C in a command is raised as it is, and ends the command. A process that the function forked
    ends with the block: it must not go on as a worker.
    """
    pid = os.getpid()
    try:
        yield
    except (Exception, WorkerShutdown, WorkerTerminate):
        _end_fork(pid, 1)
        raise
    except BaseException as error:
        _end_fork(pid, error.code if isinstance(error, SystemExit) and isinstance(error.code, int) else 1)
        if terminate_handler_fired() or _is_ctrl_c(error):
            raise
        raise FunctionExited(typed_reason(error)) from error
    _end_fork(pid, 0)


def _is_ctrl_c(error: BaseException) -> bool:
    """Return True for Ctrl-C in a command. Workers handle or ignore the signal: there, a function raised the error."""
    return isinstance(error, KeyboardInterrupt) and signal.getsignal(signal.SIGINT) is signal.default_int_handler


def _end_fork(pid: int, status: int) -> None:
    if os.getpid() != pid:
        exit_at_once(status)


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
