"""Starting processes that cannot outlive us: each one leads its own session and is known to the keeper.

Guarantee: when this process ends, also by `kill -9`, every child started here ends with all of its own
children. A child waits at a gate until the keeper knows of it, so that there is no moment at which it could
be missed.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import IO, Any

from dev.keeper_pipe import keeper_pipe
from dev.processes import ProcessGroup, started_at

# The shell waits for one line and then becomes the command: same number, same start time. When we die
# before the line is written, it reads the end of the pipe instead and leaves.
_GATE = ["/bin/sh", "-c", 'read -r _ && exec "$@" </dev/null', "sh"]

Output = int | IO[Any] | None


class Child(ProcessGroup):
    """A process that we started, with its group. After `end` or `kill` the keeper forgets it."""

    def __init__(self, popen: subprocess.Popen[bytes], *, grace: float) -> None:
        super().__init__(popen.pid, started_at(popen.pid) or "ended already", grace=grace)
        self.stdout = popen.stdout
        self._popen = popen
        self._is_over = False
        self._ending = Lock()  # a second SIGTERM would mean "now" to many programs

    def leader_runs(self) -> bool:
        return self.poll() is None

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; `None` while it runs."""
        return self._popen.poll()

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code once it has ended. Raises subprocess.TimeoutExpired."""
        return self._popen.wait(timeout)

    def end(self, *, grace: float | None = None) -> None:
        """End it in order, and what it left behind, within `grace` seconds. Safe to repeat."""
        with self._ending:
            if not self._is_over:
                super().end(grace=grace)

    def kill(self) -> None:
        """End it and its children at once. Safe to repeat."""
        if not self._is_over:
            super().kill()
            self._popen.wait()
            self._is_over = True
            keeper_pipe.forget(self)


def spawn(
    command: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stdout: Output = None,
    stderr: Output = None,
    grace: float = 5.0,
) -> Child:
    """Start `command` in a session of its own, with nothing to read on stdin.

    `grace` is how many seconds it gets to end by itself, here and with the keeper. A command that cannot be
    run ends with 127, or with 126 when it is not executable, and says so on its stderr.
    """
    popen = subprocess.Popen(
        [*_GATE, *command],
        env=env,
        cwd=cwd,
        stdin=subprocess.PIPE,
        stdout=stdout,
        stderr=stderr,
        start_new_session=True,
    )
    child = Child(popen, grace=grace)
    keeper_pipe.keep(child)
    assert popen.stdin is not None
    with suppress(BrokenPipeError), popen.stdin as gate:  # broken: killed at the gate, its exit code says so
        gate.write(b"\n")
    return child


def kill_all() -> None:
    """Kill every child and all that it started, at once. Takes no lock: a signal handler may call it."""
    for group in keeper_pipe.kept():
        ProcessGroup.kill(group)
