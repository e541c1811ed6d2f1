"""Bounds a warm shutdown: tasks have a time to finish after SIGTERM, then unfinished ones are put back.

Tasks that go on for long, such as the run of a queue, see that it has begun (`core/shutdown.py`), and end soon.

An orchestrator sends SIGTERM once and SIGKILL later. A message that the worker put back before that is delivered again
at once; what SIGKILL ends comes back only when its lease has run out.
"""

from __future__ import annotations

import os
import signal
from threading import Timer
from typing import Any

from celery import signals

from queue_manager.core import shutdown
from queue_manager.core.log import get_logger
from queue_manager.core.settings import settings
from tasks.app import app

log = get_logger("QM/shutdown")
_limit: Timer | None = None


@signals.worker_init.connect
def share(**_: Any) -> None:
    shutdown.share()


@signals.worker_shutting_down.connect
def limit_warm_shutdown(how: str, **_: Any) -> None:
    """Begin to count; a second signal changes nothing."""
    global _limit
    shutdown.begin()
    seconds = settings().qm_shutdown_seconds
    if how == "Warm" and seconds > 0 and _limit is None:
        _limit = Timer(seconds, _put_back, [seconds])
        _limit.daemon = True
        _limit.start()


def _put_back(seconds: float) -> None:
    log.warning("Tasks are still running: they are stopped and put back", after_seconds=seconds)
    app.conf.worker_soft_shutdown_timeout = 0  # their time is over
    os.kill(os.getpid(), signal.SIGQUIT)
