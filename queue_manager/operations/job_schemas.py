"""Bodies and answers about jobs."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, Strict, ValidationError

from models.database import Document
from models.job import JobState
from queue_manager.core.errors import InvalidField
from queue_manager.core.json_types import Moment, optional
from queue_manager.operations.schemas import (
    PAUSE_REASON,
    At,
    IsComplete,
    Latency,
    Members,
    NextCursor,
    ServerTime,
    UndoId,
)
from queue_manager.pauses import PauseState
from services.job_queues import as_json
from services.job_queues.fields import JOB_NAME, MAX_ARGUMENTS_BYTES, MAX_DELAY, MAX_PRIORITY

MAX_JOB_BODY = MAX_ARGUMENTS_BYTES * 11 // 10
MAX_NAMES = 1_000
MAX_CHANGED = 1_000  # jobs that one request changes

ChangeResult = Literal["CHANGED", "NOT_FOUND", "WRONG_STATE", "BLOCKED", "CONTENDED"]
SortField = Literal["created", "due", "updated", "priority", "attempts"]


def _unicode(value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError("must not contain unpaired surrogates") from None
    return value


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


State = Annotated[JobState, Strict(False)]
Whole = Annotated[int, BeforeValidator(_whole)]  # JavaScript stores doubles
JobName = Annotated[str, Field(json_schema_extra={"pattern": f"^{JOB_NAME.pattern}$"})]
JobPriority = Annotated[int, Field(ge=-MAX_PRIORITY, le=MAX_PRIORITY, description="A higher one is run first.")]


class When(Members):
    """When a job is due, in one of two ways."""

    at: At = Field(default=None, description="An ISO 8601 time with a zone, within ten years.")
    delay_seconds: float | None = Field(
        default=None, ge=0, le=MAX_DELAY.total_seconds(), description="Seconds from now, instead of `at`."
    )

    def due(self) -> dict[str, Any]:
        """Return `{at, delay}`. Raises `InvalidField`: both are given."""
        if self.at is not None and self.delay_seconds is not None:
            raise InvalidField("at", "must not be given together with delay_seconds")
        return {"at": self.at, "delay": None if self.delay_seconds is None else timedelta(seconds=self.delay_seconds)}


class NewJob(When):
    """A job to be stored; without a time it is due now."""

    name: JobName
    arguments: list[Any] = Field(default=[], description="At most 1 MiB as BSON, and 64 levels deep.")
    priority: JobPriority = 0
    unique: bool = Field(default=False, description="Only if no job has the same name and arguments, in any state.")
    singular: bool = Field(default=False, description="Only if none of them is pending, failed or executing.")
    every_seconds: float | None = Field(
        default=None, ge=1, le=MAX_DELAY.total_seconds(), description="Repeats the job; it is singular then."
    )
    cron: str | None = Field(default=None, description="Repeats the job at the times of a cron expression in UTC.")

    def repetition(self) -> dict[str, Any]:
        """Return `{every, cron}`. Raises `InvalidField`: both are given."""
        if self.every_seconds is not None and self.cron is not None:
            raise InvalidField("cron", "must not be given together with every_seconds")
        every = None if self.every_seconds is None else timedelta(seconds=self.every_seconds)
        return {"every": every, "cron": self.cron}


class JobToRetry(Members):
    """In which state a job is retried."""

    state: State | None = Field(
        default=None, description="Only if the job is in this state, such as that in which a person saw it."
    )


class Rescheduling(When):
    """A new time, a new priority, or both."""

    priority: JobPriority | None = None


class Names(Members):
    """Names of queues."""

    names: list[JobName] = Field(min_length=1, max_length=MAX_NAMES)


class NamesToPause(Names):
    """Names of queues, and why they are paused."""

    reason: str | None = PAUSE_REASON


class JobsToDelete(Members):
    """Which jobs to delete."""

    states: list[Literal["pending", "success", "failure", "canceled", "cancelled"]] = Field(
        min_length=1, max_length=MAX_NAMES
    )
    name: JobName | None = Field(default=None, description="Only jobs of this name; all without it.")
    preview: bool = Field(
        default=False,
        description="Count them, up to 100,000, and delete nothing. `is_complete` is false if there are more.",
    )


class JobIds(Members):
    """Which jobs to change."""

    ids: list[Annotated[str, AfterValidator(_unicode)]] = Field(min_length=1, max_length=MAX_CHANGED)


# Answers


class Stored(BaseModel):
    """A job or a part of it, against which documents are checked; another program may have written them."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)


class JobLease(Stored):
    """The lease of a worker on a job."""

    token: str
    claimed_until: Moment
    worker: str | None = optional("Host and process, as `host:pid`.")
    timeout_seconds: float | None = optional("The time limit of the attempt.")
    ends_at: Moment | None = optional("When its process is killed unless the function has stopped.")
    canceled_at: Moment | None = optional("When it was asked to stop.")


class HistoryEntry(Stored):
    """Something that happened to a job."""

    model_config = ConfigDict(extra="allow")

    at: Moment
    state: State
    attempt: Whole | None = optional("The attempt that ended, counted from 1.")
    run: str | None = optional("The task that ran it.")
    worker: str | None = optional("Host and process that ran it, as `host:pid`.")
    took_ms: Whole | None = optional("Milliseconds that the attempt took.")
    error: str | None = optional("Why the attempt failed.")


class Progress(Stored):
    """What a job reports about itself while it runs."""

    percent: float = Field(ge=0, le=100)
    note: str


class Repetition(Stored):
    """When a job repeats."""

    every_ms: Whole | None = optional("Milliseconds between two due times.")
    cron: str | None = optional("A cron expression in UTC.")
    since: Moment = Field(description="The first due time.")


class Job(Stored):
    """A job. What BSON has and JSON has not is written as extended JSON.

    Every field but the id can be null: if another program left it out of the document, or gave it another type.
    """

    model_config = ConfigDict(extra="allow")

    id: str = Field(alias="_id")
    name: str | None
    arguments: list[Any] | None
    state: State | None
    due: Moment | None
    waiting: Moment | None = optional("The earliest time of its next start, while it is pending or failed.")
    priority: Whole | None
    created: Moment | None
    updated: Moment | None
    attempts: Whole | None = Field(description="The number of times that it was started.")
    claim: JobLease | None = optional("The lease of its worker, while it is executing.")
    repetition: Repetition | None = optional("The repetition, if it repeats.")
    last_error: str | None = optional("Why its last attempt failed.")
    losses: Whole | None = optional("How many workers in a row were lost while they executed it.")
    history: list[HistoryEntry] | None = Field(description="The last 50 entries, the oldest first.")
    progress: Progress | None = optional("The last progress that it reported.")


def job_as_json(document: Document) -> dict[str, Any]:
    """Return a job as JSON; a field that does not fit `Job` is null."""
    try:
        Job.model_validate({**document, "_id": str(document["_id"])})
    except ValidationError as error:
        document = {**document, **{str(problem["loc"][0]): None for problem in error.errors()}}
    return as_json(document)


class JobAnswer(BaseModel):
    """One job."""

    job: Job


class RemovedJob(JobAnswer):
    """The job that was deleted."""

    undo: UndoId


class Jobs(BaseModel):
    """A page of jobs."""

    jobs: list[Job]
    cursor: NextCursor
    is_partial: bool = Field(description="Whether a search stopped before the page was full; the cursor continues it.")
    server_time: ServerTime


class RunningJob(BaseModel):
    """The job of a queue that is executing."""

    id: str
    claimed_until: Moment = Field(description="When its lease ends unless it is renewed.")
    worker: str | None = optional("Host and process, as `host:pid`.")


class JobQueue(BaseModel):
    """The queue of one name, without the number of its jobs."""

    name: str
    is_paused: bool
    pause: PauseState | None = Field(description="Null if it is not paused.")
    running: RunningJob | None
    oldest_due: Moment | None = Field(description="The due time of the oldest job that is due.")
    next_due: Moment | None = Field(description="The due time of the next job that is not due yet.")


class QueueState(JobQueue):
    """The jobs of one name."""

    states: dict[JobState, int] = Field(description="The number of jobs in each state.")


class JobLeader(BaseModel):
    """The beat that dispatches jobs."""

    epoch: int
    heartbeat: Moment
    since: Moment


class JobsStatus(BaseModel):
    """All queues, and who dispatches them."""

    queues: list[QueueState]
    leader: JobLeader | None
    other_documents: int = Field(description="Documents in the collection that are not jobs; they are ignored.")
    server_time: ServerTime


class JobQueues(BaseModel):
    """All queues, without the number of their jobs."""

    queues: list[JobQueue]
    server_time: ServerTime


class JobLatencies(BaseModel):
    """How long jobs took in the last 24 hours, by name, of at most 200 names."""

    names: dict[str, Latency]
    server_time: ServerTime


class Paused(BaseModel):
    """The queues that were paused."""

    paused: list[str]


class Resumed(BaseModel):
    """The queues that were resumed."""

    resumed: list[str]


class DeletedJobs(BaseModel):
    """How many jobs were deleted."""

    deleted: int
    is_complete: IsComplete
    undo: UndoId


class ChangedJob(BaseModel):
    """What became of one job of many."""

    id: str
    result: ChangeResult = Field(
        description="`BLOCKED`: it is singular, and another with its name and arguments is live. `CONTENDED`: other "
        "transactions hold it or the counts of its name; try again."
    )


class ChangedJobs(BaseModel):
    """How many jobs were changed, and what became of each."""

    changed: int
    of: int
    is_complete: bool = Field(description="False if the time was over before all jobs were tried.")
    results: list[ChangedJob] = Field(description="The results of the jobs that were tried, in the order of the ids.")
    undo: UndoId
