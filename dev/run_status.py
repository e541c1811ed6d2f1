"""What `make up` knows about its run, and the lines of the screen that show it."""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from itertools import islice

from rich.text import Text

from queue_manager.core.clock import seconds

MAX_START = seconds(20)  # after so long a process counts as running: it may log nothing
MAX_KEPT = 50  # events, and warnings
_VALUES = re.compile(r" \w+=.*")  # at the end of a log line
_NUMBERS = re.compile(r"\d+")
ROOM_FOR_GAP = 6  # lines of a section, from which on an empty one stands before it
STOP_HINT = "Ctrl-C stops everything"
STOPPING = "stopping, in order; once more to stop at once"


class State(StrEnum):
    """How a process is."""

    WAITING = "waiting"  # not started yet
    STARTING = "starting"  # running once it says so, or after `MAX_START`
    RUNNING = "running"
    FAILED = "failed"  # it ended, and is started again
    STOPPED = "stopped"


_STYLES = {
    State.WAITING: "dim",
    State.STARTING: "yellow",
    State.RUNNING: "green",
    State.FAILED: "red",
    State.STOPPED: "dim",
}


@dataclass
class ProcessStatus:
    """How one process is, and since when."""

    name: str
    since: datetime
    state: State = State.WAITING
    restarts: int = 0
    reason: str = ""
    """How it ended, and when it starts again."""

    def state_at(self, now: datetime) -> State:
        is_late = self.state is State.STARTING and now - self.since > MAX_START
        return State.RUNNING if is_late else self.state

    def describe(self, now: datetime) -> str:
        """Say it in a few words: `running since 16:20:05, restarted 2 times`."""
        state = self.state_at(now)
        words = f"{state} since {self.since:%H:%M:%S}" if state is State.RUNNING else str(state)
        if self.restarts:
            words += f", restarted {'once' if self.restarts == 1 else f'{self.restarts} times'}"
        return f"{words}: {self.reason}" if self.reason else words


@dataclass
class Entry:
    """Something that happened, `count` times, the last time `at`."""

    at: datetime
    text: str
    count: int = 1

    def __str__(self) -> str:
        times = f"{self.count} times: " if self.count > 1 else ""
        return f"{self.at:%H:%M:%S} {times}{self.text}"


@dataclass
class RunStatus:
    """A whole run."""

    logs: str
    """Where the log files are."""
    addresses: dict[str, str] = field(default_factory=dict)
    processes: dict[str, ProcessStatus] = field(default_factory=dict)
    events: deque[Entry] = field(default_factory=lambda: deque(maxlen=MAX_KEPT))
    warnings: deque[Entry] = field(default_factory=lambda: deque(maxlen=MAX_KEPT))
    is_stopping: bool = False

    def warn(self, text: str, now: datetime) -> bool:
        """Add a warning. Return False if one that differs only in numbers and values was there: it is counted."""
        known = next((entry for entry in self.warnings if _gist(entry.text) == _gist(text)), None)
        if known:
            self.warnings.remove(known)
        self.warnings.append(Entry(now, text, known.count + 1 if known else 1))
        return known is None


def _gist(text: str) -> str:
    return _NUMBERS.sub("", _VALUES.sub("", text))


def lines(run: RunStatus, *, now: datetime, height: int) -> list[Text]:
    """Return the lines of a screen of `height`: the newest events and warnings take what the others leave."""
    top = [_header(run), *_addresses(run), Text(""), *_processes(run, now)]
    bottom = [Text(f"Logs: {run.logs}/<process>.log, or make up LOGS=1", "dim")]
    room = max(height - len(top) - len(bottom), 0)
    warnings = _newest("Warnings", run.warnings, room // 2 if run.events else room, "yellow")
    events = _newest("What happens", run.events, room - len(warnings), "")
    padding = [Text("")] * (room - len(events) - len(warnings))
    shown = [*top, *events, *warnings, *padding, *bottom][:height]
    for line in shown:
        line.no_wrap, line.overflow = True, "ellipsis"
    return shown


def _header(run: RunStatus) -> Text:
    hint = (STOPPING, "yellow") if run.is_stopping else (STOP_HINT, "dim")
    return Text.assemble(("Queue Manager", "bold"), "  ", hint)


def _addresses(run: RunStatus) -> list[Text]:
    width = max(map(len, run.addresses), default=0)
    return [Text.assemble((f"{title:<{width}}  ", "bold"), url) for title, url in run.addresses.items()]


def _processes(run: RunStatus, now: datetime) -> list[Text]:
    width = max(map(len, run.processes), default=0)
    return [
        Text.assemble((f"{status.name:<{width}}  ", "bold"), (status.describe(now), _STYLES[status.state_at(now)]))
        for status in run.processes.values()
    ]


def _newest(title: str, entries: deque[Entry], room: int, style: str) -> list[Text]:
    """Return a title and the newest entries under it in `room` lines; nothing if there are none, or no room."""
    titles = [Text(""), Text(title, "bold")] if room >= ROOM_FOR_GAP else [Text(title, "bold")]
    shown = list(islice(reversed(entries), max(room - len(titles), 0)))
    return [*titles, *(Text(str(entry), style) for entry in reversed(shown))] if shown else []
