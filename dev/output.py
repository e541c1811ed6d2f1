"""The output of the processes: a stream in which every line says whose it is, a file for each, and the lines' meaning.

Guarantee: lines of different processes never mix. Colours only on a terminal, and not with NO_COLOR set. The files,
`<process>.log`, begin with the run and are bounded; one that is full becomes `<process>.log.1` and replaces the one
before.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import suppress
from itertools import cycle
from pathlib import Path
from threading import Lock
from typing import IO, TextIO

from dev.processes import describe
from queue_manager.core.log import has_colours, line_prefix

LONGEST_LINE = 16 * 1024  # bytes; a longer one is shown in pieces, so that no process can fill our memory
MAX_FILE_BYTES = 10 * 1024**2
READY = {
    "worker": " ready.",
    "jobs": " ready.",
    "scans": " ready.",
    "beat": "beat: Starting",
    "flower": "Visit me at",
    "web": "Uvicorn running on",
}
"""By process, what it says once it has started. Any other has started at once."""
_COLOURS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)
_CONSOLE = re.compile(r"[\d:.]+ \[(?:warning|error|critical)\s*\] (?P<text>.+)")
_TORNADO = re.compile(r"\[[EC] [^\]]+\] (?P<text>.+)")  # its warnings at Flower's start mean nothing
_JSON_LEVELS = {"warning", "error", "critical"}


class ProcessOutput(ABC):
    """Takes what the processes write, and when they start and end. Any thread may call it."""

    @abstractmethod
    def write(self, name: str, line: str) -> None:
        """Take one line."""

    def starting(self, name: str) -> None:
        """Take notice that a process is being started."""

    def ended(self, name: str, code: int, *, restart_in: float | None) -> None:
        """Take notice of the end of a process, and in how many seconds it is started again."""
        self.write(name, f"({describe(code, restart_in=restart_in)})")

    def relay(self, name: str, source: IO[bytes]) -> None:
        """Write what comes from `source`, line by line, until its end; a last line may be unfinished."""
        with source:
            while line := source.readline(LONGEST_LINE):
                self.write(name, line.decode(errors="replace").rstrip("\r\n"))


class LogStream(ProcessOutput):
    """Writes lines to `stream`, each behind the padded name of its process."""

    def __init__(self, names: Iterable[str], *, stream: TextIO = sys.stdout) -> None:
        self._stream = stream
        self._lock = Lock()
        names = list(names)
        width = max(map(len, names), default=0)
        is_coloured = has_colours(stream)
        self._prefixes = {
            name: line_prefix(name, width=width, colour=colour if is_coloured else None)
            for name, colour in zip(names, cycle(_COLOURS), strict=False)
        }

    def write(self, name: str, line: str) -> None:
        # A terminal that was closed must not end the processes' readers: without them the processes would
        # hang.
        with self._lock, suppress(OSError):
            self._stream.write(f"{self._prefixes[name]}{line}\n")
            self._stream.flush()


class LogFiles:
    """The log files in `directory`, which is emptied."""

    def __init__(self, directory: Path, *, max_bytes: int = MAX_FILE_BYTES) -> None:
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(mode=0o700)
        self._directory = directory
        self._max_bytes = max_bytes
        self._lock = Lock()

    def write(self, name: str, line: str) -> None:
        """Append a line; it is lost when the disk is full."""
        path = self._path(name)
        with self._lock, suppress(OSError):
            with path.open("ab") as file:
                file.write(f"{line}\n".encode(errors="replace"))
                is_full = file.tell() > self._max_bytes
            if is_full:
                path.replace(path.with_suffix(".log.1"))

    def last_lines(self, name: str, count: int = 20) -> list[str]:
        """Return the last lines of a process, as far as its file holds them."""
        path = self._path(name)
        return path.read_text(errors="replace").splitlines()[-count:] if path.exists() else []

    def _path(self, name: str) -> Path:
        return self._directory / f"{name}.log"


def warning_in(line: str) -> str | None:
    """Return the text of a line that is a warning or an error."""
    if line.startswith("{"):
        return _warning_in_json(line)
    found = _CONSOLE.match(line) or _TORNADO.match(line)
    return found["text"] if found else None


def _warning_in_json(line: str) -> str | None:
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    return str(entry.get("event")) if entry.get("level") in _JSON_LEVELS else None
