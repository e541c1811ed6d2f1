"""Why an item, a message or a job is in its state: one answer in words, and a timeline of what happened to it.

Each system explains its own (`System.explain`), so that the API, the pages and `queue-manager why` say the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from math import ceil
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, with_config

from queue_manager.core.clock import capped_sum
from queue_manager.core.json_types import ALWAYS_PRESENT, Moment, Number, optional
from queue_manager.core.settings import settings
from queue_manager.core.wording import clock, when
from queue_manager.pauses import PauseState, person

if TYPE_CHECKING:
    from queue_manager.system import System

Tone = Literal["good", "neutral", "warn", "bad"]


@with_config(ALWAYS_PRESENT)
@dataclass(frozen=True, kw_only=True)
class TimelineEvent:
    """Something that happened."""

    at: Moment
    event: Annotated[str, Field(description="In a few words, such as `Attempt 2 failed`.")]
    detail: str = ""
    worker: Annotated[str | None, optional("Host and process, as `host:pid`.")] = None
    duration_ms: Annotated[
        Number | None,
        optional("How long it took; an item of a batch has that of the batch."),
    ] = None
    error: Annotated[str | None, optional("Why it failed.")] = None
    task_id: Annotated[str | None, optional("The id of the Celery task.")] = None


@with_config(ALWAYS_PRESENT)
@dataclass(frozen=True, kw_only=True)
class Explanation:
    """What an id names, and why it is in its state."""

    system: str
    kind: Annotated[str, Field(description="What it is, such as `room`, `message` or `job`.")]
    id: str
    title: Annotated[str, Field(description="Its title; may be empty.")] = ""
    label: Annotated[str, Field(description="Its state, in a word or two.")]
    tone: Annotated[Tone, Field(description="How good or bad that is.")] = "neutral"
    answer: Annotated[str, Field(description="Why it is in this state, in one or two sentences.")]
    due_at: Moment | None = None
    page: Annotated[str, Field(description="The path of its page.")]
    document: Annotated[str, Field(description="The path of its document.")]
    retry: Annotated[str | None, Field(description="The path of its retry; null if it cannot be retried now.")] = None
    retry_body: Annotated[Mapping[str, Any], Field(description="What to send there.")] = field(default_factory=dict)
    timeline: Annotated[Sequence[TimelineEvent], Field(description="What happened to it, newest first.")] = ()
    has_whole_timeline: Annotated[
        bool,
        Field(description="False if reading the batches of a day took too long."),
    ] = True


Idle = Literal["paused", "dry run"]
"""Why the scans of a system dispatch nothing."""


@dataclass(frozen=True, kw_only=True)
class DispatchState:
    """What decides when the items of a system are dispatched, and which workers execute them."""

    system: System
    now: datetime
    """By the database server."""
    is_on: bool
    idle: Idle | None
    pause: PauseState | None = None
    has_leader: bool | None
    """`None` if Redis does not answer."""
    next_scan_at: datetime | None
    workers: Sequence[str] | None
    """The names of the workers that take its items; `None` if unknown."""
    has_dead_letter: Callable[[str], bool] = lambda _: False
    """Returns True if the message of a task is one of the newest dead letters of the broker."""

    @property
    def has_no_worker(self) -> bool:
        """Return True if it is known that no worker takes its items."""
        return self.workers is not None and not self.workers

    def scan(self, since: datetime | None = None) -> str:
        """Return a clause about the next scan, or about the first one at or after `since`."""
        if not self.is_on:
            return f"the system is off: see {self.system.flag or 'its settings'}"
        if self.idle == "paused":
            why = pause_text(self.pause, self.now)
            return f"the system is paused{why}: see `queue-manager systems resume {self.system.name}`"
        if self.idle == "dry run":
            return "the system is in a dry run: see QM_DRY_RUN"
        if self.has_leader is None:
            return "the time of the next scan is unknown, because Redis does not answer"
        if not self.has_leader:
            return "no scan runs, because no beat is the leader"
        if self.next_scan_at is None:
            return "the time of the next scan is unknown"
        at = self.next_scan_at
        if since is not None and since > at:
            period = self.system.period(settings())
            at = capped_sum(at, ceil((since - at) / period) * period)
        if at <= self.now:
            return "the next scan is running or about to run"
        return f"the {'next scan' if since is None else 'scan that can take it'} runs at {clock(at, self.now)}"


def newest_first(entries: Iterable[TimelineEvent]) -> list[TimelineEvent]:
    """Return the entries by time. Of two with the same time, the one that was given later is the newer one."""
    return sorted(entries, key=lambda entry: entry.at)[::-1]


def pause_text(pause: PauseState | None, now: datetime) -> str:
    """Return ` since … by … (reason)`, as far as it is known."""
    if pause is None:
        return ""
    since = "" if pause.at is None else f" since {when(pause.at, now)}"
    by = "" if pause.by is None else f" by {person(pause.by)}"
    return f"{since}{by}{f' ({pause.reason})' if pause.reason else ''}"
