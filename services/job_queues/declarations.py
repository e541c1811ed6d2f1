"""Repeating jobs that code declares: `@job("send_report", every=timedelta(hours=1))`.

Guarantee: each dispatch stores those that are missing and changes those whose repetition differs, so that every
declaration has one job. A job whose declaration was removed is kept, because an older release may still declare it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime

from models import declared_job, job
from models.database import Document
from models.declared_job import declared_id
from queue_manager.core.log import get_logger
from services.job_queues.fields import new_job
from services.job_queues.repetition import first_due, next_due

log = get_logger("QM/jobs")


def store(declared: Mapping[str, Document], now: datetime) -> None:
    """Store or change the jobs of these repetitions, by name."""
    stored = declared_job.stored() if declared else {}
    for name, repetition in declared.items():
        if (known := stored.get(name)) is None:
            _insert(name, repetition, now)
        elif {**repetition, "since": known["since"]} != known:
            _change(name, known, repetition, now)


def details(declared: Mapping[str, Document]) -> Iterator[str]:
    """Yield a line for each declaration without a job, and for each job without a declaration."""
    stored = declared_job.stored()
    for name in sorted({*declared} - {*stored}):
        yield (
            f"{name}: its declared repetition is not stored; the next dispatch stores it unless a singular job "
            f"without arguments exists, see `queue-manager jobs list --name {name}`"
        )
    for name in sorted({*stored} - {*declared}):
        id = declared_id(name)
        yield f"{name}: repeats, but is no longer declared; `queue-manager jobs remove {id}` deletes the job"


def _insert(name: str, repetition: Document, now: datetime) -> None:
    due = first_due(repetition, now)
    document = new_job(name, (), due=due, priority=0, repetition=repetition, now=now)
    if job.insert([{**document, "_id": declared_id(name)}], unique=False, singular=True):
        log.warning("A declared repeating job was not stored, because a singular job exists", name=name)
    else:
        log.info("A declared repeating job was stored", name=name, due=due)


def _change(name: str, known: Document, repetition: Document, now: datetime) -> None:
    changed = {**repetition, "since": known["since"]}
    if declared_job.change(name, known, changed, due=next_due(changed, now), now=now):
        log.info("The repetition of a declared job was changed", name=name)
