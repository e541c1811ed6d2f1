"""Our end of the pipe to the keeper: one keeper per process, started with the first child.

Guarantee: the keeper sees the pipe end exactly when this process ends; a fork of this process does not hold
it open. A keeper that was killed is replaced at the next message, and the new one is told everything.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
from threading import Lock
from typing import IO, Any

from dev.processes import ProcessGroup


class KeeperPipe:
    """Tells the keeper which process groups to end when we are gone."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._kept: dict[int, ProcessGroup] = {}
        self._keeper: subprocess.Popen[bytes] | None = None
        self._held: list[int] = []

    def hold(self, file: IO[Any]) -> None:
        """Have the keeper keep `file` open to its own end: a lock on it lasts until all children are gone.

        To be called before the first child is started.
        """
        self._held.append(file.fileno())

    def keep(self, group: ProcessGroup) -> None:
        with self._lock:
            self._kept[group.pid] = group
            self._tell(_keep(group))

    def forget(self, group: ProcessGroup) -> None:
        with self._lock:
            if self._kept.pop(group.pid, None):
                self._tell({"forget": group.pid})

    def kept(self) -> list[ProcessGroup]:
        """Return what the keeper would end now."""
        return list(self._kept.values())

    def leave(self) -> None:
        """Let the keeper end what is still kept, and wait for it."""
        if self._keeper is not None:
            _writer(self._keeper).close()
            self._keeper.wait()

    def leave_to_parent(self) -> None:
        """In a fresh fork: the keeper and the children are the parent's; start over."""
        if self._keeper is not None:
            _writer(self._keeper).close()
            self._keeper.returncode = 0  # not ours to wait for
        self._keeper, self._kept, self._held, self._lock = None, {}, [], Lock()

    def _tell(self, message: dict[str, Any]) -> None:
        if self._keeper is not None:
            try:
                _send(self._keeper, message)
                return
            except BrokenPipeError:
                _writer(self._keeper).close()
                self._keeper.wait()
        self._keeper = self._start()
        for group in self._kept.values():
            _send(self._keeper, _keep(group))

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", "dev.keeper"],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            pass_fds=self._held,
        )


def _writer(keeper: subprocess.Popen[bytes]) -> IO[bytes]:
    assert keeper.stdin is not None
    return keeper.stdin


def _keep(group: ProcessGroup) -> dict[str, Any]:
    return {"keep": group.pid, "started": group.started, "grace": group.grace}


def _send(keeper: subprocess.Popen[bytes], message: dict[str, Any]) -> None:
    _writer(keeper).write(json.dumps(message).encode() + b"\n")


keeper_pipe = KeeperPipe()
os.register_at_fork(after_in_child=keeper_pipe.leave_to_parent)
atexit.register(keeper_pipe.leave)
