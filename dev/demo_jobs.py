"""The demo's jobs: what its product registers, what it has done each period, and what it clears away.

Every name begins with `demo.`. Of each name the newest 50 finished jobs are kept, and no more than 20 wait.
"""

from __future__ import annotations

import random
import time
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

from pymongo import DESCENDING

from models import job as model
from models.job import JobState
from queue_manager.core.clock import seconds
from queue_manager.core.errors import Contended
from services.job_queues import JobRun, Jobs, UnknownJob, WrongState, job

MODULE = "dev.demo_jobs"
INVOICE, REPORT, PARCEL, IMPORT = "demo.send_invoice", "demo.make_report", "demo.order_parcel", "demo.import_file"
NAMES = (INVOICE, REPORT, PARCEL, IMPORT)

PERIOD = seconds(5)
AT_START = 5
MAX_BATCH_SIZE = 3
MAX_WAITING = 20
RETENTION_COUNT = 50  # finished jobs of each name and state
MAX_DELAY = 30.0  # seconds that an invoice may be ordered ahead
FAILURES = 2  # of each parcel, before it is ordered
CANCEL_AFTER = seconds(40)  # after its creation, an import that cannot succeed is canceled
REPORT_CHANCE, PARCEL_CHANCE, IMPORT_CHANCE = 0.3, 0.3, 0.1
STEPS = 10  # of a report
MIN_DURATION, MAX_DURATION = 0.05, 0.6  # seconds that an invoice or a step of a report takes


class CarrierAway(Exception):
    """The carrier does not answer: it will, later."""


class FileUnreadable(Exception):
    """The file cannot be imported, however often it is tried."""


@job(INVOICE)
def send_invoice(invoice: int) -> None:
    """A quick one."""
    time.sleep(random.uniform(MIN_DURATION, MAX_DURATION))


@job(REPORT)
def make_report(year: int, *, run: JobRun) -> None:
    """A slow one, which shows how far it is."""
    for step in range(STEPS):
        run.progress(100 * step / STEPS, f"month {step + 1} of {STEPS}, {year}")
        time.sleep(random.uniform(MIN_DURATION, MAX_DURATION))


@job(PARCEL)
def order_parcel(parcel: int, *, run: JobRun) -> None:
    """One that fails twice, and then succeeds."""
    if run.attempt <= FAILURES:
        raise CarrierAway(f"the carrier does not answer about parcel {parcel}")


@job(IMPORT)
def import_file(name: str) -> None:
    """One that never succeeds: it is tried until somebody cancels it, and blocks nothing."""
    raise FileUnreadable(f"{name} is not a spreadsheet")


def start(jobs: Jobs) -> None:
    """Store what a product has left to do at its start."""
    for _ in range(AT_START):
        order_invoice(jobs)
    jobs.run(REPORT, 2026, singular=True)
    jobs.run(PARCEL, _number())
    jobs.run(IMPORT, "prices.xls", singular=True)


def go_on(jobs: Jobs, now: datetime) -> None:
    """Do what happens in one period: new jobs come, and somebody cancels an import that fails for long."""
    if not is_full(INVOICE):
        for _ in range(random.randint(1, MAX_BATCH_SIZE)):
            order_invoice(jobs)
    if random.random() < REPORT_CHANCE:
        jobs.run(REPORT, 2026, singular=True, priority=1)
    if random.random() < PARCEL_CHANCE and not is_full(PARCEL):
        jobs.run(PARCEL, _number(), unique=True)
    if random.random() < IMPORT_CHANCE:
        jobs.run(IMPORT, "prices.xls", singular=True)
    cancel_hopeless(jobs, now)
    clear_up(jobs)


def order_invoice(jobs: Jobs) -> None:
    """Store an invoice's job: for now, or some seconds ahead."""
    jobs.run(INVOICE, _number(), delay=random.choice([timedelta(0), seconds(random.uniform(1, MAX_DELAY))]))


def is_full(name: str) -> bool:
    """Return True if `MAX_WAITING` jobs of `name` are waiting."""
    waiting: dict[str, Any] = {"name": name, "state": JobState.PENDING}
    return model.jobs().count_documents(waiting, limit=MAX_WAITING, hint="jobs_of_a_name") == MAX_WAITING


def cancel_hopeless(jobs: Jobs, now: datetime) -> None:
    """Cancel the imports that still fail `CANCEL_AFTER` after their creation."""
    for failed in jobs.list(name=IMPORT, state=JobState.FAILURE):
        if now - failed["created"] > CANCEL_AFTER:
            with suppress(WrongState):  # it is being tried at this moment: the next time
                jobs.cancel(failed["_id"])


def clear_up(jobs: Jobs) -> None:
    """Delete the demo's finished jobs beyond the newest 50 of each name; the kept counts change with them."""
    for name in NAMES:
        for state in (JobState.SUCCESS, JobState.CANCELED):
            finished = {"name": name, "state": state}
            old = model.jobs().find(
                finished, {"_id": 1}, sort=[("_id", DESCENDING)], skip=RETENTION_COUNT, hint="jobs_of_a_name"
            )
            for found in list(old):
                with suppress(UnknownJob, WrongState, Contended):  # somebody changes it at this moment: the next time
                    jobs.remove(str(found["_id"]))


def _number() -> int:
    return random.randint(10_000, 99_999)
