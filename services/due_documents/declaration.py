"""The declaration of a system whose items are documents that fall due at a date, in one file.

    trials = DueDocuments(
        name="trial-end",
        title="Trials",
        description="Trial accounts, expired when their trial is over.",
        collection="accounts",
        due="trial_ends_at",
        where={"status": "trial"},
        every=timedelta(seconds=10),
    )

    @trials.item(retry=RetryPolicy(max_attempts=5, base=timedelta(seconds=1)))
    def end_trial(account: dict) -> dict:
        return {"$set": {"status": "expired"}}

Guarantee: for each due time the returned update is applied once, never early, and only to a document that has not
changed since the function saw it. The function may run several times; `after` is called at least once per document.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import update_wrapper
from importlib import import_module
from inspect import Parameter, signature
from math import inf
from typing import Any, ClassVar, Generic, Literal, ParamSpec, TypeVar

import bson
from bson import Regex
from pymongo import IndexModel

from models.database import Document, value_at
from models.document_id import shown_id
from queue_manager.core.clock import EPOCH, seconds, to_iso
from queue_manager.core.errors import AppError, ConfigurationError
from queue_manager.core.functions import is_plain, qualified_name, takes_one
from queue_manager.core.retry import RetryPolicy
from queue_manager.explanation import TimelineEvent
from queue_manager.system import TASK_NAME, System, SystemStats

ReturnedUpdate = Document | list[Document] | None
F = TypeVar("F", bound=Callable[..., Any])
Params = ParamSpec("Params")
R = TypeVar("R")
A = TypeVar("A", bound=Callable[[list["Written"]], object])
G = TypeVar("G", bound=Callable[["Failure"], Any])

DEFAULT_RETRY = RetryPolicy(max_attempts=5, base=seconds(1))
NO_DATE = "no date"
"""The state of a document without a date, in words."""
_OPERATORS = {"$eq", "$exists", "$gt", "$gte", "$in", "$lt", "$lte", "$type"}
_KINDS: dict[type, str] = {list: "a list", str: "a string", dict: "a document", int: "a number", float: "a number"}
_COLLECTION = re.compile(r"(?!system\.|\.)[^$\0]*[^$\0.]")
_PATH = re.compile(r"[^.$\0][^.\0]*(\.[^.$\0][^.\0]*)*")


@dataclass(frozen=True, kw_only=True)
class Run:
    """The attempt, for a function whose second parameter is `run`."""

    id: str
    """The id of the task; in a batch that of its first task, which all its items share."""
    now: datetime
    """The database server's time, the same for the whole batch."""


@dataclass(frozen=True, kw_only=True)
class Written:
    """A document that was written, as `after` gets it."""

    id: Any
    due_at: datetime
    """With the id, the idempotency key of a side effect."""
    written_at: datetime
    document: Document
    """The fields of `DueDocuments.fields` as the write left them, if the update has only `$set` and `$unset` of whole
    fields. Otherwise, and in a repeated call, as they are now; only the id if the document was deleted."""


class CallAgain(AppError):
    """Raised by `after` to be called again with the same documents after a wait. This is not a failure."""

    def __init__(self, wait: timedelta) -> None:
        super().__init__(f"must be called again in {wait.total_seconds():.0f} s")
        self.wait = wait


@dataclass(frozen=True, kw_only=True)
class Failure:
    """An item whose last attempt failed, as `failed` gets it."""

    id: Any
    due_at: datetime
    error: str
    failures: int
    """How many times in a row all attempts failed, including this time."""
    retry_at: datetime


class ItemFunction(Generic[Params, R]):
    """The function of a system's items, which is also their Celery task.

    Called, it is the function itself, so that a unit test needs nothing else. `delay(id)` sends the task, which acts on
    the document if it is due then; ids other than ObjectIds are given as extended JSON.
    """

    def __init__(self, function: Callable[Params, R], system: DueDocuments) -> None:
        if not is_plain(function) or not hasattr(function, "__qualname__") or not _takes_document(function):
            raise ConfigurationError(
                f"System {system.name!r}: {qualified_name(function):.100} must be a plain function of the document, "
                "neither `async` nor a generator, with a second parameter `run` if it needs one"
            )
        self.function, self._system = function, system
        self.wants_run = len(signature(function).parameters) == 2
        update_wrapper(self, function)

    def __call__(self, *args: Params.args, **kwargs: Params.kwargs) -> R:
        return self.function(*args, **kwargs)

    def delay(self, *args: Any, **kwargs: Any) -> Any:
        """Send the task. Returns Celery's AsyncResult."""
        return self.task.delay(*args, **kwargs)

    def apply_async(self, *args: Any, **kwargs: Any) -> Any:
        return self.task.apply_async(*args, **kwargs)

    @property
    def task(self) -> Any:
        """The Celery task. Raises ConfigurationError for a function of a script, which no worker imports."""
        name = str(self._system.item_task)
        if name.startswith("__main__."):
            raise ConfigurationError(
                f"System {self._system.name!r}: no worker knows the task {name!r}, because its function is defined in "
                "the script that runs: move the declaration into a module, and import it here"
            )
        # Imported at the first use, so that a declaration can be imported without Celery.
        return import_module("tasks.due_documents").task_of(self._system)


@dataclass(kw_only=True)
class Functions:
    """The functions of one system, as its decorators collect them."""

    item: ItemFunction[..., Any] | None = None
    retry: RetryPolicy = DEFAULT_RETRY
    after: Callable[[list[Written]], object] | None = None
    failed: Callable[[Failure], ReturnedUpdate] | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class DueDocuments(System):
    """A system whose items are documents of one collection, due when a date of theirs has come."""

    scan_task: str = ""
    stats_server: str = "MongoDB or Redis"
    collection: str
    due: str
    """Path of the date."""
    where: Mapping[str, Any] = field(default_factory=dict)
    """Condition on a due document besides its date. It is part of the index, so it may use only equality,
    `$exists: True`, `$gt`, `$gte`, `$lt`, `$lte`, `$in`, `$type`, `$and` and `$or`."""
    fields: Sequence[str] | None = None
    """Fields that the function and `after` see besides the id and the date; `None`: all."""
    shown: Sequence[str] = ()
    """Fields for the title of an item on the page: the first one that has a value."""
    initiator: str = ""
    """The name of the logger; by default `QM/<name>`."""
    batch: bool = True
    """Whether a worker may call the function for many documents in one transaction: `False` if it does I/O."""
    catch_up: Literal["once", "all"] = "once"
    """After an outage, a function that sets a later date takes effect once for all missed dates, or once for each."""
    done: Literal["unset"] | None = None
    """`unset`: the date is removed with every update, which may then be `{}`."""
    max_rate: float | None = None
    """The maximum number of items per second."""
    functions: Functions = field(default_factory=Functions, repr=False)

    def __post_init__(self) -> None:
        word = str(self.name).replace("-", "_")
        self._default("scan_task", f"tasks.due_documents.scan_{word}")
        self._default("item_task", f"tasks.due_documents.{word}")
        self._default("queue", self.name)
        self._default("initiator", f"QM/{self.name}")
        from services.due_documents import implementation  # here, because it imports the declaration

        for name, function in implementation(self).items():
            object.__setattr__(self, name, function)
        super().__post_init__()
        is_path = _is_path(self.due) and self.due != "_id"
        self._require(is_path, "due", "the path of a field, such as trial_ends_at or trial.ends_at")
        self._require(self.catch_up in ("once", "all"), "catch_up", "'once' or 'all'")
        self._require(self.done in ("unset", None), "done", "'unset' or None")
        is_rate = self.max_rate is None or (isinstance(self.max_rate, int | float) and 0 < self.max_rate < inf)
        self._require(is_rate, "max_rate", "a number of items per second, above zero")
        self._require(_COLLECTION.fullmatch(self.collection), "collection", "the name of a collection")
        self._require(
            _can_be_indexed(self.where, self.due),
            "where",
            f'a condition such as {{"status": "trial"}} on other fields than the date and `_id`, with no operators but '
            f"{', '.join(sorted(_OPERATORS))}, $and and $or",
        )
        for name in ("fields", "shown"):
            value = getattr(self, name)
            is_list = value is None or (isinstance(value, list | tuple) and all(map(_is_path, value)))
            self._require(is_list, name, 'a list of fields such as ["status"]')

    def item(
        self, retry: RetryPolicy = DEFAULT_RETRY, *, task: str | None = None
    ) -> Callable[[Callable[Params, R]], ItemFunction[Params, R]]:
        """Declare the function of the items.

        It gets a document and returns an update, as operators or a pipeline, after which the document is not due.

        Args:
            retry: the number of attempts, and the waits between them; an outage of a server does not use one up.
            task: the registered name of the Celery task; by default the module and the name of the function.
        """

        if callable(retry):
            raise ConfigurationError(f"System {self.name!r}: write `@….item()`, with parentheses")
        if not isinstance(retry, RetryPolicy):
            raise ConfigurationError(f"System {self.name!r}: retry={retry!r:.100} must be a RetryPolicy")

        def decorate(function: Callable[Params, R]) -> ItemFunction[Params, R]:
            if self.functions.item is not None:
                raise ConfigurationError(f"System {self.name!r}: it has an item function already")
            item = ItemFunction(function, self)
            self.functions.item, self.functions.retry = item, retry
            named = task or f"{function.__module__}.{function.__name__}"
            object.__setattr__(self, "item_task", named)
            is_name = task is None or TASK_NAME.fullmatch(task)
            self._require(is_name, "item_task", "a task's name, such as billing.trials.end_trial")
            return item

        return decorate

    def after(self, function: A) -> A:
        """Have `function` called with the documents that were written (`Written`), at least once for each."""
        self.functions.after = self._checked_hook(function, self.functions.after, "after")
        return function

    def failed(self, function: G) -> G:
        """Have `function` called with a `Failure`; the update that it returns is written to the document, if any."""
        self.functions.failed = self._checked_hook(function, self.functions.failed, "failed")
        return function

    def _checked_hook(self, function: F, known: object, name: str) -> F:
        if known is not None:
            raise ConfigurationError(f"System {self.name!r}: it has a function `{name}` already")
        if not is_plain(function) or not takes_one(function):
            raise ConfigurationError(
                f"System {self.name!r}: `{name}` must be a plain function of one argument, neither `async` nor a "
                f"generator, unlike {qualified_name(function):.100}"
            )
        return function

    @property
    def imported_tasks(self) -> Sequence[str]:
        """The tasks whose modules a worker imports. That of the item function is in `QM_SYSTEMS`."""
        return [self.scan_task]

    def check(self) -> None:
        super().check()
        if self.functions.item is None:
            raise ConfigurationError(f"System {self.name!r} has no item function: decorate one with `@….item()`")

    @property
    def read_fields(self) -> Sequence[str] | None:
        """The fields that are read of a due document besides its id; `None`: all."""
        return None if self.fields is None else (self.due, *self.fields)

    # For subclasses

    until: ClassVar[str] = "Due"
    """The text before a due time in the future, such as `Snoozed until`."""
    later: ClassVar[str] = "not due"
    """The state of a document whose due time is in the future, in words."""
    not_found: ClassVar[str] = "Not found"
    not_due: ClassVar[str] = "Not due yet"
    changed: ClassVar[str] = "Changed"
    """The `reason` in the results of items that were skipped."""
    arguments: ClassVar[tuple[str, str]] = ("id", "due_at")
    """The names of the arguments of the item's task in errors."""

    def malformed(self, document: Document) -> str | None:
        """Return what is wrong with the date of a document that can never fall due, or `None`."""
        value: Any = document
        keys = self.due.split(".")
        for depth, key in enumerate(keys):
            value = value.get(key)
            if value is None:
                return None
            path, is_last = ".".join(keys[: depth + 1]), depth == len(keys) - 1
            if not isinstance(value, datetime if is_last else dict):
                kind = _KINDS.get(type(value), f"a value of the type {type(value).__name__}")
                return f"its {path} is malformed: it is {kind}, and must be {'a date' if is_last else 'a document'}"
            if isinstance(value, dict) and value.get("0") is not None:  # see `DueCollection._indexed`
                return f"its {path} is malformed: it has a field named 0, like a list"
        return f"its {self.due} is malformed: it is before 1970" if value < EPOCH else None

    def describe_idle(self, document: Document, now: datetime) -> tuple[str, str]:
        """Return the state of a document without a date, in words, and a sentence about it."""
        return NO_DATE, f"It has no date at {self.due}, so it is not due."

    def past(self, document: Document) -> Iterable[TimelineEvent]:
        """Yield the events of the past that the document contains."""
        return ()

    @property
    def flag_field(self) -> str | None:
        """The field that is true while a document is dispatched, for other programs; `None`: there is none."""
        return None

    def result(self, document: Document, *, written_at: datetime) -> dict[str, Any]:
        """Return the result of an item whose document was written. `document` is the document before the write."""
        due_at: datetime = value_at(document, self.due)
        return {"success": True, "id": shown_id(document["_id"]), "due_at": to_iso(due_at)}

    def log_written(self, count: int) -> None:
        """Log the number of documents that one transaction wrote. By default, nothing is logged."""

    def more_indexes(self) -> Sequence[IndexModel]:
        """Return indexes of the collection in addition to that of due documents."""
        return ()

    def add_stats(self, stats: SystemStats) -> None:
        """Add to the statistics."""

    def title_of(self, document: Document) -> str:
        values = (value_at(document, path) for path in self.shown)
        return next((str(value) for value in values if value is not None), "")


def _takes_document(function: Callable[..., Any]) -> bool:
    """Return True if a function takes a document, and at most `run` besides it."""
    try:
        first, *others = signature(function).parameters.values()
    except ValueError:  # it has no parameters, or is written in C
        return False
    if first.kind not in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD):
        return False
    by_name = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    return not others or (len(others) == 1 and others[0].name == "run" and others[0].kind in by_name)


def _is_path(value: object) -> bool:
    """Return True if a value is the path of a field."""
    return isinstance(value, str) and _PATH.fullmatch(value) is not None


def _can_be_indexed(where: Any, due: str) -> bool:
    """Return True if a partial index accepts the condition, and the condition is not about the date."""
    if not isinstance(where, Mapping):
        return False
    return all(
        (isinstance(value, list) and value != [] and all(_can_be_indexed(part, due) for part in value))
        if path in ("$and", "$or")
        else _is_plain(path, value) and path != due and not path.startswith(f"{due}.")
        for path, value in where.items()
    )


def _is_plain(path: Any, value: Any) -> bool:
    if not _is_path(path) or path.partition(".")[0] == "_id":
        return False
    operators = {*value} if isinstance(value, Mapping) and any(str(name).startswith("$") for name in value) else set()
    choices = value["$in"] if "$in" in operators else [value]
    if not operators <= _OPERATORS or not isinstance(choices, list) or choices == []:
        return False
    if any(isinstance(one, re.Pattern | Regex) for one in choices):
        return False
    try:
        bson.encode({path: value})
    except Exception:  # bson raises many types of errors
        return False
    return not (operators and value.get("$exists", True) is not True)
