"""The workers over HTTP: which are online, and what each of their processes does."""

from __future__ import annotations

from fastapi import APIRouter

from queue_manager.web.auth.authorization import CurrentPrincipal
from queue_manager.web.http.errors import errors
from queue_manager.web.workers import Workers, read_workers

router = APIRouter(responses=errors(503))


@router.get("/workers")
def workers(principal: CurrentPrincipal) -> Workers:
    """List the workers that are online: queues, pool, what each process executes and since when, rate, memory, release.

    A key that is for some systems only sees the workers of their queues; what they execute for others has no name.

    A worker reports what it does every two seconds if that has changed, and at least once a minute.
    """
    found = read_workers()
    return found if principal.systems is None else found.of_systems(principal.systems)
