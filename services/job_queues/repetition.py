"""Repeating jobs: after a period, or at the times of a cron expression in UTC; some of them are declared in code.

Guarantee: due times depend only on the repetition, not on when a run ended. Those that passed meanwhile are skipped.
Each dispatch stores the jobs of new declarations (`@job("report", every=…)`) and changes those whose repetition
differs, so that every declaration has one job. A job whose declaration was removed is kept, because an older release
may still declare it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from croniter import CroniterError, croniter

from models import declared_job, job
from models.database import Document
from models.declared_job import declared_id
from queue_manager.core.clock import milliseconds
from queue_manager.core.log import get_logger
from services.job_queues.fields import MAX_DELAY, InvalidJob, new_job

MIN_PERIOD = timedelta(seconds=1)
MAX_CRON_LENGTH = 200  # characters
CRON_FIELDS = 5

log = get_logger("QM/jobs")


def checked_repetition(every: Any, cron: Any) -> Document:
    """Return `{every_ms}` or `{cron}`, or an empty document without a repetition. Raises `InvalidJob`."""
    if every is not None and cron is not None:
        raise InvalidJob("every", "`every` and `cron` must not both be given")
    if cron is not None:
        if not isinstance(cron, str) or not _is_cron(cron):
            raise InvalidJob(
                "cron", "must be a cron expression of five fields (UTC) with a future time, such as 0 3 * * *"
            )
        return {"cron": cron}
    if every is None:
        return {}
    if not isinstance(every, timedelta) or not MIN_PERIOD <= every <= MAX_DELAY:
        raise InvalidJob("every", f"must be a timedelta from 1 second to {MAX_DELAY.days} days")
    return {"every_ms": milliseconds(every)}


def first_due(repetition: Document, now: datetime) -> datetime:
    """Return the first due time if none is given: now, or the next time of the cron expression."""
    return next_due(repetition, now) if "cron" in repetition else now


def next_due(repetition: Document, after: datetime) -> datetime:
    """Return the first due time after a time. Those of `every_ms` count from `since`."""
    if "cron" in repetition:
        return _next_of_cron(repetition["cron"], after)
    every, since = timedelta(milliseconds=repetition["every_ms"]), repetition["since"]
    due: datetime = since + ((after - since) // every + 1) * every
    return due


def due_after_success(repetition: Document, after: datetime) -> datetime:
    """Return the first due time after a time. It is not before `since`, even if an operator ran the job earlier."""
    due, since = next_due(repetition, after), repetition.get("since")
    return max(due, since) if isinstance(since, datetime) else due


def _next_of_cron(line: str, after: datetime) -> datetime:
    due: datetime = croniter(line, after).get_next(datetime)
    return due


def _is_cron(line: str) -> bool:
    fields = line.upper().split()
    is_random = any(field.startswith("R") for field in fields)  # an extension of croniter
    if len(line) > MAX_CRON_LENGTH or len(fields) != CRON_FIELDS or is_random:
        return False
    try:
        _next_of_cron(line, datetime(2026, 1, 1, tzinfo=UTC))
    except CroniterError:
        return False
    return True


# Declared jobs


def store_declared(declared: Mapping[str, Document], now: datetime) -> None:
    """Store or change the jobs of these repetitions, by name."""
    stored = declared_job.stored() if declared else {}
    for name, repetition in declared.items():
        if (known := stored.get(name)) is None:
            _store(name, repetition, now)
        elif known["since"] > now or {**repetition, "since": known["since"]} != known:
            _change(name, known, repetition, now)


def declared_details(declared: Mapping[str, Document]) -> Iterator[str]:
    """Yield a line for each declaration without a job, and for each job without a declaration."""
    stored = declared_job.stored()
    for name in sorted({*declared} - {*stored}):
        yield (
            f"{name}: its declared repetition is not stored; the next dispatch stores it unless another job without "
            f"arguments is pending, failed or executing, or the document {declared_id(name)} is malformed; see "
            f"`queue-manager jobs list --name {name}`"
        )
    for name in sorted({*stored} - {*declared}):
        id = declared_id(name)
        yield f"{name}: repeats, but is no longer declared; `queue-manager jobs remove {id}` deletes the job"


def _store(name: str, repetition: Document, now: datetime) -> None:
    due = first_due(repetition, now)
    document = new_job(name, (), due=due, priority=0, repetition=repetition, now=now)
    if not job.insert([{**document, "_id": declared_id(name)}], unique=False, singular=True):
        log.info("A declared repeating job was stored", name=name, due=due)


def _change(name: str, known: Document, repetition: Document, now: datetime) -> None:
    due = next_due({**repetition, "since": known["since"]}, now)
    # The first due time of a cron expression may be far off; that of its replacement is earlier. Release 0.2.0
    # left the later `since` in place.
    changed = {**repetition, "since": min(known["since"], due)}
    if changed != known and declared_job.change(name, known, changed, due=due, now=now):
        log.info("The repetition of a declared job was changed", name=name)
