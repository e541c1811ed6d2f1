"""Statistics and problems of job queues and their jobs."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta

from models import database, executing_job, foreign_job, job, job_queue
from models.document_id import shown_id
from models.due_documents import MAX_COUNT
from models.executing_job import ExecutingJob
from queue_manager.core.clock import minutes
from queue_manager.core.wording import first_ids, many, rounded, stuck_items
from queue_manager.health_rules import Rule
from queue_manager.system import SystemStats
from services.due_work import DueWork

LONG_RUNNING_THRESHOLD = minutes(10)
MAX_ENDED_LEASES = 1_000  # expired leases that are compared with due queues


def executing_by_task(ids: Collection[str]) -> dict[str, ExecutingJob]:
    """Return the jobs that tasks execute, by the ids of the tasks."""
    return {one.token: one for one in executing_job.find({"claim.token": {"$in": [*ids]}})} if ids else {}


def read_stats(work: DueWork, *, late: timedelta) -> SystemStats:
    """Return `{pending, in_progress, stuck, cooling_off}` of the queues, and of the jobs `{executing, failed,
    lag_seconds}`: age of the oldest due job whose queue is not in flight, failed or paused.

    Queues that have been due for longer than `late`, and leases that ended before that, are problems.
    """
    now = database.server_now()
    executing, paused, failing = executing_job.find(), job_queue.pauses(), job.count_failing(MAX_COUNT)
    others, in_redis = foreign_job.count(), work.leases.stats()
    due = list(work.find_due(now))
    states = [status.state for status in work.leases.statuses([one.lease for one in due])]
    pending = [one for one, state in zip(due, states, strict=True) if state in ("free", "stuck")]
    cooling = [one.id for one, state in zip(due, states, strict=True) if state == "cooling"]
    ended = set(work.leases.ended(before=late, limit=MAX_ENDED_LEASES))
    stuck = [one.id for one in pending if one.lease in ended]
    stats = SystemStats(
        numbers={
            "pending": len(pending) - len(stuck),
            "in_progress": max(in_redis.in_progress, len(executing)),
            "stuck": len(stuck),
            "cooling_off": len(cooling),
            "executing": len(executing),
            "failed": sum(failing.values()),
            "paused": len(paused),
            "other_documents": others,
            "lag_seconds": (now - min((one.due_at for one in pending), default=now)).total_seconds(),
        },
        late=[one.id for one in pending if now - one.due_at > late],
    )
    if paused:
        names = [f"{name} {pause}".strip() for name, pause in sorted(paused.items())]
        stats.details.append(f"paused: {'; '.join(names)}")
    if others:
        stats.details.append(
            f"ignored: {many(others, 'document', limit=foreign_job.MAX_FOREIGN_COUNT)} in {job.JOBS_COLLECTION} that "
            "another program stored; `queue-manager adopt jobs` shows which of them can be adopted"
        )
        _add_unadopted(stats)
    stats.details.extend(_long_running(executing, now))
    _add_job_problems(stats, executing, failing, now=now, late=late)
    _add_queue_problems(stats, stuck, cooling, late=late)
    return stats


def jobs_by_state() -> dict[str, int]:
    """Return the number of jobs in each state; `MAX_COUNT` means that many or more."""
    return job.count_by_state(MAX_COUNT)


def _long_running(executing: list[ExecutingJob], now: datetime) -> list[str]:
    return [
        f"{one.name}: the job {one.id} has been executing for {rounded(now - one.since)} on "
        f"{one.worker or 'an unknown worker'}"
        for one in sorted(executing, key=lambda one: one.since)
        if now - one.since > LONG_RUNNING_THRESHOLD
    ]


def _add_job_problems(
    stats: SystemStats, executing: list[ExecutingJob], failing: dict[str, int], *, now: datetime, late: timedelta
) -> None:
    if failing:
        names = first_ids((f"{name} ({count})" for name, count in failing.items()), len(failing))
        failing_jobs = many(sum(failing.values()), "failing job", limit=MAX_COUNT)
        stats.problems[Rule.FAILING_JOBS] = f"{failing_jobs}: {names}"
    lost = [one for one in executing if one.claimed_until <= now - late]
    if lost:
        shown = first_ids((f"{one.name} {one.id}" for one in lost), len(lost))
        stats.problems[Rule.LOST_JOBS] = (
            f"{many(len(lost), 'executing job')} whose lease ended more than {rounded(late)} ago: the worker is gone "
            f"and no dispatch has requeued it ({shown})"
        )


def _add_unadopted(stats: SystemStats) -> None:
    found = foreign_job.unfinished()
    if found.count:
        documents = many(found.count, "unfinished document", limit=foreign_job.MAX_FOREIGN_COUNT)
        stats.problems[Rule.UNADOPTED_JOBS] = (
            f"{documents} of another program in {job.JOBS_COLLECTION}, "
            f"which is not executed here ({first_ids(map(shown_id, found.ids), found.count)})"
        )


def _add_queue_problems(stats: SystemStats, stuck: list[str], cooling: list[str], *, late: timedelta) -> None:
    if stuck:
        stats.problems[Rule.STUCK_ITEMS] = stuck_items("job queue", "job queues", stuck, late=late)
    if cooling:
        stats.problems[Rule.FAILED_ITEMS] = (
            f"{many(len(cooling), 'failed job queue')}: every attempt to run its jobs failed, and the next one "
            f"starts after a cool-down ({first_ids(cooling, len(cooling))})"
        )
