"""The latency of jobs by name."""

from __future__ import annotations

from models import job
from queue_manager.core.redis_client import PerProcess, connect
from queue_manager.core.settings import settings
from queue_manager.telemetry import count_history
from queue_manager.telemetry.counters import Totals
from services.job_queues.dispatch import JOBS_INITIATOR

MAX_MEASURED_NAMES = 200

_redis = PerProcess(lambda: connect(settings().redis_url))


def counts_by_name() -> dict[str, Totals]:
    """Return what was counted of each name in the last 24 hours, of the first 200 names. Raises the drivers' errors."""
    names = job.names()[:MAX_MEASURED_NAMES]
    counts = count_history.last_hours(_redis(), [f"{JOBS_INITIATOR}/{name}" for name in names])
    return dict(zip(names, counts, strict=True))
