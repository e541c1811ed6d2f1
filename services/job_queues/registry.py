"""Registry of job functions and repetitions by name: `@job("send_invoice")`, in modules listed in `JOBS_IMPORTS`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from inspect import Parameter, Signature, signature
from typing import Any, TypeVar

from models.database import Document
from queue_manager.core.errors import AppError
from queue_manager.core.functions import is_plain, qualified_name
from queue_manager.core.imports import import_named
from queue_manager.core.settings import settings
from queue_manager.core.wording import did_you_mean
from services.job_queues.fields import MAX_DELAY, InvalidJob, checked_name
from services.job_queues.job_run import JobRun
from services.job_queues.repetition import checked_repetition

JobFunction = Callable[..., Any]
Function = TypeVar("Function", bound=JobFunction)


class UnknownJob(AppError):
    """There is no such job, or no function is registered for its name."""


class Registry:
    """Job functions by name."""

    def __init__(self) -> None:
        self._registered: dict[str, RegisteredJob] = {}
        self._is_loaded = False

    def register(
        self,
        name: str,
        function: Function,
        *,
        every: timedelta | None = None,
        cron: str | None = None,
        timeout: timedelta | None = None,
    ) -> Function:
        """Register `function` for the jobs of `name`, its time limit, and the repetition of one job without arguments.

        Raises:
            InvalidJob: the name is invalid or taken, `function` is not a plain function, or it cannot be repeated so.
        """
        known = self._registered.get(checked_name(name))
        if not callable(function):
            raise InvalidJob("function", f"the job {name} needs a function; {function!r:.80} is not callable")
        if not is_plain(function):
            found = qualified_name(function)
            raise InvalidJob(
                "function", f"the job {name} needs a plain function; {found} is a coroutine or a generator"
            )
        if known is not None and not _is_same(known.function, function):
            raise InvalidJob("name", f"the job {name} is already registered for {qualified_name(known.function)}")
        if timeout is not None and not (isinstance(timeout, timedelta) and timedelta(0) < timeout <= MAX_DELAY):
            limit = f"above zero and at most {MAX_DELAY.days} days"
            raise InvalidJob("timeout", f"must be a timedelta {limit}, not {timeout!r:.80}")
        new = RegisteredJob(function, repetition=checked_repetition(every, cron), timeout=timeout)
        if keyword := new.required_keyword():
            found = qualified_name(function)
            raise InvalidJob("function", f"the job {name} passes arguments by position; {found} requires {keyword}=")
        if new.repetition:
            new.check_arguments(name, ())
        self._registered[name] = new
        return function

    def load(self) -> None:
        """Import the modules listed in `JOBS_IMPORTS`, once.

        Raises:
            ConfigurationError: one of them cannot be imported.
        """
        if self._is_loaded:
            return
        for module in settings().jobs_imports:
            import_named(module, setting="JOBS_IMPORTS")
        self._is_loaded = True

    def find(self, name: str) -> RegisteredJob:
        """Return what is registered for the jobs of `name`. Raises `UnknownJob`, which lists the known names."""
        self.load()
        found = self._registered.get(name)
        if found is None:
            modules = ", ".join(settings().jobs_imports)
            missing = f"none; {modules} registers none" if modules else "none; set JOBS_IMPORTS"
            known = ", ".join(self.names()) or missing
            near = did_you_mean(name, self._registered)
            raise UnknownJob(f"There is no job {name!r:.140}{near}; the jobs are: {known}")
        return found

    def timeout_for(self, name: str) -> timedelta | None:
        """Return the time limit that is declared for `name`; `None` also if no function is registered."""
        self.load()
        return self._registered[name].timeout if name in self._registered else None

    def names(self) -> list[str]:
        self.load()
        return sorted(self._registered)

    def repetitions(self) -> dict[str, Document]:
        """Return the declared repetitions by name, as `checked_repetition` returns them."""
        self.load()
        return {name: one.repetition for name, one in self._registered.items() if one.repetition}


def _takes_run(function: JobFunction) -> bool:
    """Return True if the function has a keyword parameter `run`, which receives its `JobRun`."""
    try:
        parameter = signature(function).parameters.get("run")
    except ValueError:  # some functions written in C have no signature
        return False
    return parameter is not None and parameter.kind in (Parameter.KEYWORD_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


class RegisteredJob:
    """The function of a name, how it is called, its repetition, which may be empty, and its time limit.

    A decorator is called itself, not the function that it wraps, because it may add or remove arguments.
    """

    def __init__(self, function: JobFunction, *, repetition: Document, timeout: timedelta | None) -> None:
        self.function, self.repetition, self.timeout = function, repetition, timeout
        self._takes_run = _takes_run(function)
        try:
            self._signature: Signature | None = signature(function, follow_wrapped=False)
        except ValueError:  # some functions written in C have no signature
            self._signature = None

    def required_keyword(self) -> str | None:
        """Return a parameter without a default that can only be given by keyword, except `run`."""
        parameters = self._signature.parameters.values() if self._signature else ()
        required = (one for one in parameters if one.kind is Parameter.KEYWORD_ONLY and one.default is Parameter.empty)
        return next((one.name for one in required if one.name not in self._options(None)), None)

    def check_arguments(self, name: str, arguments: Sequence[Any]) -> None:
        """Raise `InvalidJob`, which names the parameter, if the function cannot be called with these arguments."""
        if self._signature is None:
            return
        try:
            self._signature.bind(*arguments, **self._options(None))
        except TypeError as error:
            plain = [one.replace(annotation=Parameter.empty) for one in self._signature.parameters.values()]
            raise InvalidJob("arguments", f"{error}; the job {name} takes {Signature(plain)}") from None

    def call(self, arguments: Sequence[Any], run: JobRun) -> Any:
        """Call the function, with its run if it has a parameter for it."""
        return self.function(*arguments, **self._options(run))

    def _options(self, run: JobRun | None) -> dict[str, Any]:
        return {"run": run} if self._takes_run else {}


def _is_same(known: JobFunction, function: JobFunction) -> bool:
    """Return True if both are one function, even if its module is imported and run as `__main__`."""
    is_program = "__main__" in (getattr(known, "__module__", ""), getattr(function, "__module__", ""))
    is_same_code = getattr(known, "__code__", known) == getattr(function, "__code__", function)
    is_same_name = qualified_name(known) == qualified_name(function)
    is_named = "<" not in qualified_name(function)  # not `<lambda>`, nor within a function
    return (is_same_name and is_named) or (is_same_code and (is_same_name or is_program))


registry = Registry()


def job(
    name: str, *, every: timedelta | None = None, cron: str | None = None, timeout: timedelta | None = None
) -> Callable[[Function], Function]:
    """Register a function for the jobs of `name`.

    `every` or `cron` declares a repeating job without arguments, which the dispatch stores once; see `jobs.run`.
    `timeout` is the time limit of an attempt; the default is JOBS_TIMEOUT_SECONDS. After it `run.is_cancelled` is true
    and `run.progress` raises; if the function does not stop within JOBS_GRACE_SECONDS, its process is killed.

    It is called with the job's arguments and, if it has a keyword parameter `run`, with its `JobRun`. The job succeeds
    when the function returns, and fails when it raises. A failed job is retried without limit; after a `PermanentError`
    only by an operator or a leader takeover. The function may run more than once for a job, so it must be idempotent.
    """
    if not isinstance(name, str):
        raise InvalidJob("name", f'write `@job("…")`, with the name of the jobs, not {name!r:.80}')
    return lambda function: registry.register(name, function, every=every, cron=cron, timeout=timeout)
