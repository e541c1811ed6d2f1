"""Named job queues: jobs of one name run one after another, names run concurrently, failed jobs are retried.

    @job("send_invoice")
    def send_invoice(invoice_id): ...

    jobs.run("send_invoice", "42", delay=timedelta(minutes=5))

Guarantee: a job is stored before `run` returns, is retried until it succeeds or is canceled, and is recorded as
successful once. Two jobs of one name never run at the same time. A job whose worker died runs again, so it must be
idempotent.
"""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any

import redis
from pymongo import IndexModel

from models import database, job_queue, old_claims
from models import job as model
from models.due_documents import COUNTED
from models.job import ExecutingJob
from queue_manager.beat import leader_lock
from queue_manager.core.clock import minutes, seconds
from queue_manager.core.errors import ConfigurationError, ContinueLater, NotYetDue, reason
from queue_manager.core.log import get_logger
from queue_manager.core.redis_client import PerProcess, make_client
from queue_manager.core.settings import settings
from queue_manager.leases import Leases
from queue_manager.system import System, SystemStats
from queue_manager.telemetry import counters
from services import problems
from services.due_work import Due, Limits
from services.job_queues.dispatch import Dispatch
from services.job_queues.errors import DuplicateJob, InvalidJob, UnknownJob, WrongState
from services.job_queues.jobs import Jobs
from services.job_queues.json_form import as_json
from services.job_queues.registry import Registry, job, registry
from services.job_queues.runner import Run, Runner, RunReport
from services.problems import counted, ids, span

__all__ = [
    "DuplicateJob",
    "InvalidJob",
    "Jobs",
    "Registry",
    "Run",
    "RunReport",
    "UnknownJob",
    "WrongState",
    "as_json",
    "dispatch",
    "job",
    "jobs",
    "registry",
    "run_queue",
    "stats",
    "system",
]

INITIATOR = "QM/jobs"
RUN_BUDGET = seconds(30)
LONG_RUNNING_THRESHOLD = minutes(10)
MAX_ENDED_LEASES = 1_000  # expired leases that are compared with due queues

log = get_logger(INITIATOR)
_redis = PerProcess(lambda: make_client(settings().redis_url))

jobs = Jobs(registry, clock=database.server_now)
"""The jobs of this installation. Connects on first use."""


def dispatch(epoch: int | None = None) -> Dispatch:
    """Return the dispatch of due queues for the leader of `epoch`."""
    return Dispatch(
        leases=Leases(system.name, seconds(settings().jobs_lease_seconds)),
        clock=database.server_now,
        limits=Limits.from_settings(),
        ahead=system.period(settings()),
        epoch=epoch,
        on_refused=_raise_epoch,
    )


def run_queue(name: str, epoch: int | None, *, token: str) -> dict[str, Any]:
    """Run the due jobs of `name` one after another; `token` is the id of this task.

    Returns:
        `{succeeded, failed, lost, stopped}`: number of attempts by outcome, and the reason of an early stop.

    Raises:
        ContinueLater: the time budget is used and more jobs are due.
        NotYetDue: the next job is due before the next dispatch.
        ConfigurationError: jobs may not run in this environment.
    """
    _require_jobs_allowed()
    runner = Runner(
        name=name,
        registry=registry,
        clock=database.server_now,
        lease=seconds(settings().jobs_lease_seconds),
        budget=RUN_BUDGET,
        token=token,
        epoch=epoch,
    )
    report = runner.run()
    counters.items(INITIATOR, {"done": report.succeeded, "failed": report.failed})
    due = None if report.stopped else model.next_due(name)
    remaining = None if due is None else due - database.server_now()
    if remaining is None or remaining > system.period(settings()):
        return asdict(report)
    if remaining > timedelta(0):
        raise NotYetDue(remaining)
    raise ContinueLater


def stats() -> SystemStats:
    """Return `{pending, in_progress, stuck, cooling_off}` of the queues, and of the jobs `{executing, failed,
    lag_seconds}`: age of the oldest due job whose queue is not in flight, cooling down or paused.
    """
    now, work = database.server_now(), dispatch()
    executing, paused, failing = model.executing(), job_queue.paused(), model.count_failing(COUNTED)
    others, in_redis = model.count_foreign(), work.leases.stats()
    due = list(work.find_due(now))
    states = [standing.state for standing in work.leases.standings([one.lease for one in due])]
    pending = [one for one, state in zip(due, states, strict=True) if state in ("free", "stuck")]
    stuck = _stuck(work, pending)
    numbers = {
        "pending": len(pending) - len(stuck),
        "in_progress": max(in_redis.in_progress, len(executing)),
        "stuck": len(stuck),
        "cooling_off": in_redis.cooling,
        "executing": len(executing),
        "failed": sum(failing.values()),
        "other_documents": others,
        "lag_seconds": (now - min((one.due_at for one in pending), default=now)).total_seconds(),
    }
    long_running = sorted(
        (one for one in executing if now - one.since > LONG_RUNNING_THRESHOLD), key=lambda one: one.since
    )
    stats = SystemStats(
        numbers=numbers,
        details=[
            *([f"paused: {', '.join(sorted(paused))}"] if paused else []),
            *([f"{model.NAME} has {others} documents that are not jobs, which are ignored"] if others else []),
            *(f"{one.name}: the job {one.id} has been executing for {_running_time(one, now)}" for one in long_running),
        ],
    )
    stats.late.extend(one.id for one in pending if now - one.due_at > system.late_after(settings()))
    _add_job_problems(stats, executing, failing, now)
    _add_queue_problems(stats, stuck, [one.id for one, state in zip(due, states, strict=True) if state == "cooling"])
    return stats


def jobs_by_state() -> dict[str, int]:
    """Return the number of jobs in each state; `COUNTED` means that many or more."""
    return model.count_by_state(COUNTED)


def _stuck(work: Dispatch, due: list[Due]) -> list[str]:
    """Return the names of due queues whose lease expired and that were not dispatched since."""
    ended = set(work.leases.ended(before=system.late_after(settings()), limit=MAX_ENDED_LEASES))
    return [one.id for one in due if one.lease in ended]


def _add_job_problems(
    stats: SystemStats, executing: list[ExecutingJob], failing: dict[str, int], now: datetime
) -> None:
    if failing:
        names = ids((f"{name} {count}" for name, count in failing.items()), len(failing))
        stats.add_problem(
            f"{counted(sum(failing.values()), 'failing job')}, by name: {names}; see the last error with "
            "`queue-manager jobs list --state failure`, then fix, retry or cancel them",
            state="failure",
        )
    late = system.late_after(settings())
    lost = [one for one in executing if one.claimed_until <= now - late]
    if lost:
        shown = ids((f"{one.name} {one.id}" for one in lost), len(lost))
        stats.add_problem(
            f"{counted(len(lost), 'executing job')} whose lease ended more than {span(late)} ago: the worker is gone "
            f"and no dispatch has requeued it; check that a beat leads and a worker consumes `scans` ({shown})",
            state="executing",
        )


def _add_queue_problems(stats: SystemStats, stuck: list[str], cooling: list[str]) -> None:
    if stuck:
        stats.add_problem(problems.stuck("job queue", stuck, late=system.late_after(settings())))
    if cooling:
        stats.add_problem(
            f"{counted(len(cooling), 'failed job queue')}: every attempt to run its jobs failed, and the next one "
            f"starts after a cool-down; see the error in the workers' log ({ids(cooling, len(cooling))})"
        )


def _running_time(one: ExecutingJob, now: datetime) -> str:
    return f"{span(now - one.since)} on {one.worker or 'an unknown worker'}"


def _raise_epoch(known: int, age: timedelta) -> None:
    """Raise the epoch of the leader, in case Redis lost its data and counts from one again."""
    try:
        if leader_lock.raise_epoch(_redis(), leader_lock.LEADER_LOCK, known=known, age=age):
            log.warning("Redis had lost the epoch; the leader takes a new one", known_epoch=known)
    except redis.RedisError as error:
        log.warning("The epoch could not be raised; the next dispatch tries again", error=reason(error))


def _require_jobs_allowed() -> None:
    if not settings().allows_jobs:
        raise ConfigurationError(settings().jobs_disabled_reason)


def _collections() -> dict[str, list[IndexModel]]:
    return {**model.collections(), **job_queue.collections()}


system = System(
    name="job-queues",
    title="Jobs",
    description="Named queues of jobs, dispatched when a job is due.",
    every=lambda chosen: timedelta(milliseconds=chosen.jobs_timer_ms),
    flag="QM_JOBS",
    may_run=lambda chosen: chosen.allows_jobs,
    scan_task="tasks.job_queues.dispatch_due_jobs",
    takes_epoch=True,
    item_task="tasks.job_queues.run_queue",
    queue="jobs",
    trigger="jobs/dispatch",
    page="/jobs",
    stats=stats,
    stats_server="MongoDB or Redis",
    counted_as=INITIATOR,
    collections=_collections,
    obsolete_indexes={**model.OBSOLETE_INDEXES, job_queue.NAME: old_claims.INDEXES},
)
