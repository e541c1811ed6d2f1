"""One `make up` per checkout: a lock that lasts until the last process of a run is gone."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from dev.keeper_pipe import keeper_pipe
from dev.processes import started_at
from queue_manager.core.errors import AppError

CLEARING_UP = 30.0  # seconds that the keeper of a run that was killed may need to end its processes


class AlreadyRunning(AppError):
    """Another run uses the same data directory: names its process."""


@contextmanager
def exclusive(directory: Path) -> Iterator[None]:
    """Hold the lock of `directory`; waits for the rest of a run that was killed.

    To be entered before the first child is started: the keeper holds the lock too, until all of them are
    gone.

    Raises:
        AlreadyRunning: another run holds it.
    """
    with (directory / "lock").open("a+") as file:
        _acquire(file)
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        keeper_pipe.hold(file)
        yield


def _acquire(file: TextIO) -> None:
    deadline = time.monotonic() + CLEARING_UP
    while not _try(file):
        file.seek(0)
        holder = file.read()
        if holder.isdigit() and started_at(int(holder)) is not None:
            raise AlreadyRunning(f"it is already running in this checkout, as process {holder}")
        if time.monotonic() > deadline:
            raise AlreadyRunning(f"processes of an earlier run are still there after {CLEARING_UP:g} s")
        time.sleep(0.1)


def _try(file: TextIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
