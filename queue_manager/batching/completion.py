"""Completes the tasks of a batch as Celery does, without Celery's tracer if no one can observe the difference.

The tracer costs more than the item. It is skipped if no signal receiver or hook is installed, the task class overrides
nothing about execution, no callback follows, and the result is ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from billiard.einfo import ExceptionInfo
from celery import signals
from celery.app.trace import task_has_custom
from celery.utils.saferepr import saferepr

from queue_manager.core.errors import drop_tracebacks
from tasks.item import ItemTask

TASK_SIGNALS = (signals.task_prerun, signals.task_postrun, signals.task_success)
HOOKS = ("before_start", "after_return")
OURS = ("__call__", "on_success")
FOLLOW_UPS = ("callbacks", "chain", "chord")

TaskResult = tuple[int, Any, float]
"""What the pool reports to the worker: has failed, the `repr` of the result or the error, seconds."""


def has_listeners(task: ItemTask) -> bool:
    """Return True if a task hook or signal receiver is installed."""
    kind = task.__class__
    is_another = any(getattr(kind, one) is not getattr(ItemTask, one) for one in OURS)
    return is_another or any(task_has_custom(task, one) for one in HOOKS) or any(one.receivers for one in TASK_SIGNALS)


def is_final(task: ItemTask, headers: Mapping[str, Any], embed: Any) -> bool:
    """Return True if no callback follows this task and its result is ignored."""
    wanted = headers.get("ignore_result")
    is_ignored = task.ignore_result if wanted is None else wanted
    return bool(is_ignored) and isinstance(embed, dict) and not any(map(embed.get, FOLLOW_UPS))


def succeed(task: ItemTask, result: Any, seconds: float) -> TaskResult:
    """Complete a task with this result. The caller counts it together with the others of the batch."""
    return 0, _shown(result, task.resultrepr_maxsize), seconds


def run(trace: Callable[[], tuple[int, Any, float | None]], seconds: float) -> TaskResult:
    """Complete a task by Celery's tracer, `seconds` after its batch began. An error of it fails only this task."""
    try:
        has_failed, value, runtime = trace()
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
