"""Clocks of processes that can be set: of Python by `tests/e2e/shifted_clock`, of servers by a preloaded library."""

from __future__ import annotations

import shutil
import struct
import subprocess
import tempfile
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).with_name("shifted_clock.c")
COMPILER = "cc"
VARIABLE = "SHIFTED_CLOCK_FILE"


class Clock:
    """The clock of one process: a file with the seconds by which it is off."""

    def __init__(self, file: Path) -> None:
        self.file = file
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(struct.pack("d", 0))

    def set(self, seconds: float) -> None:
        """Let the clock be off by so many seconds, from now on."""
        with self.file.open("r+b") as file:
            file.write(struct.pack("d", seconds))

    @property
    def preloaded(self) -> list[str]:
        """What to put before the command of a server."""
        return ["env", f"LD_PRELOAD={library()}", f"{VARIABLE}={self.file}"] if is_possible() else []


def is_possible() -> bool:
    """Return True if the clocks of servers can be set on this machine."""
    return library() is not None


@cache
def library() -> Path | None:
    """Return the library, compiled for this run; `None` if there is no compiler."""
    if shutil.which(COMPILER) is None:
        return None
    target = Path(tempfile.mkdtemp(prefix="queue-manager-clock-")) / "shifted_clock.so"
    command = [COMPILER, "-shared", "-fPIC", "-O2", "-Wall", "-Werror", "-o", str(target), str(SOURCE), "-ldl"]
    subprocess.run(command, check=True)
    return target
