"""Jobs for real workers: each records its run in `job_notes`; its arguments say what else it does."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from models.database import collection, server_now
from services.job_queues import JobRun, job
from tests.e2e.job_names import CONSECUTIVE, OTHERS


def note(name: str, run: JobRun, began: datetime, **also: Any) -> None:
    noted = {"name": name, "job": run.id, "attempt": run.attempt, "began": began, "ended": server_now(), **also}
    collection("job_notes").insert_one(noted)


def working(name: str) -> Callable[..., None]:
    def work(seconds: float = 0, mark: str | None = None, *, run: JobRun) -> None:
        """Run for that long; with `mark`, also until somebody makes that file."""
        began = server_now()
        time.sleep(seconds)
        while mark and not Path(mark).exists():
            time.sleep(0.02)
        note(name, run, began)

    return work


for _name in (*CONSECUTIVE, *OTHERS):
    job(_name)(working(_name))


@job("mixed")
def mixed(what: str, *, run: JobRun) -> None:
    """Do nothing well; `poison` fails every time, `mended` from its second attempt on no more."""
    note("mixed", run, server_now(), what=what)
    if what == "poison" or (what == "mended" and run.attempt == 1):
        raise ValueError(what)


@job("holds_gil")
def hold_gil(seconds: int, *, run: JobRun) -> None:
    """Sleep in C without releasing the GIL, so that no other thread of this process runs."""
    began = server_now()
    ctypes.PyDLL(None).sleep(seconds)
    note("holds_gil", run, began)


@job("hangs", timeout=timedelta(seconds=1))
def hang(how: str, mark: str, *, run: JobRun) -> None:
    """Run until the file `mark` exists and ignore the time limit. If `how` is `gil`, hold the GIL meanwhile."""
    note("hangs", run, server_now(), pid=os.getpid())
    while not Path(mark).exists():
        if how == "gil":
            ctypes.PyDLL(None).sleep(60)
        time.sleep(0.02)


@job("patient")
def be_patient(*, run: JobRun) -> None:
    """Run until it should stop."""
    began = server_now()
    note("patient", run, began, pid=os.getpid())
    while not run.is_cancelled:
        time.sleep(0.02)


@job("fragile")
def fragile(mark: str, *, run: JobRun) -> None:
    """Run until somebody makes the file `mark`."""
    note("fragile", run, server_now(), pid=os.getpid())
    while not Path(mark).exists():
        time.sleep(0.02)
