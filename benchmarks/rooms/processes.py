"""The processes of a run, started afresh for each, and what they cost."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness import WrongResult
from dev.children import Child, spawn
from dev.processes import children

STARTS_WITHIN = 60.0  # seconds
STOPS_WITHIN = 15.0


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


class Worker:
    """A Celery worker."""

    def __init__(self, name: str, command: Sequence[str], env: dict[str, str]) -> None:
        self.name = name
        self.log = Path.cwd() / f"{name}.log"
        self._from = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as log:
            self._child: Child = spawn(command, env=env, cwd=Path.cwd(), stdout=log, stderr=log, grace=STOPS_WITHIN)

    def wait_until_ready(self) -> None:
        ends = time.monotonic() + STARTS_WITHIN
        while " ready." not in self._said:
            if self._child.poll() is not None or time.monotonic() > ends:
                raise WrongResult(f"a worker did not start: {self._said[-1000:]}")
            time.sleep(0.05)

    @property
    def _said(self) -> str:
        with self.log.open(errors="replace") as log:
            log.seek(self._from)
            return log.read()

    @property
    def pids(self) -> list[int]:
        """Its main process, and those in its pool."""
        return [self._child.pid, *children(self._child.pid)]

    def stop(self) -> None:
        self._child.end()


class Sender:
    """A program that scans or sends a room when asked: `benchmarks.rooms.sender` tells how."""

    def __init__(self, command: Sequence[str], env: dict[str, str]) -> None:
        self._log = (Path.cwd() / "sender.log").open("ab")
        self._process = subprocess.Popen(
            command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True
        )
        if self._answer() != "ready":
            raise WrongResult(f"nobody scans: see {self._log.name}")

    def ask(self, line: str) -> float:
        """Have it scan, or send a room; return when that began, in seconds of the epoch."""
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        answered = self._answer()
        if not answered:
            raise WrongResult(f"the scan failed: {Path(self._log.name).read_text()[-1000:]}")
        began: float = json.loads(answered)["began"]
        return began

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    @property
    def pids(self) -> list[int]:
        return [self._process.pid, *children(self._process.pid)]

    def stop(self) -> None:
        self._log.close()
        try:
            self._process.communicate(timeout=STOPS_WITHIN)  # it ends when there is nothing more to read
        finally:
            self._process.kill()


@dataclass(frozen=True, kw_only=True)
class Running:
    """The processes of one way."""

    workers: list[Worker]
    sender: Sender

    @property
    def pids(self) -> dict[str, list[int]]:
        """By kind."""
        of_workers = {
            kind: pids
            for worker in self.workers
            for kind, pids in ((worker.name, worker.pids[:1]), (f"pool of {worker.name}", worker.pids[1:]))
        }
        return {**of_workers, "sender": self.sender.pids}


@contextmanager
def running(workers: Mapping[str, Sequence[str]], sender: Sequence[str], **env: str) -> Iterator[Running]:
    """Start workers, by name, and a sender, with `env` besides our own environment; return when they are ready."""
    environment = {**os.environ, **env}
    started: list[Worker] = []
    sending = None
    try:
        started += [Worker(name, command, environment) for name, command in workers.items()]
        sending = Sender(sender, environment)
        for worker in started:
            worker.wait_until_ready()
        yield Running(workers=started, sender=sending)
    finally:
        if sending is not None:
            sending.stop()
        for worker in started:
            worker.stop()
