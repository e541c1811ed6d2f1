"""A warm shutdown of a worker is bounded: running tasks have `QM_SHUTDOWN_SECONDS`, then unfinished ones are requeued.

Long tasks, such as the run of a job queue, notice the shutdown (`core/shutdown.py`) and end early. An orchestrator
sends SIGTERM, and SIGKILL later: a message that was requeued before is redelivered at once, one that SIGKILL interrupts
only after its lease has ended.

Only a prefork pool of the command line can stop its tasks. Other pools, and a worker that is embedded in a program,
complete them, however long that takes.
"""

from __future__ import annotations

import os
import signal
from functools import partial
from threading import Timer
from typing import Any

from celery import bootsteps, signals
from celery.apps.worker import Worker
from celery.worker import state

from queue_manager.core import shutdown
from queue_manager.core.log import get_logger
from queue_manager.core.settings import settings
from tasks.app import app

log = get_logger("QM/shutdown")


class BoundedShutdown(bootsteps.StartStopStep):
    """The step of the worker that starts the limit, once: at SIGTERM, or when the worker stops for another reason."""

    requires = ("celery.worker.components:Pool",)
    _limit: Timer | None = None

    def create(self, worker: Any) -> None:
        """Prepare before the pool forks."""
        shutdown.share()
        is_embedded = not isinstance(worker, Worker)  # in a program, such as a test, which continues after it
        self._can_stop_tasks = worker.pool.uses_semaphore and not is_embedded  # by a signal, which ends a program
        signals.worker_shutting_down.connect(self._on_signal)
        if is_embedded:
            worker.blueprint.on_stopped = partial(self._end, worker)

    def close(self, worker: Any) -> None:
        """Begin, also after `celery control shutdown`, SIGHUP or an error, for which Celery sends no signal."""
        self._begin(is_warm=state.should_terminate is None)

    def _on_signal(self, how: str, **_: Any) -> None:
        self._begin(is_warm=how == "Warm")

    def _begin(self, *, is_warm: bool) -> None:
        shutdown.begin()
        seconds = settings().qm_shutdown_seconds
        if is_warm and self._can_stop_tasks and seconds > 0 and self._limit is None:
            self._limit = Timer(seconds, _requeue_tasks, [seconds])
            self._limit.daemon = True
            self._limit.start()

    def _end(self, worker: Any) -> None:
        """Forget the shutdown: all steps have stopped, so that the pool has ended."""
        worker.on_stopped()
        shutdown.forget()


def _requeue_tasks(seconds: float) -> None:
    log.warning("Tasks are still running: they are stopped and put back", after_seconds=seconds)
    app.conf.worker_soft_shutdown_timeout = 0  # their time is over
    os.kill(os.getpid(), signal.SIGQUIT)


app.steps["worker"].add(BoundedShutdown)
