"""The worker of the Procfile that runs jobs takes no more queues than it runs."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from dev import procfile
from tests.e2e.celery_processes import QUICK_START, ROOT, CeleryProcess
from tests.e2e.job_processes import ENV, count, job_beat, job_lab
from tests.eventually import eventually
from tests.real_servers import Servers

pytestmark = pytest.mark.processes

NAMES = ("n0", "n1", "n2")


def listed(name: str, log: Path, *, slots: int) -> CeleryProcess:
    """Return the worker `name` of the Procfile, with its own log and so many slots."""
    [command] = [process.command for process in procfile.read(ROOT / "Procfile") if process.name == name]
    arguments = shlex.split(command)[3:]  # without `celery -A tasks`
    own = ("--hostname", f"{log.stem}@%h", "--concurrency", str(slots))
    return CeleryProcess(log, *arguments, *own, *QUICK_START, env=ENV)


def test_busy_worker_leaves_the_other_queues_to_the_next(clean: Servers, tmp_path: Path) -> None:
    lab, mark = job_lab(), tmp_path / "may-end"
    scans, busy, idle = (tmp_path / f"{name}.log" for name in ("scans", "busy", "idle"))
    with job_beat(tmp_path), listed("scans", scans, slots=1), listed("jobs", busy, slots=1):
        for name in NAMES:
            lab.run(name, 0, str(mark))
        eventually(lambda: count("executing", *NAMES) == 1)
        with listed("jobs", idle, slots=4):
            eventually(lambda: count("executing", *NAMES) == len(NAMES))
            assert count("success", *NAMES) == 0  # each is still executing: `mark` ends them
            mark.touch()
            eventually(lambda: count("success", *NAMES) == len(NAMES))
