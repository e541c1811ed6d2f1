"""Installs the project with the given extras into this environment, and records what it installed from in files.

`python -m dev.install embedded,dev .venv/.installed-dev .venv/.installed-up` does nothing but touch the files if they
have the same record. On a terminal, one line shows how far it is. All that pip writes goes to `install.log` next to
the files, and is shown if it fails. Standard library only: nothing else is installed yet.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TextIO

PACKAGE = re.compile(r"(Collecting|Processing|Obtaining) ")
UNPACKING = "Installing collected packages"


def main(extras: str, *files: str) -> int:
    """Install if a file lacks the record, and write it; return pip's exit code."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it without a traceback
    record, directory = _record(), Path(files[0]).parent
    outdated = [file for file in directory.glob(".installed-*") if file.read_text() != record]
    if outdated or not all(Path(file).exists() for file in files):
        for file in outdated:  # also those of other extras, whose packages change now
            file.unlink()
        if (code := _install(extras, directory / "install.log")) != 0:
            return code
    for name in files:
        Path(name).write_text(record)
    return 0


def _record() -> str:
    """Return what pip reads."""
    project = tomllib.loads(Path("pyproject.toml").read_text())
    read = [project["build-system"], project["project"], project["tool"]["setuptools"]]
    return json.dumps([*read, Path("constraints.txt").read_text()])


def _install(extras: str, log: Path) -> int:
    print(f"Installing {extras} into .venv (up to a minute)")
    pip = [sys.executable, "-m", "pip", "install", "--no-compile", "-c", "constraints.txt", "-e", f".[{extras}]"]
    with (
        log.open("w") as file,
        subprocess.Popen(pip, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as run,
    ):
        assert run.stdout is not None
        for state in progress(_copied(run.stdout, file)):
            if sys.stdout.isatty():
                print(f"\r  {state}\033[K", end="", flush=True)
    if sys.stdout.isatty():
        print("\r\033[K", end="")
    if run.returncode:
        print(log.read_text(), file=sys.stderr)
    return run.returncode


def progress(lines: Iterable[str]) -> Iterator[str]:
    """Yield what pip does, whenever it does something else."""
    packages = 0
    for line in lines:
        if PACKAGE.match(line):
            packages += 1
            yield f"downloading package {packages}"
        elif line.startswith(UNPACKING):
            yield f"unpacking {packages} packages"


def _copied(lines: Iterable[str], file: TextIO) -> Iterator[str]:
    for line in lines:
        file.write(line)
        yield line


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
