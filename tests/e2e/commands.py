"""Running `queue-manager` as a user does: what it says on a terminal, and in which environment."""

from __future__ import annotations

import os
import pty
import subprocess
from collections.abc import Sequence

from tests.e2e.celery_processes import ROOT


def environment(**env: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200", **env}


def said_on_a_terminal(command: Sequence[str]) -> str:
    ours, theirs = pty.openpty()
    env = environment(TERM="xterm-256color")
    with subprocess.Popen(command, env=env, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        said = b""
        try:
            while piece := os.read(ours, 65_536):
                said += piece
        except OSError:  # Linux: the other end was closed
            pass
        process.wait(60)
    os.close(ours)
    return said.decode()
