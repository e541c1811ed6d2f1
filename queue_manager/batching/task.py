"""Item tasks that are executed as a batch and complete one by one."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from inspect import Parameter, Signature, signature
from typing import Any, TypeVar

from celery import Task

from models import database
from models.database import estimated_now, is_outage
from queue_manager.core.clock import seconds, unix_ms
from queue_manager.core.errors import ErrorText, NotYetDue, PermanentError, reason
from queue_manager.core.functions import contained, require_done
from queue_manager.core.log import get_logger
from queue_manager.items import DueItem, Verdict, is_result
from queue_manager.leases import Attempts
from queue_manager.telemetry import counters, latency
from services.due_work import DueWork

PING_TIMEOUT = seconds(1)
WAIT_IN_PLACE = seconds(0.5)  # an item this early is waited for; a later one goes back to the broker

PoolRequest = tuple[str, dict[str, Any], Any]
"""A task as sent to the pool: id, headers, and the decoded body (args, kwargs, embedded options)."""

log = get_logger("QM/tasks")
T = TypeVar("T")


@dataclass(kw_only=True)
class Batch:
    """A batch while its tasks complete."""

    attempts: Attempts
    outcome: Any = None
    """The outcome for the task that completes now, until the task reads it; `None` if there is none."""
    outage: Exception | None = None
    """The error by which MongoDB is unavailable."""
    broker_error: ErrorText | None = None
    """Why the broker took no message of one of its tasks. The tasks after it publish nothing, and are requeued."""

    @cached_property
    def is_database_away(self) -> bool:
        """Whether MongoDB does not answer, asked once for all items of the batch."""
        return not database.answers(PING_TIMEOUT)

    def use_database(self, act: Callable[[], T]) -> T:
        """Call `act`, which needs MongoDB. Only the first caller waits for a server that is unavailable."""
        if self.outage is not None:
            raise self.outage.with_traceback(None)
        try:
            return act()
        except database.Error as error:
            if is_outage(error):
                self.outage = error
            raise


class BatchedTask(Task):
    """A task type whose instances may be executed as a batch, by the `batch_function` of `work`; see `strategy`."""

    abstract = True
    work: Callable[[], DueWork]
    Strategy = "queue_manager.batching.strategy:strategy"
    queue_name: str
    _batch: Batch | None = None

    @property
    def has_batch_outcome(self) -> bool:
        """Whether the batch found an outcome for the task that completes now."""
        return self._batch is not None and self._batch.outcome is not None

    def batch_outcome(self) -> Any:
        """Return the outcome that the batch found for the task that completes now, once; `None` if there is none."""
        if self._batch is None:
            return None
        outcome, self._batch.outcome = self._batch.outcome, None
        return outcome

    def complete_next_with(self, outcome: Any) -> None:
        """Let the next task of the batch that runs complete with `outcome`, unless it is `None`."""
        assert self._batch is not None
        self._batch.outcome = outcome

    def use_database(self, act: Callable[[], Any]) -> Any:
        """Call `act`, which needs MongoDB; within a batch, only while MongoDB is not known to be away."""
        return act() if self._batch is None else self._batch.use_database(act)

    def is_database_away(self) -> bool:
        """Return True if MongoDB does not answer now."""
        return not database.answers(PING_TIMEOUT) if self._batch is None else self._batch.is_database_away

    @contextmanager
    def execute_batch(self, requests: Sequence[PoolRequest]) -> Iterator[list[Any]]:
        """Execute items as a batch; yield the outcomes, `None` for an item without one.

        Within the block, the tasks complete one after another. During an outage of MongoDB, only the first one waits.
        """
        work, began = self.work(), time.monotonic()
        items = [self.read_item(work, task_id, args, kwargs) for task_id, _, (args, kwargs, _) in requests]
        named = [item for item in items if item is not None]
        headers = [one for item, (_, one, _) in zip(items, requests, strict=True) if item is not None]
        with counters.batched(), work.attempts(named) as attempts:
            self._batch = Batch(attempts=attempts)
            try:
                outcomes = self._execute_batch(named, attempts.suspects, self._batch)
                work.record_executed(named, outcomes, took=seconds(time.monotonic() - began))
                done = [
                    (item, of_message, outcome)
                    for item, of_message, outcome in zip(named, headers, outcomes, strict=True)
                    if is_result(outcome)
                ]
                attempts.done.update(item.lease for item, *_ in done)
                counters.items(self.queue_name, self.durations(work, done, began=began))
                found = iter(outcomes)
                yield [None if item is None else next(found) for item in items]
            finally:
                self._batch = None

    def durations(self, work: DueWork, done: Sequence[tuple[DueItem, Any, Any]], *, began: float) -> Counter[str]:
        """Return how long items took, each `(item, headers, result)`, except those that were skipped.

        Args:
            began: when their attempt began, by the monotonic clock.
        """
        # Estimated only now, because a new process reads the server's clock for the first time in its first attempt.
        ended_ms = unix_ms(estimated_now())
        began_ms = ended_ms - int((time.monotonic() - began) * 1000)
        times = []
        for item, headers, result in done:
            if not (isinstance(result, dict) and "skipped" in result):
                due_ms = work.due_ms(item)
                times.append((due_ms, latency.ready_ms(due_ms, headers)))
        counts = Counter[str]()
        latency.count_all(counts, times, began_ms=began_ms, ended_ms=ended_ms)
        return counts

    def _execute_batch(self, named: list[DueItem], suspects: set[int], batch: Batch) -> Sequence[Any]:
        if not suspects:
            return self._execute_items(named, batch)
        outcomes = iter(self._execute_items([item for at, item in enumerate(named) if at not in suspects], batch))
        return [Verdict.ALONE if at in suspects else next(outcomes) for at in range(len(named))]

    def _execute_items(self, items: list[DueItem], batch: Batch) -> Sequence[Any]:
        if not items:
            return []
        nothing: list[Any] = [None] * len(items)
        try:
            outcomes = batch.use_database(lambda: self._execute_when_due(items))
        except Exception as error:
            if isinstance(error, database.Error) and error.timeout and len(items) > 1 and not batch.is_database_away:
                log.warning("A batch took too long; smaller ones follow", task=self.name, error=reason(error))
                return [Verdict.UNREACHED] * len(items)
            if is_outage(error):
                return nothing  # each task meets the outage itself, and is retried
            log.warning(
                "A batch failed as a whole; its items are executed one by one", task=self.name, error=reason(error)
            )
            return nothing
        if not isinstance(outcomes, list | tuple) or len(outcomes) != len(items):
            problem = f"A batch of {len(items)} returned {outcomes!r:.100}, not a list of {len(items)} outcomes"
            log.error(f"{problem}; the items are executed one by one", task=self.name)
            return nothing
        return [one if type(one) is dict else self._checked(one) for one in outcomes]

    def _checked(self, outcome: Any) -> Any:
        """Return the outcome of an item; for a coroutine or a generator, of which nothing was executed, the error."""
        try:
            return require_done(outcome, self.name)
        except PermanentError as error:
            return error

    def _execute_when_due(self, items: list[DueItem]) -> Sequence[Any]:
        execute = self.work().batch_function
        while execute is not None:
            try:
                with contained():
                    return execute(items)
            except NotYetDue as early:
                if early.remaining > WAIT_IN_PLACE:
                    raise
                time.sleep(early.remaining.total_seconds())
        return [None] * len(items)

    @cached_property
    def _signature(self) -> Signature:
        return signature(self.run)

    @cached_property
    def _arity(self) -> int | None:
        """The number of parameters; `None` if not all of them may be passed by position."""
        kinds = [one.kind for one in self._signature.parameters.values()]
        return len(kinds) if set(kinds) <= {Parameter.POSITIONAL_OR_KEYWORD} else None

    def item(self, task_id: str, args: Any, kwargs: Any, *, work: DueWork | None = None) -> DueItem:
        """Return the item of `work` that the arguments name, with every default filled in. Raises PermanentError."""
        given = self._bound(args, kwargs)
        return DueItem(task_id=task_id, args=given, lease=(work or self.work()).lease_of(given))

    def _bound(self, args: Any, kwargs: Any) -> tuple[Any, ...]:
        if isinstance(args, (list, tuple)) and len(args) == self._arity and kwargs == {}:
            return tuple(args)
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise PermanentError(f"{self.name}{self._signature} was called with other arguments: {error}") from None
        bound.apply_defaults()
        return bound.args

    def read_item(self, work: DueWork, task_id: str, args: Any, kwargs: Any) -> DueItem | None:
        """Return the item that the arguments name, `None` for invalid ones, which the task itself refuses."""
        try:
            return self.item(task_id, args, kwargs, work=work)
        except PermanentError:
            return None
