"""A web process on the benchmark's servers, and somebody who asks it on one connection."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path

from benchmarks.harness import WrongResult, expect
from dev.children import spawn
from dev.ports import LOOPBACK, free_port, is_answering

STARTS_WITHIN = 30.0  # seconds
RESPONSE_TIMEOUT = 60.0  # seconds
COMMAND = [sys.executable, "-c", "from queue_manager.cli import main; main()", "web"]


@dataclass(frozen=True)
class Web:
    """A web process. `clock` returns the processor time in seconds that it has spent; 0 where nothing tells it."""

    port: int
    pid: int

    def clock(self) -> float:
        try:
            status = Path(f"/proc/{self.pid}/stat").read_text()
        except OSError:
            return 0.0
        user, system = status.rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


@contextmanager
def web(**env: str) -> Iterator[Web]:
    """Start it, with `env` besides our own environment."""
    port = free_port()
    with tempfile.TemporaryFile() as log:
        command = [*COMMAND, "--port", str(port)]
        child = spawn(command, env={**os.environ, **env}, cwd=Path.cwd(), stdout=log, stderr=log)
        try:
            ends = time.monotonic() + STARTS_WITHIN
            while not is_answering(port):
                if child.poll() is not None or time.monotonic() > ends:
                    log.seek(0)
                    raise WrongResult(f"no web process: {log.read().decode()[-500:]}")
                time.sleep(0.05)
            yield Web(port, child.pid)
        finally:
            child.kill()


@dataclass(frozen=True)
class Answer:
    """What was answered, and the seconds until all of it was there."""

    body: bytes
    seconds: float


class Client:
    """Asks a web process on one connection. Raises `WrongResult` for an answer that is not 200."""

    def __init__(self, port: int) -> None:
        self._connection = HTTPConnection(LOOPBACK, port, timeout=RESPONSE_TIMEOUT)

    def get(self, path: str, *, accept_encoding: str = "identity") -> Answer:
        began = time.perf_counter()
        self._connection.request("GET", path, headers={"Accept-Encoding": accept_encoding})
        answer = self._connection.getresponse()
        body = answer.read()
        took = time.perf_counter() - began
        expect(f"status of {path}", answer.status, 200)
        return Answer(body, took)
