"""Real workers and beats for job queues, and what their jobs noted."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any

from models import job
from models.database import collection, server_now
from tests.e2e.celery_processes import CeleryProcess, worker
from tests.e2e.job_names import NAMES
from tests.job_lab import Lab

LEASE, PERIOD = 2.0, 0.5  # seconds
NONE: Mapping[str, str] = MappingProxyType({})
ENV = {
    "QM_JOBS": "true",
    "QM_CONVERSATIONS": "false",
    "JOBS_IMPORTS": '["tests.e2e.job_works"]',
    "JOBS_LEASE_SECONDS": str(LEASE),
    "QM_LEASE_SECONDS": str(LEASE),
    "JOBS_TIMER_MS": str(round(PERIOD * 1000)),
}
LONG_LEASE = 8.0  # seconds, so that a stall of a busy machine does not end it
LONG = {"JOBS_LEASE_SECONDS": str(LONG_LEASE), "QM_LEASE_SECONDS": str(LONG_LEASE)}


def job_lab() -> Lab:
    """Return a laboratory that knows the names of the workers' jobs."""
    return Lab(server_now, *NAMES)


def job_worker(
    directory: Path, number: int = 0, *, concurrency: int = 4, env: Mapping[str, str] = NONE
) -> CeleryProcess:
    arguments = ("--hostname", f"w{number}@%h", "--concurrency", str(concurrency))
    return worker(directory / f"worker{number}.log", *arguments, env={**ENV, **env})


def job_beat(directory: Path, number: int = 0, *, env: Mapping[str, str] = NONE) -> CeleryProcess:
    return CeleryProcess(directory / f"beat{number}.log", "beat", env={**ENV, **env})


def notes(*names: str, **query: Any) -> list[dict[str, Any]]:
    """Return what jobs of these names noted, in the order in which they began."""
    wanted = {**query, **({"name": {"$in": names}} if names else {})}
    return list(collection("job_notes").find(wanted, sort=[("began", 1), ("ended", 1)]))


def count(state: str, *names: str) -> int:
    return job.jobs().count_documents({"state": state, **({"name": {"$in": names}} if names else {})})


def overlaps(*names: str) -> list[tuple[Any, Any]]:
    """Return the pairs of runs of one name of which the second began before the first had ended."""
    by_name = defaultdict(list)
    for noted in notes(*names):
        by_name[noted["name"]].append(noted)
    return [pair for of_name in by_name.values() for pair in pairwise(of_name) if pair[1]["began"] < pair[0]["ended"]]


def at_once(*names: str) -> int:
    """Return the largest number of jobs that ran at the same moment."""
    noted = notes(*names)
    running = most = 0
    for _, step in sorted([(one["began"], 1) for one in noted] + [(one["ended"], -1) for one in noted]):
        running += step
        most = max(most, running)
    return most


def success_counts(*names: str) -> set[int]:
    """Return how often each job succeeded, by their histories."""
    found = job.jobs().find({"name": {"$in": names}})
    return {sum(entry["state"] == "success" for entry in one["history"]) for one in found}
