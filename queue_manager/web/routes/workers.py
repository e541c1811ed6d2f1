"""The workers over HTTP: which are online, and what each of their processes does."""

from __future__ import annotations

from fastapi import APIRouter

from queue_manager.web.http.errors import errors
from queue_manager.workers import Workers, read_workers

router = APIRouter(responses=errors(503))


@router.get("/workers")
def workers() -> Workers:
    """List the workers that are online: queues, pool, what each process executes and since when, rate, memory, release.

    A worker reports what it does every two seconds if that has changed, and at least once a minute.
    """
    return read_workers()
