"""Pausing and resuming a system over HTTP, for all processes, like `queue-manager systems pause`."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Depends, Request

from queue_manager.operations import switches
from queue_manager.operations.system_schemas import NewPause, PausedSystem
from queue_manager.system import System
from queue_manager.web.auth import CurrentActor
from queue_manager.web.http.errors import ApiError, errors
from queue_manager.web.http.requests import JsonBody, NoBody
from queue_manager.web.routes.systems.events import expire_overview
from queue_manager.web.routes.systems.queries import Named

Reason = Annotated[NewPause, Depends(JsonBody(NewPause, is_required=False))]

router = APIRouter(responses=errors(404, 409, 503))


@router.post("/systems/{name}/pause")
def pause(system: Named, body: Reason, actor: CurrentActor, request: Request) -> PausedSystem:
    """Dispatch no more items of a system until it is resumed. Items in flight finish.

    409: the system dispatches no items, because its scan does the work itself.
    """
    _require_items(system)
    made = switches.pause_system(actor, system.name, body.reason)
    expire_overview(request)
    return PausedSystem(name=system.name, is_paused=True, pause=made)


@router.post("/systems/{name}/resume")
def resume(system: Named, _: NoBody, actor: CurrentActor, request: Request) -> PausedSystem:
    """Dispatch the items of a paused system again, starting with its next scan."""
    _require_items(system)
    switches.resume_system(actor, system.name)
    expire_overview(request)
    return PausedSystem(name=system.name, is_paused=False, pause=None)


def _require_items(system: System) -> None:
    if system.item_task is None:
        message = f"The system {system.name} dispatches no items, so it cannot be paused"
        raise ApiError(HTTPStatus.CONFLICT, "conflict", message)
