"""The jobs of the fault runner. Each appends to a file when it begins and when it ends, by the monotonic clock."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from services.job_queues import JobRun, job
from tests.e2e.poison import poison
from tests.faults import notes

NAMES = ("faults.invoices", "faults.letters", "faults.reports", "faults.backups")
LOG_VARIABLE = "FAULTS_JOB_LOG"


def note(what: str, name: str, run: JobRun) -> None:
    notes.append(os.environ[LOG_VARIABLE], what=what, name=name, job=run.id, attempt=run.attempt)


def working(name: str) -> Callable[..., None]:
    def work(schedule: int, number: int, seconds: float, harm: str | None = None, *, run: JobRun) -> None:
        """Run for that long; do `harm` at the first attempt."""
        note("begin", name, run)
        time.sleep(seconds)
        if harm is not None and run.attempt == 1:
            poison(harm)
        note("end", name, run)

    return work


for _name in NAMES:
    job(_name)(working(_name))
