"""Jobs that take any arguments, for tests that store jobs and do not run them."""

from __future__ import annotations

from typing import Any

from models.database import Document
from services.job_queues import job, jobs

MODULE = "tests.any_jobs"
INVOICE, REPORT, PARCEL, IMPORT = "test.send_invoice", "test.make_report", "test.order_parcel", "test.import_file"


@job(INVOICE)
@job(REPORT)
@job(PARCEL)
@job(IMPORT)
def accept(*_: object) -> None:
    """Do nothing."""


def made(name: str = INVOICE, *arguments: Any, **options: Any) -> Document:
    """Store a job that nothing stands against."""
    stored = jobs.run(name, *arguments, **options)
    assert stored is not None
    return stored
