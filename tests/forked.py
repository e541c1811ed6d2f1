"""Processes that are forked from one that has imported the application: importing it takes most of a start."""

from __future__ import annotations

import atexit
import ctypes
import multiprocessing
import os
import signal
import site
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from threading import Thread

from dev.processes import ProcessGroup, started_at
from queue_manager.cli import main
from queue_manager.cli.commands import OTHERS
from queue_manager.core.settings import settings

PR_SET_PDEATHSIG = 1
PAUSES = {
    ("queue_manager.web.routes.failures", "MIN_READ_INTERVAL"): 0.1,
    ("queue_manager.web.routes.jobs.events", "TOKEN_INTERVAL"): 0.5,
}
"""How often a web process reads again. In production, longer pauses spare its servers; here a test waits for each."""

server = multiprocessing.get_context("forkserver")
"""The context of all tests. The process of the tests has one server, and one list of what it imports."""
server.set_forkserver_preload(
    [
        *("queue_manager.web.app", "queue_manager.web.serve"),
        *(command.partition(":")[0] for command in OTHERS.values()),
        *("tests.services.test_review_requests", "tests.services.message_queue.queue_processes"),
    ]
)


class Forked(ProcessGroup):
    """A process of `queue-manager`, to be used like `dev.children.Child`. It ends with this process."""

    def __init__(self, process: BaseProcess) -> None:
        assert process.pid is not None
        super().__init__(process.pid, started_at(process.pid) or "ended already", grace=5.0)
        self._process = process

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; `None` while it runs."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code once it has ended. Raises subprocess.TimeoutExpired."""
        self._process.join(timeout)
        if (code := self.poll()) is None:
            raise subprocess.TimeoutExpired("queue-manager", timeout or 0)
        return code

    def kill(self) -> None:
        """End it and its children at once. Safe to repeat."""
        super().kill()
        self._process.join()


def fork(
    arguments: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path | str,
    stdout: Path,
    stderr: Path | None = None,
    stdin: Path | str = os.devnull,
) -> Forked:
    """Start `queue-manager ARGUMENTS` with files as its streams; by default, errors go where the output goes."""
    streams = (stdin, stdout, stdout if stderr is None else stderr)
    process = server.Process(target=_run, args=(arguments, dict(env), cwd, streams))
    process.start()
    return Forked(process)


def _run(arguments: Sequence[str], env: Mapping[str, str], cwd: Path | str, streams: Sequence[Path | str]) -> None:
    os.setsid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # when the process that it was forked from ends
    Thread(target=_end_with_parent, daemon=True).start()
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    sys.path[:0] = env["PYTHONPATH"].split(os.pathsep)
    site.execsitecustomize()  # as Python does when it starts
    sys.argv = ["queue-manager", *arguments]
    modes = (os.O_RDONLY, *[os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_TRUNC] * 2)
    for number, (stream, mode) in enumerate(zip(streams, modes, strict=True)):
        os.dup2(os.open(stream, mode), number)
    sys.stdin = os.fdopen(0)
    for (module, name), pause in PAUSES.items():
        setattr(import_module(module), name, pause)
    assert settings.cache_info().currsize == 0, "importing the application read settings"
    try:
        main()
    finally:
        atexit._run_exitfuncs()  # which multiprocessing leaves out


def _end_with_parent() -> None:
    """End this process and its children when the process of the tests has ended, also if that was killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os.killpg(0, signal.SIGKILL)
