"""Keeps the processes of a Procfile running: restarts what dies, and ends them all together.

Guarantee: a process that ends, or cannot be started, is started again after a wait of 1, 2, 4 … 30 s, from 1 s again
once it lived for a minute. `stop` returns when every process and what it started is gone, within its grace.
"""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Self

from dev.children import Child, spawn
from dev.output import ProcessOutput
from dev.procfile import Process
from queue_manager.core.child_processes import HEALTHY_AFTER, RESTART
from queue_manager.core.retry import RetryPolicy

STOP_GRACE = 6.0  # seconds; with the servers' own, everything has ended within 10
CANNOT_START = 126  # as a shell reports it
LAST_LINES = 1.0  # seconds to read the rest of a dead process's output; longer only if a runaway holds it open


class Supervisor:
    """Runs `processes`, each by a thread of its own; also a context manager that starts and stops them."""

    def __init__(
        self,
        processes: Sequence[Process],
        *,
        environment: Mapping[str, str],
        root: Path,
        log: ProcessOutput,
        restart: RetryPolicy = RESTART,
    ) -> None:
        self._environment = environment
        self._root = root
        self._log = log
        self._restart = restart
        self._threads = [Thread(target=self._keep_running, args=[process]) for process in processes]
        self._running: dict[str, Child] = {}
        self._starting = Lock()
        self._is_stopping = Event()

    def start(self) -> None:
        """Start every process, in order."""
        for thread in self._threads:
            thread.start()

    def stop(self, *, grace: float = STOP_GRACE) -> None:
        """End every process: all are asked at once, and killed after `grace` seconds."""
        with self._starting:
            self._is_stopping.set()
            running = list(self._running.values())
        with ThreadPoolExecutor(max_workers=max(len(running), 1)) as pool:
            for child in running:
                pool.submit(child.end, grace=grace)
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def run(self, process: Process) -> int:
        """Run `process` once, to its end; return its exit code, negative for a signal; 126 if it cannot be started."""
        with self._starting:
            if self._is_stopping.is_set():
                return -signal.SIGTERM
            try:
                child = self._spawn(process)
            except OSError as error:  # the limit of processes, of open files, or of memory
                self._log.write(process.name, f"could not be started: {error.strerror}")
                return CANNOT_START
            self._running[process.name] = child
        assert child.stdout is not None
        reader = Thread(target=self._log.relay, args=[process.name, child.stdout], daemon=True)
        reader.start()
        code = child.wait()
        child.end()  # what it left behind
        reader.join(LAST_LINES)
        self._running.pop(process.name, None)
        return code

    def _spawn(self, process: Process) -> Child:
        return spawn(
            ["/bin/sh", "-c", process.shell_line],
            env=self._environment,
            cwd=self._root,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            grace=STOP_GRACE,
        )

    def _keep_running(self, process: Process) -> None:
        deaths = 0
        while not self._is_stopping.is_set():
            began = time.monotonic()
            self._log.starting(process.name)
            code = self.run(process)
            deaths = 1 if time.monotonic() - began > HEALTHY_AFTER else deaths + 1
            wait = self._restart.wait_before(deaths + 1).total_seconds()
            self._log.ended(process.name, code, restart_in=None if self._is_stopping.is_set() else wait)
            self._is_stopping.wait(wait)
