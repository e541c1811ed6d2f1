"""What is counted of attempts of jobs in Redis, in total and by the name of the jobs; see `telemetry.counters`."""

from __future__ import annotations

import time
from collections import Counter
from datetime import datetime
from threading import Lock

import redis

from models import job
from models.database import estimated_now
from models.job import JobState
from models.job_attempt import JobOutcome
from queue_manager.core.clock import unix_ms
from queue_manager.telemetry import counters, latency
from queue_manager.telemetry.counters import Totals

JOBS_INITIATOR = "QM/jobs"
MAX_MEASURED_NAMES = 200
COUNTING_INTERVAL = 1.0  # seconds between two writes of a run: so much is lost if its process is killed


class AttemptCounts:
    """Counts of attempts of the jobs of one name, which are not written yet. Thread-safe."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._counts = Counter[str]()
        self._written_at = time.monotonic()
        self._lock = Lock()

    def add(self, outcome: JobOutcome) -> None:
        """Count an attempt that is stored, by how its function ended.

        If its job was canceled after that, it is stored as canceled, but counted as done, failed or retried.
        """
        if outcome.state is JobState.SUCCESS:
            self._add("done")
        elif outcome.state is JobState.FAILURE:
            self._add("failed" if outcome.backoff is None else "retried")

    def add_durations(self, due: datetime, took_ms: int) -> None:
        """Count how long a job took that has just succeeded."""
        due_ms, ended_ms = unix_ms(due), unix_ms(estimated_now())
        with self._lock:
            latency.count_all(self._counts, [(due_ms, due_ms)], began_ms=ended_ms - took_ms, ended_ms=ended_ms)

    def write_at_intervals(self) -> None:
        """Write like `write`, unless the last write was less than `COUNTING_INTERVAL` ago."""
        if time.monotonic() - self._written_at >= COUNTING_INTERVAL:
            self.write()

    def write(self) -> None:
        """Write what was added since the last call."""
        with self._lock:
            counts, self._counts = self._counts, Counter()
            self._written_at = time.monotonic()
        if counts:
            counters.items(JOBS_INITIATOR, counts)
            counters.items_by_hour(f"{JOBS_INITIATOR}/{self._name}", counts)

    def _add(self, count: str) -> None:
        with self._lock:
            self._counts[count] += 1


def counts_by_name(client: redis.Redis) -> dict[str, Totals]:
    """Return what was counted of each name in the last 24 hours, of the first 200 names. Raises the drivers' errors."""
    names = job.names()[:MAX_MEASURED_NAMES]
    counts = counters.last_hours(client, [f"{JOBS_INITIATOR}/{name}" for name in names])
    return dict(zip(names, counts, strict=True))
