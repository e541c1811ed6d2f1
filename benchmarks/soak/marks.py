"""Marks work as done, by its number: a bit of Redis each, so that a million of them take no memory worth measuring."""

from __future__ import annotations

from queue_manager.core.process import PerProcess
from queue_manager.core.redis_client import connect
from queue_manager.core.settings import settings
from services.job_queues import job

JOB_NAMES = [f"soak.{number}" for number in range(10)]

client = PerProcess(lambda: connect(settings().redis_url))


def mark(kind: str, number: int) -> None:
    """Mark work of a kind as done, and count it if it already was."""
    if client().setbit(f"soak:{kind}", number, 1):
        client().incr(f"soak:{kind}:repeated")


def done(kind: str) -> int:
    return int(client().bitcount(f"soak:{kind}"))


def repeated(kind: str) -> int:
    return int(client().get(f"soak:{kind}:repeated") or 0)


def mark_job(number: int) -> None:
    mark("jobs", number)


for _name in JOB_NAMES:
    job(_name)(mark_job)
