"""What somebody sees of a run: a screen on a terminal, plain lines elsewhere, or all logs.

Guarantee: closing the screen restores the terminal's content and cursor. A terminal that has gone stops nothing here.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from threading import RLock

from rich.console import Console, Group
from rich.live import Live

from dev import run_status
from dev.output import READY, LogFiles, LogStream, ProcessOutput, warning_in
from dev.processes import describe
from dev.run_status import STOP_HINT, STOPPING, Entry, ProcessStatus, RunStatus, State

ACTIVITY = ("summary", "demo")  # the processes whose lines are meant for people


class Display:
    """Keeps the status of a run, and prints each change of it as a line."""

    def __init__(self, run: RunStatus) -> None:
        self.run = run
        self._lock = RLock()

    def open(self) -> None:
        """Begin to show."""

    def close(self) -> None:
        """Give the terminal back. Safe to repeat, and without `open`."""

    def expect(self, names: Iterable[str]) -> None:
        """Tell what will be started, in this order."""
        now = datetime.now()
        self.run.processes = {name: ProcessStatus(name, now) for name in names}

    def starting(self, name: str) -> None:
        with self._lock:
            known = self.run.processes[name]
            restarts = known.restarts + (known.state is not State.WAITING)
            self.run.processes[name] = ProcessStatus(name, datetime.now(), State.STARTING, restarts)
            self.print(f"{name}: starting")

    def running(self, name: str, detail: str = "running") -> None:
        with self._lock:
            status = self.run.processes[name]
            status.state, status.since = State.RUNNING, datetime.now()
            self.print(f"{name}: {detail}")

    def ended(self, name: str, how: str, *, is_final: bool = False) -> None:
        with self._lock:
            status = self.run.processes[name]
            status.state, status.reason = State.STOPPED if is_final else State.FAILED, how
            if not is_final:
                self.run.warn(f"{name}: {how}", datetime.now())
            self.print(f"{name}: {how}")

    def done(self, name: str) -> None:
        """Tell that a process that runs once has succeeded."""
        with self._lock:
            del self.run.processes[name]
            self.note(f"{name}: done")

    def output(self, name: str, line: str) -> None:
        """Take a line of a process's output: what it says to people is shown."""
        with self._lock:
            status = self.run.processes.get(name)  # none: it was done, and something that it left behind still writes
            if status and status.state is State.STARTING and READY.get(name, "") in line:
                self.running(name)
            if text := warning_in(line):
                warning = f"{name}: {_printable(text)}"
                if self.run.warn(warning, datetime.now()):
                    self.print(warning)
            elif name in ACTIVITY:
                self.note(_printable(line))

    def note(self, text: str) -> None:
        """Tell what happened."""
        with self._lock:
            self.run.events.append(Entry(datetime.now(), text))
            self.print(text)

    def set_addresses(self, addresses: Mapping[str, str]) -> None:
        self.run.addresses = dict(addresses)

    def ready(self) -> None:
        """Tell that the addresses can be opened."""
        width = max(map(len, self.run.addresses))
        self.print("Queue Manager")
        for title, url in self.run.addresses.items():
            self.print(f"{title:<{width}}  {url}")
        self.print(f"Logs: {self.run.logs}; {STOP_HINT}")

    def stopping(self) -> None:
        """Tell that a signal was received. Takes no lock: a signal handler may call it."""
        self.run.is_stopping = True
        say(STOPPING)

    def picture(self, height: int) -> Group:
        """Return the run as a screen of so many lines shows it."""
        with self._lock:
            return Group(*run_status.lines(self.run, now=datetime.now(), height=height))

    def print(self, line: str) -> None:
        # A terminal that was closed must not end the processes' readers: without them the processes would hang.
        with self._lock, suppress(OSError):
            print(line, flush=True)


class AllLogs(Display):
    """Shows every line of every process, too."""

    def expect(self, names: Iterable[str]) -> None:
        names = list(names)
        super().expect(names)
        self._stream = LogStream(names)

    def output(self, name: str, line: str) -> None:
        self._stream.write(name, line)


def say(line: str) -> None:
    """Print a line, also from a signal handler."""
    # Unbuffered, because a signal may have interrupted a print; and the terminal may be what has gone.
    with suppress(OSError):
        os.write(sys.stdout.fileno(), f"{line}\n".encode())


class Screen(Display):
    """Shows how everything is, on the whole terminal."""

    def __init__(self, run: RunStatus) -> None:
        super().__init__(run)
        self._console = Console()
        self._live = Live(
            console=self._console,
            get_renderable=lambda: self.picture(self._console.height),
            screen=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def open(self) -> None:
        self._live.start()

    def close(self) -> None:
        with suppress(OSError):
            self._live.stop()

    def stopping(self) -> None:
        self.run.is_stopping = True

    def print(self, line: str) -> None:
        """Print nothing: the screen is drawn again several times a second."""


class RunLog(ProcessOutput):
    """Keeps the whole output in files, and reports to a display."""

    def __init__(self, files: LogFiles, display: Display) -> None:
        self._files = files
        self._display = display

    def write(self, name: str, line: str) -> None:
        self._files.write(name, line)
        self._display.output(name, line)

    def starting(self, name: str) -> None:
        self._display.starting(name)
        if name not in READY:
            self._display.running(name)

    def ended(self, name: str, code: int, *, restart_in: float | None) -> None:
        how = describe(code, restart_in=restart_in)
        reason = self._files.last_lines(name, 1) if code > 0 else []
        self._files.write(name, f"({how})")
        self._display.ended(name, ": ".join([how, *map(_printable, reason)]), is_final=restart_in is None)


def _printable(line: str) -> str:
    return "".join(character if character.isprintable() else " " for character in line)
