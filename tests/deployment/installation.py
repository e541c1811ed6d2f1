"""A wheel of some release, installed in an environment of its own, and the processes of its Procfile."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path

from dev import procfile
from dev.children import Child, spawn
from tests.eventually import eventually

ROOT = Path(__file__).parents[2]
READY = {"worker": " ready.", "jobs": " ready.", "scans": " ready.", "beat": "beat: Starting", "flower": "Visit me at"}


@dataclass(frozen=True)
class Installation:
    """The directory of a virtual environment, and the sources of the release that is installed there."""

    venv: Path
    source: Path

    def command(self, name: str) -> str:
        return next(one.shell_line for one in procfile.read(self.source / "Procfile") if one.name == name)

    def run(self, *command: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, env=self.environment(**env), cwd=cwd, capture_output=True, text=True, check=False
        )

    def environment(self, **env: str) -> dict[str, str]:
        """Return the environment of its commands, in which nothing of the repository can be imported."""
        return {
            **_own_environment(),
            "PATH": f"{self.venv / 'bin'}:{os.environ['PATH']}",
            "PYTHONUNBUFFERED": "1",
            **env,
        }

    @contextmanager
    def process(self, name: str, directory: Path, *, command: str | None = None, **env: str) -> Iterator[Child]:
        """Start a process of its Procfile in `directory`, and wait until its log says that it is ready.

        `command` replaces that of the Procfile.
        """
        log = directory / f"{self.venv.name}-{name}.log"
        with log.open("wb") as output:
            words = ["sh", "-c", command or self.command(name)]
            child = spawn(words, env=self.environment(**env), cwd=directory, stdout=output, stderr=output, grace=30)
        try:
            if name in READY:
                eventually(lambda: READY[name] in log.read_text(errors="replace"))
            yield child
        finally:
            child.kill()


def _own_environment() -> dict[str, str]:
    """Return the environment without this checkout on Python's path, in which pip would find it installed."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


def build(source: Path, directory: Path, *formats: str) -> Path:
    """Build the distributions of `source`, and return the wheel."""
    run(sys.executable, "-m", "build", *formats, "--outdir", directory, source)
    (wheel,) = directory.glob("*.whl")
    return wheel


def install(wheel: Path, venv: Path, *, source: Path = ROOT) -> Installation:
    """Install a wheel that was built from `source` as an operator does, with the pinned versions."""
    run(sys.executable, "-m", "venv", venv)
    pip = (venv / "bin" / "python", "-m", "pip", "--disable-pip-version-check", "install", "--no-compile")
    run(*pip, "-c", ROOT / "constraints.txt", wheel)
    return Installation(venv, source)


def run(*command: str | Path, timeout: float = 300) -> str:
    """Return what a command printed. Raises AssertionError with it if the command fails."""
    done = subprocess.run(
        command,
        env=_own_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def status(port: int, path: str) -> int | None:
    """Return the status of a GET request; `None` while nothing listens."""
    connection = HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    except ConnectionError:
        return None
    finally:
        connection.close()
