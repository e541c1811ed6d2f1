"""Node programs of `tests/predecessors/node`: started by a test, and ended with it."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NODE_DIRECTORY = Path(__file__).parent / "node"


class NodeProcess:
    """A running program that prints one JSON document a line."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._lines: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def next(self, *, within: float = 60.0) -> Any:
        """Return the next document that it prints. Raises `queue.Empty` if there is none in time."""
        return json.loads(self._lines.get(timeout=within))

    def join(self) -> None:
        """Wait until all that it printed has been read from the pipe."""
        self._reader.join(timeout=30)

    def rest(self) -> list[Any]:
        """Return what it printed and nobody has read, once it has ended."""
        self.join()
        return [json.loads(self._lines.get_nowait()) for _ in range(self._lines.qsize())]

    def send(self, line: str) -> None:
        """Write a line to its standard input."""
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)


@contextmanager
def node(script: str, *arguments: str, **env: str) -> Iterator[NodeProcess]:
    """Run a script of `tests/predecessors/node` while the block runs. Its errors go to those of the test."""
    # `node` itself may be a wheel, in the directory of this Python.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    process = subprocess.Popen(
        ["node", script, *arguments],
        cwd=NODE_DIRECTORY,
        env={**os.environ, "PATH": path, **env},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # the wheel's `node` is a script that starts the real one: both are ended
    )
    running = NodeProcess(process)
    try:
        yield running
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        running.join()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
