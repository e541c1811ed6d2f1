"""Answers about systems: the overview, scans, the schedule, items."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from models.mark import MAX_MARKS, MAX_TEXT_LENGTH, ChartMark
from models.scan_run import Scan, ScanRun
from queue_manager.core.json_types import Moment, Number
from queue_manager.explanation import Idle
from queue_manager.health_rules import Problem, by_severity
from queue_manager.items import Item
from queue_manager.operations.schemas import Latency, Members, NextCursor, ServerTime
from queue_manager.operations.workers import queues_of
from queue_manager.pauses import PauseState
from queue_manager.telemetry.latency import Measure
from queue_manager.telemetry.worker_heartbeats import OnlineWorker

MAX_ITEM_SEARCH_LENGTH = 256
MAX_RETRIED = 1_000  # items that one request sends

SystemFlag = Annotated[
    str | None, Field(description="The setting that switches the system on; null if it is always on.")
]
Trigger = Annotated[str | None, Field(description="The path that starts its scan; null while `QM_HOOKS` is off.")]
Hooks = Annotated[bool, Field(description="Whether `QM_HOOKS` is on, so that scans can be triggered.")]


class Servers(BaseModel):
    """Why a server could not be read; null if it answered."""

    mongodb: str | None
    redis: str | None


class Leader(BaseModel):
    """The beat that leads."""

    holder: str = Field(description="Its host and process id, `host:pid`.")
    since: Moment
    lease_left_seconds: float = Field(description="Seconds until its lease ends unless it is renewed.")
    epoch: int = Field(description="The number of takeovers, including that of this leader.")


class SystemState(BaseModel):
    """The state of one system; a number that could not be read is null."""

    name: str
    title: str
    page: str | None = Field(description="The path of its page.")
    pages: dict[str, str] = Field(
        description="By number, such as `stuck`: the path of the page that lists the items that it counts."
    )
    flag: SystemFlag
    is_on: bool
    due: Number | None = Field(
        description="Items that are due and not in flight. Of `job-queues`, this and `lag_seconds` are about the names "
        "that have a due job and are not run by a worker."
    )
    counted_to: int | None = Field(description="Counting due items stops at this number: that many or more.")
    in_progress: Number | None = Field(description="Items in flight.")
    stuck: Number | None = Field(description="Items whose lease ended without a result.")
    failed: Number | None = Field(description="Items whose final attempt failed.")
    lag_seconds: Number | None = Field(
        description="Seconds since the oldest due item fell due; for messages, since the first ack deadline passed. "
        "Null if unknown."
    )
    done_per_minute: int | None = Field(description="Items done in the last minute.")
    failed_per_minute: int | None = Field(
        description="In the last minute: items and jobs whose final attempt failed, or dead-lettered messages."
    )
    latency: Latency | None = Field(description="The latency of the items that were done in the last hour.")
    duration_names: dict[Measure, str] = Field(description="The names of the durations on the page.")
    errors: int | None = Field(description="Steps of its scans that failed in the last 24 hours.")
    last_scan: ScanRun | None
    next_scan_at: Moment | None = Field(description="The time of the next scan; null while no beat is the leader.")
    is_running: bool = Field(description="Whether its scan is running.")
    is_starting: bool = Field(description="Whether it is too early to expect its first scan.")
    idle: Idle | None = Field(description="Why it dispatches nothing although it is on.")
    pause: PauseState | None = Field(description="Null if it is not paused.")
    problems: list[Problem]
    numbers: dict[str, Number] = Field(description="All numbers of the system, by name.")


class Overview(BaseModel):
    """The state of all servers, processes and systems."""

    server_time: ServerTime
    servers: Servers
    leader: Leader | None
    workers: Sequence[OnlineWorker] | None = Field(description="Null while Redis does not answer.")
    problems: list[Problem] = Field(description="The problems of components; those of a system are in the system.")
    counted_to: int = Field(description="The `counted_to` of most systems; each system has its own.")
    systems: list[SystemState]

    def of_systems(self, names: Collection[str]) -> Overview:
        """Return what it says of these systems and their queues, and of the servers and processes."""
        queues = queues_of(names)
        workers = self.workers and [one.with_queues(queues) for one in self.workers]
        listed = [one for one in self.systems if one.name in names]
        problems = [one.model_copy(update={"page": None}) for one in self.problems]  # which refuses the key
        return self.model_copy(update={"workers": workers, "systems": listed, "problems": problems})

    @property
    def all_problems(self) -> list[Problem]:
        of_systems = (problem for system in self.systems for problem in system.problems)
        return by_severity([*self.problems, *of_systems])


class OneSystem(SystemState):
    """The state of one system, by itself."""

    hooks: Hooks
    trigger: Trigger
    servers: Servers
    server_time: ServerTime


class History(BaseModel):
    """Items by outcome in the last 24 hours, in buckets of equal length, the oldest first."""

    server_time: ServerTime
    bucket_seconds: int
    begins_at: Moment = Field(description="The beginning of the first bucket.")
    systems: dict[str, dict[str, list[int]] | None] = Field(
        description="By system and outcome, one number per bucket; null for a system that counts nothing."
    )


class PercentileSeries(BaseModel):
    """Percentiles of a duration, one for each step; null where there were no durations."""

    p50_ms: list[float | None]
    p95_ms: list[float | None]
    p99_ms: list[float | None]


class SystemHistory(BaseModel):
    """What a system did in a range of time, in steps of equal length, the oldest first; the last one is incomplete."""

    server_time: ServerTime
    begins_at: Moment = Field(description="The beginning of the first step.")
    step_seconds: int
    outcomes: dict[str, list[int | None]] = Field(
        description="By outcome, one number per step; null if nothing is known of the step."
    )
    percentiles: dict[Measure, PercentileSeries]
    latency: Latency = Field(description="The latency in the whole range.")
    duration_names: dict[Measure, str] = Field(description="The names of the durations on the page.")
    marks: Sequence[ChartMark] = Field(description=f"The last {MAX_MARKS:,} of the range, the oldest first.")


class NewMark(Members):
    """A mark in the charts."""

    text: str = Field(
        min_length=1,
        max_length=MAX_TEXT_LENGTH,
        description="The text of the mark, such as the version that was deployed.",
    )


class Scans(BaseModel):
    """A page of the scans of the last 24 hours, the newest first."""

    scans: list[Scan]
    cursor: NextCursor
    server_time: ServerTime


class ScheduleEntry(BaseModel):
    """One scan of the schedule."""

    name: str
    title: str
    description: str
    flag: SystemFlag
    task: str = Field(description="The name of the Celery task.")
    is_on: bool
    trigger: Trigger
    period_seconds: Number
    cron: str | None = Field(description="Its cron expression; null if it runs once per period.")
    next_run_at: Moment | None = Field(description="Null while no beat is the leader or the system is off.")
    is_running: bool
    last_run: ScanRun | None
    last_runs: Sequence[ScanRun] = Field(description="The last ten runs, the newest first.")


class Schedule(BaseModel):
    """The schedule of all scans."""

    server_time: ServerTime
    leader: Leader | None
    hooks: Hooks
    entries: list[ScheduleEntry]


class Items(BaseModel):
    """A page of items in one state."""

    items: list[Item]
    cursor: NextCursor
    server_time: ServerTime


class ItemDocument(BaseModel):
    """The document of an item."""

    document: dict[str, Any]


class Sent(BaseModel):
    """How many items were sent."""

    sent: int
    of: int = Field(description="The number of items that match.")


class SentTask(BaseModel):
    """The task that was sent."""

    task_id: str


class PausedSystem(BaseModel):
    """Whether a system is paused."""

    name: str
    is_paused: bool
    pause: PauseState | None = Field(description="Null if it is not paused.")


class RetriedItems(Members):
    """Which items to retry: those of `ids`, or those in a state."""

    ids: list[str] | None = Field(default=None, max_length=MAX_RETRIED, description="Instead of `state` and `search`.")
    state: Literal["due", "stuck", "failed"] | None = None
    search: str | None = Field(
        default=None, max_length=MAX_ITEM_SEARCH_LENGTH, description="A text in the id, the title or the reason."
    )
