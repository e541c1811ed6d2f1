"""How the task of an item ends that was done in a group: as Celery ends it, which costs more than the item itself.

Celery's way is left out only where nobody can tell: no program hears of tasks that run, the task's class changes
nothing about how it runs, nothing follows this one, and its result goes nowhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from billiard.einfo import ExceptionInfo
from celery import signals
from celery.app.trace import task_has_custom
from celery.utils.saferepr import saferepr

from tasks.base import ItemTask

SIGNALS = (signals.task_prerun, signals.task_postrun, signals.task_success)
HOOKS = ("before_start", "after_return")
OURS = ("__call__", "on_success")
FOLLOWERS = ("callbacks", "chain", "chord")

Ended = tuple[int, Any, float]
"""What the worker is told: whether it failed; the result, as text, or the error; the seconds that it took."""


def is_heard(task: ItemTask) -> bool:
    """Tell whether a program hears of each task of this kind that runs."""
    kind = task.__class__
    is_another = any(getattr(kind, one) is not getattr(ItemTask, one) for one in OURS)
    return is_another or any(task_has_custom(task, one) for one in HOOKS) or any(one.receivers for one in SIGNALS)


def is_last(task: ItemTask, headers: Mapping[str, Any], embed: Any) -> bool:
    """Tell whether nothing follows this task, and nobody waits for its result."""
    wanted = headers.get("ignore_result")
    is_ignored = task.ignore_result if wanted is None else wanted
    return bool(is_ignored) and isinstance(embed, dict) and not any(embed.get(one) for one in FOLLOWERS)


def succeed(task: ItemTask, id: str, args: Any, kwargs: Any, result: Any, seconds: float) -> Ended:
    """End a task with this result."""
    task.on_success(result, id, args, kwargs)
    return 0, _shown(result, task.resultrepr_maxsize), seconds


def run(as_celery_does: Callable[[], tuple[int, Any, float | None]], seconds: float) -> Ended:
    """End a task by running it, `seconds` after its group began. What Celery itself raises fails this one alone."""
    try:
        has_failed, value, runtime = as_celery_does()
    except MemoryError:
        raise
    except Exception:
        return 1, ExceptionInfo(), seconds
    return has_failed, value, (runtime or 0.0) + seconds


def _shown(result: Any, most: int) -> str:
    """Return a result as Celery shows it, whose own way is slow and different only for what is long or odd."""
    with suppress(Exception):  # of the result's class
        text = repr(result)
        if len(text) <= most and "\\" not in text:
            return text
    return str(saferepr(result, most))
