"""Jobs that take any arguments, for tests that store jobs and do not run them."""

from __future__ import annotations

from services.job_queues import job

MODULE = "tests.any_jobs"
INVOICE, REPORT, PARCEL, IMPORT = "test.send_invoice", "test.make_report", "test.order_parcel", "test.import_file"


@job(INVOICE)
@job(REPORT)
@job(PARCEL)
@job(IMPORT)
def accept(*_: object) -> None:
    """Do nothing."""
