"""The history of one schedule, and whether it keeps the guarantees of `docs/explanation/guarantees.md`.

Times of rooms are those of the database server; all others are seconds of the monotonic clock of this machine, which
all processes share and no fault changes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime

from queue_manager.core.clock import RESAMPLE_AFTER, to_iso

# Seconds from the end of the last fault until everything is done. MongoDB keeps the transaction of a killed process
# with its locks for 60 to 90 s.
RECOVERY_LIMIT = 100.0
JOB_LEASE = 3.0  # seconds
NAMED_WITHIN = 4.0  # seconds of an outage after which /readyz must name it


@dataclass(frozen=True, kw_only=True)
class RoomChange:
    """A write to a room, in the order of the database: a new snooze, or the end of one."""

    room: str
    at: datetime
    due: datetime | None = None
    woken: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class RoomEvent:
    room: str
    woken: str
    """As the event has it."""


@dataclass(frozen=True, kw_only=True)
class Sent:
    """A message that was accepted."""

    message: str
    began: float
    accepted: float


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """A message that a consumer received; it was asked for at `asked`."""

    message: str
    token: str
    asked: float
    at: float


@dataclass(frozen=True, kw_only=True)
class Ack:
    """An acknowledgement: `done`, `refused`, or `unknown` if the first answer was lost."""

    message: str
    token: str
    at: float
    outcome: str


@dataclass(frozen=True, kw_only=True)
class JobRun:
    """A call of a job's function; one that did not return has no end."""

    name: str
    job: str
    pid: int
    began: float
    ended: float | None = None


@dataclass(frozen=True, kw_only=True)
class JobRecord:
    """A job as it is stored when the schedule is over."""

    name: str
    job: str
    state: str
    successes: int


@dataclass(frozen=True, kw_only=True)
class FaultSpan:
    """A fault. `names` is what /readyz must name while it lasts; `may_outlast_leases` if no lease can be renewed."""

    kind: str
    target: str
    began: float
    ended: float
    names: str | None = None
    may_outlast_leases: bool = False
    sets_clock_of_rooms: bool = False
    """Whether MongoDB's clock jumps: a room that is due by it may be opened in a transaction that ends by another."""
    servers_took: float = 0.0
    """Seconds that MongoDB took, when its fault was over, until a majority confirmed writes again."""

    def __str__(self) -> str:
        return f"{self.kind} ({self.target}) for {self.ended - self.began:.1f} s"


@dataclass(frozen=True, kw_only=True)
class Probe:
    """An answer of /readyz."""

    at: float
    status: int
    text: str


@dataclass(kw_only=True)
class History:
    rooms: list[RoomChange] = field(default_factory=list)
    poison: set[str] = field(default_factory=set)
    """Rooms that need not be woken."""
    events: list[RoomEvent] = field(default_factory=list)
    sent: list[Sent] = field(default_factory=list)
    deliveries: list[Delivery] = field(default_factory=list)
    acks: list[Ack] = field(default_factory=list)
    states: dict[str, str | None] = field(default_factory=dict)
    """The state of each message when the schedule is over; `None` if the queue does not know it."""
    losses: list[float] = field(default_factory=list)
    """When Redis lost its data, and with them all messages that it had."""
    runs: list[JobRun] = field(default_factory=list)
    jobs: list[JobRecord] = field(default_factory=list)
    faults: list[FaultSpan] = field(default_factory=list)
    probes: list[Probe] = field(default_factory=list)
    deaths: list[str] = field(default_factory=list)
    """Processes that ended by themselves, or did not end when they should."""
    errors: list[str] = field(default_factory=list)
    """Answers of the web process that it must never give."""
    recovery: dict[str, float | None] = field(default_factory=dict)
    """Seconds from the end of the last fault until all work of a kind was done; `None` if it was not."""

    @property
    def wakes(self) -> int:
        return sum(change.woken is not None for change in self.rooms)


def violations(history: History) -> list[str]:
    """Return one sentence for each broken promise."""
    return [
        *_rooms(history),
        *_events(history),
        *_messages(history),
        *_jobs(history),
        *_overlaps(history),
        *_health(history),
        *history.deaths,
        *history.errors,
        *(f"{kind} were not done {RECOVERY_LIMIT:.0f} s after the last fault" for kind in _unfinished(history)),
    ]


def _rooms(history: History) -> Iterator[str]:
    due: dict[str, datetime | None] = {}
    one_clock = not any(fault.sets_clock_of_rooms for fault in history.faults)
    for change in history.rooms:
        room, ends = change.room, due.get(change.room)
        if change.woken is not None:
            due[room] = None
            if ends is None:
                yield f"room {room} woke at {change.at} although it was not snoozed"
            elif (early := ends - (min(change.at, change.woken) if one_clock else change.woken)).total_seconds() > 0:
                yield f"room {room} woke {early.total_seconds():.3f} s before its snooze ended, at {change.at}"
        if change.due is not None:
            due[room] = change.due
    for room, ends in due.items():
        if ends is not None and room not in history.poison:
            yield f"room {room} was due at {ends} and did not wake"


def _events(history: History) -> Iterator[str]:
    woken = {(change.room, to_iso(change.woken)) for change in history.rooms if change.woken is not None}
    told = {(event.room, event.woken) for event in history.events}
    for room, at in sorted(woken - told):
        yield f"room {room} woke at {at} without an event"
    for room, at in sorted(told - woken):
        yield f"an event says that room {room} woke at {at}, and it did not"


def _messages(history: History) -> Iterator[str]:
    done, received = defaultdict(list), defaultdict(list)
    for ack in history.acks:
        if ack.outcome == "done":
            done[ack.message].append(ack)
    for delivery in history.deliveries:
        received[delivery.message].append(delivery)
    for sent in history.sent:
        if any(sent.began < loss for loss in history.losses):
            continue
        acks, state = done[sent.message], history.states.get(sent.message)
        if len({ack.token for ack in acks}) > 1:
            yield f"message {sent.message} was acknowledged by {len(acks)} holders"
        if acks and state not in (None, "acknowledged"):
            yield f"message {sent.message} was acknowledged and is {state}"
        if not acks and state is None:
            yield f"message {sent.message} was accepted and is gone"
        if not acks and state not in (None, "acknowledged", "dead"):
            yield f"message {sent.message} is {state}, neither acknowledged nor dead"
        first = min((ack.at for ack in acks), default=None)
        if first is not None and any(delivery.asked > first for delivery in received[sent.message]):
            yield f"message {sent.message} was delivered after it had been acknowledged"


def _jobs(history: History) -> Iterator[str]:
    completed = {run.job for run in history.runs if run.ended is not None}
    for job in history.jobs:
        if job.state != "success":
            yield f"job {job.job} of {job.name} is {job.state}"
        elif job.successes != 1:
            yield f"job {job.job} of {job.name} succeeded {job.successes} times"
        elif job.job not in completed:
            yield f"job {job.job} of {job.name} succeeded although no run of it returned"


def _overlaps(history: History) -> Iterator[str]:
    """Runs of one name, unless the earlier one may have lost its lease. A run that was killed ends when it began."""
    for name in {run.name for run in history.runs}:
        latest: JobRun | None = None
        for run in sorted((run for run in history.runs if run.name == name), key=lambda run: run.began):
            if latest is not None and run.began < _end(latest) and not _may_have_lost_lease(latest, history):
                yield f"job {run.job} of {name} ran {_end(latest) - run.began:.2f} s at once with {latest.job}"
            if latest is None or _end(run) > _end(latest):
                latest = run


def _end(run: JobRun) -> float:
    return run.began if run.ended is None else run.ended


def _may_have_lost_lease(run: JobRun, history: History) -> bool:
    """Return True if the lease of a run could not be renewed in time. It is renewed three times in its duration.

    After a jump of MongoDB's clock, the processes disagree about the time until each has read that clock again.
    """
    return any(
        fault.began < _end(run)
        and fault.ended + RESAMPLE_AFTER * fault.sets_clock_of_rooms > run.began
        and fault.ended - fault.began >= JOB_LEASE * 2 / 3
        for fault in history.faults
        if fault.may_outlast_leases
    )


def _health(history: History) -> Iterator[str]:
    for fault in history.faults:
        if fault.names is None or fault.ended - fault.began < NAMED_WITHIN:
            continue
        meanwhile = [probe for probe in history.probes if fault.began < probe.at <= fault.ended + NAMED_WITHIN / 2]
        if meanwhile and not any(probe.status == 503 and fault.names in probe.text for probe in meanwhile):
            yield f"/readyz did not name {fault.names} while: {fault}"


def _unfinished(history: History) -> list[str]:
    return [kind for kind, took in history.recovery.items() if took is None]
