"""The processes of a run, started afresh for each, and what they cost."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from benchmarks.harness import WrongResult
from dev import procfile
from dev.children import Child, spawn

ROOT = Path(__file__).resolve().parents[2]
STARTS_WITHIN = 60.0  # seconds
STOPS_WITHIN = 15.0
PLAIN = shlex.split("celery -A tasks worker --loglevel INFO --task-events")


@dataclass(frozen=True)
class Cost:
    """Processor time that a process has spent, and the most memory that it had; 0 where nothing tells it."""

    seconds: float = 0
    megabytes: float = 0


def cost(pid: int) -> Cost:
    try:
        ticks = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return Cost()
    peak = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:"))
    return Cost(seconds=sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK"), megabytes=peak / 1024)


def resident(pid: int) -> float:
    """Return the memory that a process has now, in MB; 0 where nothing tells it."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except OSError:
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def forget_peak(pid: int) -> None:
    """Have the most memory counted from now on. A system that cannot do that counts from the start."""
    with suppress(OSError):
        Path(f"/proc/{pid}/clear_refs").write_text("5")


def procfile_worker() -> list[str]:
    """Return the command of the Procfile's `worker`."""
    [worker] = [process for process in procfile.read(ROOT / "Procfile") if process.name == "worker"]
    return shlex.split(worker.command)


class Worker:
    """A Celery worker with one process in its pool."""

    def __init__(self, name: str, app: str, command: Sequence[str], env: dict[str, str]) -> None:
        words = list(command)
        words[words.index("-A") + 1] = app
        self.log = Path.cwd() / f"{name}.log"
        self._from = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as log:
            self._child: Child = spawn(
                [sys.executable, "-m", *words, "--hostname", f"{name}@%h", "--concurrency", "1"],
                env=env,
                cwd=Path.cwd(),
                stdout=log,
                stderr=log,
                grace=STOPS_WITHIN,
            )

    def wait_until_ready(self) -> None:
        ends = time.monotonic() + STARTS_WITHIN
        while " ready." not in self._said:
            if self._child.poll() is not None or time.monotonic() > ends:
                raise WrongResult(f"a worker did not start: {self._said[-1000:]}")
            time.sleep(0.05)

    @property
    def has_worked(self) -> bool:
        return " succeeded in " in self._said

    @property
    def _said(self) -> str:
        with self.log.open(errors="replace") as log:
            log.seek(self._from)
            return log.read()

    @cached_property
    def pids(self) -> list[int]:
        """Its main process, and the one in its pool."""
        main = self._child.pid
        children = Path(f"/proc/{main}/task/{main}/children")
        return [main, *map(int, children.read_text().split())] if children.exists() else [main]

    def stop(self) -> None:
        self._child.end()


class Sender:
    """`benchmarks.rooms.sender`, which scans or sends when asked."""

    def __init__(self, app: str, env: dict[str, str]) -> None:
        self._log = (Path.cwd() / "sender.log").open("ab")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.rooms.sender", app],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        self.pid = self._process.pid
        if self._answer() != "ready":
            raise WrongResult(f"nobody scans: see {self._log.name}")

    def ask(self, line: str) -> dict[str, Any]:
        """Have it scan, or send a room; return `{began, ended, sent: {room: began}}`, in seconds of the epoch."""
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        answered = self._answer()
        if not answered:
            raise WrongResult(f"the scan failed: {Path(self._log.name).read_text()[-1000:]}")
        answer: dict[str, Any] = json.loads(answered)
        return answer

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def stop(self) -> None:
        self._log.close()
        try:
            self._process.communicate(timeout=STOPS_WITHIN)  # it ends when there is nothing more to read
        finally:
            self._process.kill()


@dataclass(frozen=True, kw_only=True)
class Running:
    """Two workers and a sender of one way."""

    workers: list[Worker]
    sender: Sender

    @property
    def pids(self) -> dict[str, int]:
        named = {
            name: pid
            for number, worker in enumerate(self.workers, start=1)
            for name, pid in zip((f"worker {number}", f"its process {number}"), worker.pids, strict=False)
        }
        return {**named, "scan": self.sender.pid}


@contextmanager
def running(app: str, command: Sequence[str], **env: str) -> Iterator[Running]:
    """Start two workers and a sender of `app`, with `env` besides our own environment; return when they are ready."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **env}
    started: list[Worker] = []
    sender = None
    try:
        started += [Worker(f"w{number}", app, command, environment) for number in (1, 2)]
        sender = Sender(app, environment)
        for worker in started:
            worker.wait_until_ready()
        yield Running(workers=started, sender=sender)
    finally:
        if sender is not None:
            sender.stop()
        for worker in started:
            worker.stop()
