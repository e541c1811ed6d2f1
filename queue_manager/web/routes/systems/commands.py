"""Pausing and resuming a system over HTTP, for all processes, like `queue-manager systems pause`."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends

from queue_manager import leases
from queue_manager.core.log import get_logger
from queue_manager.web.http.errors import errors
from queue_manager.web.http.requests import JsonBody, NoMembers
from queue_manager.web.routes.systems.queries import Named
from queue_manager.web.routes.systems.schemas import PausedSystem

MAX_PAUSE_BODY = 4 * 1024  # bytes

NothingElse = Annotated[NoMembers, Depends(JsonBody(NoMembers, max_bytes=MAX_PAUSE_BODY, is_required=False))]

log = get_logger("QM/systems")
router = APIRouter(responses=errors(404, 503))


@router.post("/systems/{name}/pause")
def pause(system: Named, _: NothingElse) -> PausedSystem:
    """Dispatch no more items of a system until it is resumed. Items in flight end as usual."""
    leases.pause(system.name)
    log.info("A system was paused by hand", system=system.name)
    return PausedSystem(name=system.name, is_paused=True)


@router.post("/systems/{name}/resume")
def resume(system: Named, _: NothingElse) -> PausedSystem:
    """Dispatch the items of a paused system again, starting with its next scan."""
    leases.resume(system.name)
    log.info("A system was resumed by hand", system=system.name)
    return PausedSystem(name=system.name, is_paused=False)
