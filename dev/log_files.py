"""The whole output of each process in a file of its own: `<process>.log`.

Guarantee: the files begin with the run. Each is bounded; when it is full, it becomes `<process>.log.1` and replaces
the one before.
"""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path
from threading import Lock

MAX_BYTES = 10 * 1024**2


class LogFiles:
    """The log files in `directory`, which is emptied."""

    def __init__(self, directory: Path, *, max_bytes: int = MAX_BYTES) -> None:
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
