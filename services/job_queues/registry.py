"""Which function runs the jobs of which name: `@job("send_invoice")`, in modules that `JOBS_IMPORTS` lists."""

from __future__ import annotations

import re
from collections.abc import Callable
from inspect import Parameter, isasyncgenfunction, iscoroutinefunction, isgeneratorfunction, signature
from typing import Any, TypeVar

from queue_manager.core.imports import import_named
from queue_manager.core.settings import settings
from services.job_queues.errors import InvalidJob, UnknownJob

Work = Callable[..., Any]
Registered = TypeVar("Registered", bound=Work)

NAME = re.compile(r"[A-Za-z0-9_.:-]{1,128}")
ACCEPTED_NAME = "accepted are 1 to 128 letters, digits or any of _ . : -"


class Registry:
    """The functions by the names of their jobs."""

    def __init__(self) -> None:
        self._work: dict[str, Work] = {}
        self._is_loaded = False

    def register(self, name: str, work: Registered) -> Registered:
        """Let `work` run the jobs of `name`.

        Raises:
            InvalidJob: the name is malformed or another function's, or `work` cannot be called.
        """
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise InvalidJob("name", f"{name!r:.80} names no job; {ACCEPTED_NAME}")
        if not callable(work):
            raise InvalidJob("work", f"the job {name} needs a function; {work!r:.80} cannot be called")
        if iscoroutinefunction(work) or isgeneratorfunction(work) or isasyncgenfunction(work):
            raise InvalidJob("work", f"the job {name} needs a plain function: calling {_place(work)} would run nothing")
        known = self._work.get(name)
        if known is not None and not _is_same(known, work):
            raise InvalidJob("name", f"the job {name} is {_place(known)} already")
        self._work[name] = work
        return work

    def load(self) -> None:
        """Import the modules that `JOBS_IMPORTS` lists, once.

        Raises:
            ConfigurationError: one of them cannot be imported.
        """
        if self._is_loaded:
            return
        for module in settings().jobs_imports:
            import_named(module, setting="JOBS_IMPORTS")
        self._is_loaded = True

    def work_of(self, name: str) -> Work:
        """Return the function for the jobs of `name`. Raises `UnknownJob`, which lists the known names."""
        self.load()
        work = self._work.get(name)
        if work is None:
            known = ", ".join(sorted(self._work)) or "none; set JOBS_IMPORTS"
            raise UnknownJob(f"There is no job {name!r:.140}; the jobs are: {known}")
        return work

    def names(self) -> list[str]:
        self.load()
        return sorted(self._work)


def wants_run(work: Work) -> bool:
    """Tell whether the function has a keyword parameter `run`, for which it gets its `Run`."""
    try:
        wanted = signature(work).parameters.get("run")
    except ValueError:  # some that are written in C do not tell
        return False
    return wanted is not None and wanted.kind in (Parameter.KEYWORD_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


def _is_same(known: Work, work: Work) -> bool:
    """Tell whether both are one function, also when its module is imported and is the program that was started."""
    is_program = "__main__" in (getattr(known, "__module__", ""), getattr(work, "__module__", ""))
    is_same_code = getattr(known, "__code__", known) == getattr(work, "__code__", work)
    return _place(known) == _place(work) or (is_program and is_same_code)


def _place(work: Work) -> str:
    return f"{getattr(work, '__module__', '?')}.{getattr(work, '__qualname__', repr(work))}"


registry = Registry()


def job(name: str) -> Callable[[Registered], Registered]:
    """Register a function for the jobs of `name`.

    It is called with the job's arguments and, if it has a keyword parameter `run`, with its `Run`. When it returns, the
    job is done; what it raises is a failure, which is tried again for ever, a `PermanentError` only by a person or a
    take-over. It may be called again after it ran: what it does must be harmless when repeated.
    """
    return lambda work: registry.register(name, work)
