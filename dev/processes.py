"""Process groups by the number of their leader: is it still the same, and ending it with its children.

Guarantee: a number that the system gave to somebody else in the meantime is never signalled.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

POLL = 0.02  # seconds between two looks at a process that is not our child: nothing tells us of its end


def started_at(pid: int) -> str | None:
    """Return when process `pid` started, in the system's own form; `None`: no such process, or a zombie.

    Two processes that had the same number one after the other differ in it.
    """
    return _started_at_linux(pid) if sys.platform == "linux" else _started_at_elsewhere(pid)


def _started_at_linux(pid: int) -> str | None:
    status = _status(Path(f"/proc/{pid}/stat"))
    return status.start_ticks if status else None


class _Status(NamedTuple):
    group: int
    start_ticks: str


def _status(stat: Path) -> _Status | None:
    """Read a `/proc/<pid>/stat`; `None`: no such process, or a zombie."""
    try:
        text = stat.read_text()
    except OSError:
        return None
    # The second field is the program's name in brackets and may hold spaces: count from its end.
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else _Status(group=int(fields[2]), start_ticks=fields[19])


def _started_at_elsewhere(pid: int) -> str | None:
    asked = subprocess.run(["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True)
    state, _, start = asked.stdout.strip().partition(" ")
    return None if not start or state.startswith("Z") else start.strip()


class ProcessGroup:
    """A process that leads its own process group, and the processes that it started."""

    def __init__(self, pid: int, started: str, *, grace: float) -> None:
        self.pid = pid
        self.started = started
        self.grace = grace

    def leader_runs(self) -> bool:
        return started_at(self.pid) == self.started

    def exists(self) -> bool:
        """Return True if any process of the group is left."""
        return self._signal_group(0) and (sys.platform != "linux" or _has_living_member(self.pid))

    def end(self, *, grace: float | None = None) -> None:
        """End the group in order: SIGTERM, at most `grace` seconds, SIGKILL.

        The leader alone is asked first and ends its children itself, because a Celery worker's children drop
        their tasks on SIGTERM. What it leaves behind is asked next.
        """
        deadline = time.monotonic() + (self.grace if grace is None else grace)
        if self.leader_runs():
            _signal(os.kill, self.pid, signal.SIGTERM)
        _wait_while(self.leader_runs, deadline)
        if not self.leader_runs():
            self._signal_group(signal.SIGTERM)
            _wait_while(self.exists, deadline)
        self.kill()

    def kill(self) -> None:
        """End the group at once."""
        self._signal_group(signal.SIGKILL)

    def _signal_group(self, number: int) -> bool:
        is_somebody_else = started_at(self.pid) not in (self.started, None)
        return not is_somebody_else and _signal(os.killpg, self.pid, number)


def children(pid: int) -> list[int]:
    """Return the processes that the threads of a process have started; none where nothing tells it."""
    try:
        lists = [file.read_text() for file in Path(f"/proc/{pid}/task").glob("*/children")]
    except OSError:
        return []
    return [int(child) for text in lists for child in text.split()]


def describe(code: int, *, restart_in: float | None = None) -> str:
    """Say how a process ended: `exited with 1`, `killed by SIGKILL; starts again in 4 s`."""
    how = f"exited with {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"
    return how if restart_in is None else f"{how}; starts again in {restart_in:g} s"


def _has_living_member(group: int) -> bool:
    """Return True if a group has more than zombies: process 1 of many containers does not reap them."""
    return any(status.group == group for stat in Path("/proc").glob("[0-9]*/stat") if (status := _status(stat)))


def _wait_while(condition: Callable[[], bool], deadline: float) -> None:
    while condition() and time.monotonic() < deadline:
        time.sleep(POLL)


def _signal(send: Callable[[int, int], None], target: int, number: int) -> bool:
    """Send a signal. Return True if a process received it."""
    try:
        send(target, number)
    except (ProcessLookupError, PermissionError):  # macOS: EPERM for a group that only has zombies left
        return False
    return True
