"""Which queue a task is sent to: the one that its decorator names."""

from __future__ import annotations

from typing import Any


def queue_of(name: str, args: Any, kwargs: Any, options: Any, task: Any = None, **_: Any) -> dict[str, str] | None:
    """Route a task by its `queue_name`; Celery's own attribute `queue` is going away."""
    queue = getattr(task, "queue_name", None)
    return None if queue is None else {"queue": queue}
