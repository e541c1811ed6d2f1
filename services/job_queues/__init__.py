"""Named job queues: each name runs its jobs one after another, names run at the same time, failures never give up.

    @job("send_invoice")
    def send_invoice(invoice_id): ...

    jobs.run("send_invoice", "42", delay=timedelta(minutes=5))

Guarantee: a job is stored before `run` returns, runs until it succeeds or is canceled, and counts as done once. Two
jobs of one name never run at the same time. A job whose worker died runs again, so what it does must be harmless when
repeated.
"""

from __future__ import annotations

from dataclasses import asdict
from datetime import timedelta
from typing import Any

from models import database, job_queue
from models import job as model
from queue_manager.core.clock import seconds
from queue_manager.core.errors import ConfigurationError, HandOn, NotYetDue
from queue_manager.core.settings import settings
from queue_manager.transport import counters
from services.due_work import Figures, Limits
from services.job_queues.dispatch import Dispatch
from services.job_queues.errors import InvalidJob, NotTheOnly, UnknownJob, WrongState
from services.job_queues.jobs import Jobs
from services.job_queues.plain import as_json
from services.job_queues.registry import Registry, job, registry
from services.job_queues.runner import Run, Runner, RunReport

__all__ = [
    "InvalidJob",
    "Jobs",
    "NotTheOnly",
    "Registry",
    "Run",
    "RunReport",
    "UnknownJob",
    "WrongState",
    "as_json",
    "dispatch",
    "figures",
    "job",
    "jobs",
    "registry",
    "run_queue",
]

INITIATOR = "QM/jobs"
BUDGET = seconds(30)

jobs = Jobs(registry, clock=database.server_now)
"""The jobs of this installation. Nothing is opened until it is used."""


def dispatch(epoch: int | None = None) -> Dispatch:
    """Return the queues as due work, for the leader of `epoch`."""
    return Dispatch(
        claims=job_queue.claims(),
        clock=database.server_now,
        limits=Limits.from_settings(),
        ahead_by=_period(),
        epoch=epoch,
    )


def run_queue(name: str, epoch: int | None, *, token: str) -> dict[str, Any]:
    """Run the jobs of `name` that are due, one after another; `token` is this task's id.

    Returns:
        `{succeeded, failed, lost, stopped}`: attempts by how they ended, and why it stopped early, if it did.

    Raises:
        HandOn: the time of one run is over, and more is due.
        NotYetDue: the next job is due before the next dispatch.
        ConfigurationError: jobs run in production only, and this is not.
    """
    _refuse_elsewhere()
    runner = Runner(
        name=name,
        registry=registry,
        clock=database.server_now,
        lease=seconds(settings().jobs_lease_seconds),
        budget=BUDGET,
        token=token,
        epoch=epoch,
    )
    report = runner.run()
    counters.items(INITIATOR, {"done": report.succeeded, "failed": report.failed})
    due = None if report.stopped else model.next_due(name)
    remaining = None if due is None else due - database.server_now()
    if remaining is None or remaining > _period():
        job_queue.complete(name, token=token)
        return asdict(report)
    if remaining > timedelta(0):
        raise NotYetDue(remaining)
    raise HandOn


def figures() -> Figures:
    """Return the figures of the queues: `{pending, in_progress, stuck, cooling_off, lag_seconds}` and what executes."""
    numbers = job_queue.claims().figures(database.server_now())
    paused, others = sorted(job_queue.paused()), model.count_foreign()
    details = [f"paused: {', '.join(paused)}"] if paused else []
    if others:
        details.append(f"{model.NAME} has {others} documents of another form, which are left alone")
    return Figures(
        numbers={**numbers, "executing": len(model.executing()), "other_documents": others},
        details=details,
    )


def _refuse_elsewhere() -> None:
    chosen = settings()
    if chosen.jobs_production_only and chosen.app_env != "production":
        raise ConfigurationError(f"JOBS_PRODUCTION_ONLY=true and APP_ENV={chosen.app_env!r}: no jobs run here")


def _period() -> timedelta:
    return timedelta(milliseconds=settings().jobs_timer_ms)
