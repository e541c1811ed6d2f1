"""A `celery` command as a real process in a session of its own, with its log in a file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.eventually import eventually


def lines(diary: Path) -> list[str]:
    """Return the lines that tasks have written to a file."""
    return diary.read_text().splitlines() if diary.exists() else []


class CeleryProcess:
    """Runs `celery -A <app> <arguments>`; ends it, with all its children, when the block ends."""

    def __init__(
        self, *arguments: str, log: Path, broker_url: str, app: str = "tests.broker.guard_app", **environment: str
    ) -> None:
        self._log = log
        variables = {f"GUARD_APP_{name.upper()}": value for name, value in environment.items()}
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "celery", "-A", app, *arguments],
                env={**os.environ, "GUARD_APP_BROKER_URL": broker_url, **variables},
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """The exit code; `None` while it runs."""
        return self._process.poll()

    @property
    def log(self) -> str:
        return self._log.read_text()

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def says(self, text: str, *, times: int = 1, within: float = 60.0) -> Self:
        """Wait until the log holds `text`, `times` times."""
        eventually(lambda: self.log.count(text) >= times or self._not_yet(text), within=within)
        return self

    def _not_yet(self, text: str) -> bool:
        assert self.is_alive, f"the process ended:\n{self.log}"
        raise AssertionError(f"no {text!r} in:\n{self.log}")

    def send(self, signal_number: signal.Signals) -> None:
        """Send a signal to the main process alone."""
        os.kill(self.pid, signal_number)

    def kill(self) -> None:
        """End the process and all its children with SIGKILL, as the loss of a host would."""
        if self.is_alive:
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
