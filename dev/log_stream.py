"""Where the output of the processes goes; and one stream for all of it, in which every line says whose it is.

Guarantee of the stream: lines of different processes never mix. Colours only on a terminal, and not with NO_COLOR set.
"""

from __future__ import annotations

import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import suppress
from itertools import cycle
from threading import Lock
from typing import IO, TextIO

from dev.processes import describe

LONGEST_LINE = 16 * 1024  # bytes; a longer one is shown in pieces, so that no process can fill our memory
_COLOURS = ("36", "33", "32", "35", "34", "96", "93", "92", "95", "94")
_RESET = "\033[0m"


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
        has_colours = stream.isatty() and not os.environ.get("NO_COLOR")
        self._prefixes = {
            name: f"\033[{colour}m{name:<{width}} |{_RESET} " if has_colours else f"{name:<{width}} | "
            for name, colour in zip(names, cycle(_COLOURS), strict=False)
        }

    def write(self, name: str, line: str) -> None:
        # A terminal that was closed must not end the processes' readers: without them the processes would
        # hang.
        with self._lock, suppress(OSError):
            self._stream.write(f"{self._prefixes[name]}{line}\n")
            self._stream.flush()
