"""Executes a batch in a process of the pool, and completes each of its tasks as Celery does.

Celery's tracer costs more than the item. It is skipped for a task if no one can observe the difference: no signal
receiver or hook is installed, the task class overrides nothing about execution, no callback follows, and the result is
ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from logging import DEBUG
from time import monotonic
from typing import Any

from billiard.einfo import ExceptionInfo
from celery import signals
from celery.app import trace
from celery.utils.saferepr import saferepr

from queue_manager.batching.task import PoolRequest
from queue_manager.core.errors import drop_tracebacks
from queue_manager.core.log import get_logger
from queue_manager.items import Verdict, is_result
from queue_manager.telemetry import tracing
from tasks.app import app
from tasks.item import ItemTask

MAX_COMPLETION_TIME = 5.0  # seconds, after which a batch completes no further items whose function failed
TASK_SIGNALS = (signals.task_prerun, signals.task_postrun, signals.task_success)
HOOKS = ("before_start", "after_return")
OURS = ("__call__", "on_success")
FOLLOW_UPS = ("callbacks", "chain", "chord")

TaskResult = tuple[int, Any, float]
"""What the pool reports to the worker: has failed, the `repr` of the result or the error, seconds."""

log = get_logger("QM/batches")


def run(name: str, batch: Sequence[PoolRequest]) -> list[TaskResult | Verdict]:
    """Execute a batch; return the result of each task.

    Logs one line for the batch, at the level DEBUG another one with its items, and Celery's own line for each task that
    is executed on its own.
    """
    task = app.tasks[name]
    trace_task = trace.fast_trace_task if app.use_fast_trace_task else trace.trace_task_ret
    is_observed = has_listeners(task)
    started = monotonic()
    ended: list[TaskResult | Verdict] = []
    all_headers = [headers for _, headers, _ in batch]
    with (
        tracing.processing(task.queue_name, all_headers, attributes={"celery.task": name}),
        task.execute_batch(batch) as outcomes,
    ):
        share, succeeded = (monotonic() - started) / len(batch), 0
        # Each failure takes several round trips: without a limit, a thousand outlast the timeout of a batch.
        ends_at = monotonic() + MAX_COMPLETION_TIME
        for (id, headers, body), outcome in zip(batch, outcomes, strict=True):
            if isinstance(outcome, Verdict):
                ended.append(outcome)
            elif is_result(outcome) and not is_observed and is_final(task, headers, embed=body[2]):
                ended.append((0, _shown(outcome, task.resultrepr_maxsize), share))
                succeeded += 1
            elif isinstance(outcome, Exception) and monotonic() > ends_at:
                ended.append(Verdict.UNREACHED)
            else:
                task.complete_next_with(outcome)
                ended.append(traced(partial(trace_task, name, id, headers, body, None, None), share))
        if succeeded:
            task.count_successes(succeeded)
    log.info("A batch of tasks ended", task=name, tasks=len(batch), seconds=round(monotonic() - started, 3))
    if log.isEnabledFor(DEBUG):
        log.debug("Items of the batch", task=name, items=[list(args) for _, _, (args, _, _) in batch])
    return ended


def has_listeners(task: ItemTask) -> bool:
    """Return True if a task hook or signal receiver is installed."""
    kind = task.__class__
    is_another = any(getattr(kind, one) is not getattr(ItemTask, one) for one in OURS)
    has_hook = any(trace.task_has_custom(task, one) for one in HOOKS)
    return is_another or has_hook or any(one.receivers for one in TASK_SIGNALS)


def is_final(task: ItemTask, headers: Mapping[str, Any], embed: Any) -> bool:
    """Return True if no callback follows this task and its result is ignored."""
    wanted = headers.get("ignore_result")
    is_ignored = task.ignore_result if wanted is None else wanted
    return bool(is_ignored) and isinstance(embed, dict) and not any(map(embed.get, FOLLOW_UPS))


def traced(complete: Callable[[], tuple[int, Any, float | None]], seconds: float) -> TaskResult:
    """Complete a task by Celery's tracer, `seconds` after its batch began. An error of it fails only this task."""
    try:
        has_failed, value, runtime = complete()
    except MemoryError:
        raise
    except Exception:
        has_failed, value, runtime = 1, ExceptionInfo(), None
    if isinstance(value, ExceptionInfo):  # whose text the worker reports; the frames of a batch of errors take 1 GB
        value.tb = None
        drop_tracebacks(value.exception)
    return has_failed, value, (runtime or 0.0) + seconds


def _shown(result: Any, most: int) -> str:
    """Return the `repr` of a result as Celery does; its `saferepr` is slow, and differs only for long or odd ones."""
    try:
        text = repr(result)
    except Exception:  # of the result's class
        return str(saferepr(result, most))
    return text if len(text) <= most and "\\" not in text else str(saferepr(result, most))
