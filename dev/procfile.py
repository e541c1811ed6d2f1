"""The Procfile: one process a line, `name: command`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from queue_manager.core.errors import AppError

RELEASE = "release"
_LINE = re.compile(r"(?P<name>[A-Za-z0-9_-]+)\s*:\s*(?P<command>\S.*)")
_COMPOUND = re.compile(r"[;|()]|(?<![<>])&")  # errs on the side of a shell: quoted ones count too


class ProcfileError(AppError):
    """The Procfile cannot be used: names the file, the line and what is accepted."""


@dataclass(frozen=True)
class Process:
    """A named shell command."""

    name: str
    command: str

    @property
    def shell_line(self) -> str:
        """The command for `sh -c`; a single one takes the shell's place: signals reach it directly."""
        # `env`, because `exec` alone does not take the `NAME=value` that may stand in front.
        return self.command if _COMPOUND.search(self.command) else f"exec env {self.command}"


def read(path: Path) -> list[Process]:
    """Return the processes in the file's order.

    Raises:
        ProcfileError: no such file, or a line that is not `name: command`, or a name used twice.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ProcfileError(f"{path}: {error.strerror}") from error
    return parse(text, source=str(path))


def parse(text: str, *, source: str = "Procfile") -> list[Process]:
    """Return the processes of a Procfile's text; empty lines and those that begin with `#` are left out."""
    processes: dict[str, Process] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        matched = _LINE.fullmatch(line.strip())
        if matched is None:
            raise ProcfileError(f"{source}, line {number}: {line.strip()!r} is not `name: command`")
        process = Process(**matched.groupdict())
        if process.name in processes:
            raise ProcfileError(f"{source}, line {number}: there already is a process {process.name!r}")
        processes[process.name] = process
    if not processes:
        raise ProcfileError(f"{source}: no process in it; a line is `name: command`")
    return list(processes.values())
