"""What a worker does: its pool, what each process of it executes, its memory and its rate. JSON in a heartbeat.

Guarantee: the number of processes and tasks is bounded, so is the length of every text.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.json import Decoder, Encoder

MAX_PROCESSES_SHOWN = 64
MAX_TASKS_SHOWN = 64
"""Of one worker; its processes execute one task or one batch each, threads one task each."""
MAX_ITEM_ID_LENGTH = 512  # characters; a longer id is left out
SHORT_TASK_MS = 500
RATE_CHANGE = 0.25  # part by which the rate differs before that is a change of the activity


class RunningTask(Struct, frozen=True, kw_only=True):
    """A task that runs, or a batch of tasks of one kind that run together."""

    task: str
    """The name of the Celery task."""
    id: str
    """Of the task; of a batch, that of one of its tasks."""
    item: str | None = None
    """The id of its item; `None` for a batch, and for tasks that have none."""
    tasks: int = 1
    elapsed_ms: int
    """Since it began."""


class PoolProcess(Struct, frozen=True, kw_only=True):
    """A process of the pool. For pools of threads it is the worker's own, and executes several tasks."""

    pid: int
    memory_bytes: int | None = None
    """Resident memory; `None` if the operating system does not show it."""
    running: list[RunningTask] = []


class Activity(Struct, frozen=True, kw_only=True):
    """What a worker does at the time of a heartbeat."""

    pool: str
    """Celery's name of the kind of pool, such as `prefork`."""
    size: int
    """How many tasks, or batches, run at the same time at most."""
    busy: int
    """How many run."""
    done_per_minute: int
    """Tasks that ended in the last minute, those that failed included."""
    memory_bytes: int | None = None
    """Resident memory of the main process."""
    processes: list[PoolProcess] = []

    def differs(self, recorded: Activity) -> bool:
        """Return True if this is worth recording at once: a task ended that was recorded, or runs for a while.

        Short tasks, memory, and small changes of the rate are not: an idle worker executes a short scan every second.
        """
        running = {task.id: task for process in self.processes for task in process.running}
        shown = {task.id for process in recorded.processes for task in process.running}
        long = {id for id, task in running.items() if task.elapsed_ms >= SHORT_TASK_MS}
        return (
            bool(shown - running.keys() or long - shown)
            or (self.pool, self.size) != (recorded.pool, recorded.size)
            or _has_changed(self.done_per_minute, recorded.done_per_minute)
        )


def _has_changed(rate: int, other: int) -> bool:
    return abs(rate - other) > RATE_CHANGE * max(rate, other)


encode = Encoder().encode
decode = Decoder(Activity).decode
