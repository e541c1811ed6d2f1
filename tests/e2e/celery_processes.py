"""Real processes for tests, mostly of Celery: started, watched through their log, killed with all their children."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Self

from dev.children import Child, spawn
from tests.eventually import eventually

ROOT = Path(__file__).parents[2]
TESTS = Path(__file__).parent
READY = {"worker": " ready.", "beat": "beat: Starting", "flower": "Visit me at"}
QUICK_START = ("--without-mingle", "--without-gossip")


class LoggedProcess:
    """A Python process with a log file, which leads a group; also a context manager."""

    def __init__(
        self, log: Path, *command: str, ready: str = "", env: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """`ready` is what the log says when the process has started."""
        self.log_path = log
        self._command = [sys.executable, *command]
        self._ready = ready
        self._cwd: Path | None = None
        self._env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", **env}
        self._child: Child | None = None

    def start(self, *, ready: bool = True) -> Self:
        """Start it; wait until it says that it is ready unless told otherwise."""
        seen = len(self.log)
        with self.log_path.open("ab") as log:
            self._child = spawn(self._command, env=self._env, cwd=self._cwd, stdout=log, stderr=log, grace=10)
        if ready:
            eventually(lambda: self._ready in self.log[seen:])
        return self

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    @property
    def pid(self) -> int:
        assert self._child is not None
        return self._child.pid

    def is_alive(self) -> bool:
        return self._child is not None and self._child.poll() is None

    def exit_code(self) -> int | None:
        assert self._child is not None
        return self._child.poll()

    def kill(self) -> None:
        """End the process and its children with SIGKILL, as a machine that loses power would."""
        if self._child is not None:
            self._child.kill()

    def stop(self) -> None:
        if self._child is not None:
            self._child.end()

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def __enter__(self) -> Self:
        return self if self._child is not None else self.start()

    def __exit__(self, *_: object) -> None:
        self.kill()  # nobody looks at it any more; a warm shutdown takes seconds


class CeleryProcess(LoggedProcess):
    """`celery -A <app> <command> …`."""

    def __init__(
        self,
        log: Path,
        *arguments: str,
        app: str = "tasks",
        env: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        super().__init__(log, "-m", "celery", "-A", app, *arguments, ready=READY[arguments[0]], env=env)


def log_of_refused_start(process: CeleryProcess) -> str:
    """Start a process that ends with exit code 1, without a traceback or a password; return its log."""
    with process.start(ready=False):
        eventually(lambda: process.exit_code() is not None)
    assert process.exit_code() == 1
    assert "Traceback" not in process.log
    assert "s3cret" not in process.log
    assert " ready." not in process.log
    return process.log


def worker(
    log: Path, *arguments: str, app: str = "tasks", env: Mapping[str, str] = MappingProxyType({})
) -> CeleryProcess:
    """A worker on every queue."""
    return CeleryProcess(log, "worker", "--concurrency", "2", *QUICK_START, *arguments, app=app, env=env)
