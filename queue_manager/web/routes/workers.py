"""The workers that are online over HTTP."""

from __future__ import annotations

from fastapi import APIRouter

from queue_manager.operations.workers import Workers, read_workers
from queue_manager.web.auth import CurrentPrincipal
from queue_manager.web.http.errors import errors

router = APIRouter(responses=errors(503))


@router.get("/workers")
def workers(principal: CurrentPrincipal) -> Workers:
    """List the workers that are online: queues, pool, what each process executes and since when, rate, memory, release.

    A key that is limited to systems sees only the workers of their queues; work for other systems is not named.

    A worker reports what it does every two seconds if that has changed, and at least once a minute.
    """
    found = read_workers()
    return found if principal.systems is None else found.of_systems(principal.systems)
