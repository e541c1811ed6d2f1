"""Item tasks whose items are done together, while each ends as a task of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeVar

from celery import Task

from models.database import OUTAGES
from queue_manager.core.clock import seconds
from queue_manager.core.errors import NotYetDue, PermanentError, reason
from queue_manager.core.log import get_logger
from queue_manager.leases import Attempts
from queue_manager.telemetry import counters
from services.due_work import DueItem, DueWork

WAIT_IN_PLACE = seconds(0.5)  # an item this early is waited for; a later one goes back to the broker

log = get_logger("QM/tasks")
T = TypeVar("T")


class Verdict(Enum):
    """What a group may find instead of an outcome."""

    ALONE = "alone"
    """An earlier process did not survive this item: a process of its own executes it."""


@dataclass(kw_only=True)
class Group:
    """Items that are done together, while their tasks end."""

    found: list[Any] = field(default_factory=list)
    """The outcome of the one whose task runs now, until that asks."""
    attempts: Attempts
    outage: Exception | None = None
    """Why MongoDB cannot be asked."""

    def record(self, item: DueItem, result: Any) -> Any:
        """Record that an item succeeded; return its result."""
        self.attempts.done.add(item.lease)
        return result

    def ask(self, act: Callable[[], T]) -> T:
        """Do what needs MongoDB. Only the first finds out, by waiting, that it is away."""
        if self.outage is not None:
            raise self.outage.with_traceback(None)
        try:
            return act()
        except OUTAGES as error:
            self.outage = error
            raise


class GroupedTask(Task):
    """A task type whose instances may be executed as a batch by the `…_many` of its `work`: `batching.strategy`."""

    abstract = True
    work: Callable[[], DueWork]
    Strategy = "queue_manager.batching.strategy:strategy"
    queue_name: str
    _group: Group | None = None

    def item(self, token: str, args: Any, kwargs: Any) -> DueItem:
        """Return the item that the arguments name. Raises PermanentError."""
        raise NotImplementedError

    def found(self) -> Any:
        """Return what was found for the item whose task runs now, once; `None`: nothing."""
        return self._group.found.pop() if self._group is not None and self._group.found else None

    def ask(self, act: Callable[[], Any]) -> Any:
        """Do what needs MongoDB; within a group, unless it is known to be away."""
        return act() if self._group is None else self._group.ask(act)

    @contextmanager
    def done_together(self, group: Sequence[tuple[str, Any, Any]]) -> Iterator[list[Any]]:
        """Do items at once, each (token, args, kwargs); give what was found for each, `None` for one left to its task.

        Within, `ending_with` says which task runs, and MongoDB is waited for once if it is away.
        """
        items = [self._named(*given) for given in group]
        named = [item for item in items if item is not None]
        with counters.batched(), self.work().attempts(named) as attempts:
            self._group = Group(attempts=attempts)
            try:
                outcomes = self._do_together(named, attempts.suspects, self._group)
                attempts.done.update(
                    item.lease
                    for item, outcome in zip(named, outcomes, strict=True)
                    if outcome is not None and outcome is not Verdict.ALONE
                )
                found = iter(outcomes)
                yield [None if item is None else next(found) for item in items]
            finally:
                self._group = None

    @contextmanager
    def ending_with(self, outcome: Any) -> Iterator[None]:
        """Have the task that runs within end with `outcome`, unless that is `None`."""
        assert self._group is not None
        self._group.found = [] if outcome is None else [outcome]
        try:
            yield
        finally:
            self._group.found = []

    def _do_together(self, named: list[DueItem], suspects: set[int], group: Group) -> Sequence[Any]:
        if not suspects:
            return self._do(named, group)
        outcomes = iter(self._do([item for at, item in enumerate(named) if at not in suspects], group))
        return [Verdict.ALONE if at in suspects else next(outcomes) for at in range(len(named))]

    def _do(self, items: list[DueItem], group: Group) -> Sequence[Any]:
        if not items:
            return []
        nothing = [None] * len(items)
        try:
            outcomes = group.ask(lambda: self._many_when_due(items))
        except OUTAGES:
            return nothing  # each fails by it, and is tried again
        except Exception as error:
            log.warning("A group failed as a whole; its items are done one by one", task=self.name, error=reason(error))
            return nothing
        if len(outcomes) != len(items):
            log.error("A group is done one by one: it has another number of outcomes than of items", task=self.name)
            return nothing
        return outcomes

    def _many_when_due(self, items: list[DueItem]) -> Sequence[Any]:
        many = self.work().many
        while many is not None:
            try:
                return many(items)
            except NotYetDue as early:
                if early.remaining > WAIT_IN_PLACE:
                    raise
                time.sleep(early.remaining.total_seconds())
        return [None] * len(items)

    def _named(self, token: str, args: Any, kwargs: Any) -> DueItem | None:
        """Return the item that the arguments name, `None` for what its own task will refuse."""
        try:
            return self.item(token, args, kwargs)
        except PermanentError:
            return None
