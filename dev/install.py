"""Installs the project with the given extras into this environment: `python -m dev.install embedded,dev`.

On a terminal, one line shows how far it is. All that pip writes goes to `install.log` in the environment, and is shown
if it fails. Standard library only: nothing else is installed yet.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TextIO

PACKAGE = re.compile(r"(Collecting|Processing|Obtaining) ")
UNPACKING = "Installing collected packages"


def main(extras: str) -> int:
    """Install; return pip's exit code."""
    log = Path(sys.prefix) / "install.log"
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
