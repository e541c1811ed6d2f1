"""How the task of an item ends that was done in a group: as Celery ends it, which costs more than the item itself.

Celery's way is left out only where nobody can tell: no program hears of tasks that run, nothing follows this one, and
its result goes nowhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from celery import signals
from celery.app.trace import task_has_custom

from tasks.together import GroupedTask

SIGNALS = (signals.task_prerun, signals.task_postrun, signals.task_success)
HOOKS = ("before_start", "after_return")
FOLLOWERS = ("callbacks", "chain", "chord")

Ended = tuple[int, Any, float]
"""What the worker is told: whether it failed; the result, as text, or the error; the seconds that it took."""


def is_heard(task: GroupedTask) -> bool:
    """Tell whether a program hears of each task of this kind that runs."""
    has_hooks = type(task).on_success is not GroupedTask.on_success or any(task_has_custom(task, one) for one in HOOKS)
    return has_hooks or any(one.receivers for one in SIGNALS)


def is_last(task: GroupedTask, headers: Mapping[str, Any], embed: Mapping[str, Any] | None) -> bool:
    """Tell whether nothing follows this task, and nobody waits for its result."""
    wanted = headers.get("ignore_result")
    is_ignored = task.ignore_result if wanted is None else wanted
    return bool(is_ignored) and not any((embed or {}).get(one) for one in FOLLOWERS)


def succeed(task: GroupedTask, id: str, args: Any, kwargs: Any, result: Any, seconds: float) -> Ended:
    """End a task with this result."""
    task.on_success(result, id, args, kwargs)
    return 0, repr(result)[: task.resultrepr_maxsize], seconds
