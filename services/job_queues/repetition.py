"""Repetition of a job: after a period, or at the times of a cron expression in UTC.

Guarantee: due times depend only on the repetition, not on when a run ended. Those that passed meanwhile are skipped.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from croniter import CroniterError, croniter

from models.database import Document
from queue_manager.core.clock import milliseconds
from services.job_queues.fields import MAX_DELAY, InvalidJob

MIN_PERIOD = timedelta(seconds=1)
MAX_CRON_LENGTH = 200  # characters
CRON_FIELDS = 5


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
