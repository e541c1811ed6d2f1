"""Why an item, a message or a job is in its state: one answer in words, and a timeline of what happened to it.

Each system explains its own (`System.explain`), so that the API, the pages and `queue-manager why` say the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from math import ceil
from typing import Any, Literal

from queue_manager.core.clock import seconds
from queue_manager.core.pause import Pause

Tone = Literal["good", "neutral", "warn", "bad"]
_UNITS = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))


@dataclass(frozen=True, kw_only=True)
class TimelineEntry:
    """Something that happened."""

    at: datetime
    event: str
    """In a few words, such as `Attempt 2 failed`."""
    detail: str = ""
    worker: str | None = None
    """Host and process, as `host:pid`."""
    duration: timedelta | None = None
    error: str | None = None
    task_id: str | None = None


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """What an id names, and why it is in its state."""

    system: str
    kind: str
    """What it is: `room`, `message`, `job`."""
    id: str
    title: str = ""
    """What people know it by."""
    state: str
    """In a word or two."""
    tone: Tone = "neutral"
    answer: str
    """One or two sentences."""
    due_at: datetime | None = None
    page: str
    """The path of its page."""
    document: str
    """The path of the whole document in the API."""
    retry: str | None = None
    """The path of its retry in the API, if it can be retried now."""
    retry_body: Mapping[str, Any] = field(default_factory=dict)
    """What is sent there."""
    timeline: Sequence[TimelineEntry] = ()
    """Newest first."""
    has_whole_timeline: bool = True
    """False if reading it took too long."""


Idle = Literal["paused", "dry run"]
"""Why the scans of a system dispatch nothing."""


@dataclass(frozen=True, kw_only=True)
class DispatchState:
    """What decides when the items of a system are dispatched, and who executes them."""

    now: datetime
    """By the database server."""
    is_on: bool
    flag: str | None
    """The setting that switches the system on."""
    idle: Idle | None
    pause: Pause | None = None
    """Why its scans dispatch nothing."""
    has_leader: bool
    next_scan_at: datetime | None
    period: timedelta
    workers: Sequence[str] | None
    """The names of the workers that take its items; `None` if unknown."""
    name: str

    @property
    def has_no_worker(self) -> bool:
        """Return True if it is known that no worker takes its items."""
        return self.workers is not None and not self.workers

    def scan(self, since: datetime | None = None) -> str:
        """Return what to say of the next scan, or of the first one at or after `since`."""
        if not self.is_on:
            return f"the system is off: see {self.flag or 'its settings'}"
        if self.idle == "paused":
            why = pause_text(self.pause, self.now)
            return f"the system is paused{why}: see `queue-manager systems resume {self.name}`"
        if self.idle == "dry run":
            return "the system is in a dry run: see QM_DRY_RUN"
        if not self.has_leader:
            return "no scan runs, because no beat leads"
        if self.next_scan_at is None:
            return "the time of the next scan is unknown"
        at = self.next_scan_at
        if since is not None and since > at:
            at += ceil((since - at) / self.period) * self.period
        if at <= self.now:
            return "the next scan is running or about to run"
        return f"the {'next scan' if since is None else 'scan that can take it'} runs at {clock(at, self.now)}"


def newest_first(entries: Iterable[TimelineEntry]) -> list[TimelineEntry]:
    """Return the entries by time. Of two with the same time, the one that was given later is the newer one."""
    return sorted(entries, key=lambda entry: entry.at)[::-1]


# Words


def sentence(*clauses: str) -> str:
    """Return clauses as a sentence; empty ones are left out."""
    said = "; ".join(filter(None, clauses))
    return f"{said[:1].upper()}{said[1:]}{'' if said.endswith(('.', '!', '?')) else '.'}"


def pause_text(pause: Pause | None, now: datetime) -> str:
    """Return ` since … by … (reason)`, as far as it is known."""
    if pause is None:
        return ""
    since = "" if pause.at is None else f" since {when(pause.at, now)}"
    by = "" if pause.by is None else f" by {pause.by}"
    return f"{since}{by}{f' ({pause.reason})' if pause.reason else ''}"


def when(moment: datetime, now: datetime) -> str:
    """Return `14:00 UTC, in 3 h 12 min`, or `13:02:10 UTC, 3 min ago`; with the date if it is not today."""
    return f"{clock(moment, now)}, {distance(moment, now)}"


def distance(moment: datetime, now: datetime) -> str:
    """Return `in 3 h 12 min`, `3 min ago` or `now`."""
    if abs(moment - now) < seconds(1):
        return "now"
    return f"in {span(moment - now)}" if moment > now else f"{span(now - moment)} ago"


def clock(moment: datetime, now: datetime) -> str:
    """Return the time of day in UTC, with the date if it is not today."""
    time = moment.strftime("%H:%M" if moment.second == 0 else "%H:%M:%S")
    if moment.date() == now.date():
        return f"{time} UTC"
    year = "" if moment.year == now.year else f" {moment.year}"
    return f"{moment.day} {moment.strftime('%b')}{year}, {time} UTC"


def span(time: timedelta) -> str:
    """Return a time in its two largest units, such as `3 h 12 min`."""
    left, parts = int(time.total_seconds()), list[str]()
    for unit, size in _UNITS:
        count, left = divmod(left, size)
        if count or parts:
            parts.append(f"{count} {unit}" if count else "")
        if len(parts) == 2:
            break
    return " ".join(filter(None, parts)) or "less than a second"


def many(count: int, thing: str) -> str:
    """Return `1 room`, `1,204 rooms`."""
    return f"{count:,} {thing}{'' if count == 1 else 's'}"


def ordinal(number: int) -> str:
    """Return `1st`, `2nd`, `11th`."""
    ending = "th" if 10 <= number % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"
