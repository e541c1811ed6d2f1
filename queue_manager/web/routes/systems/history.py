"""The history of systems, and the marks in their charts."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Depends, Query

from models.mark import ChartMark
from queue_manager.operations import systems as operations
from queue_manager.operations.system_schemas import NewMark, SystemHistory
from queue_manager.web.auth import CurrentActor
from queue_manager.web.http.errors import errors
from queue_manager.web.http.requests import JsonBody
from queue_manager.web.routes.systems.queries import Named
from services.history import Range

router = APIRouter(responses=errors(404, 503))
marks = APIRouter(responses=errors(503))


@router.get("/systems/{name}/history")
def system_history(
    system: Named, chosen: Annotated[Range, Query(alias="range", description="How far back.")] = "24h"
) -> SystemHistory:
    """Return what a system did in the last hour, day, 7, 30 or 90 days: outcomes and latency, in steps.

    A step is a minute, ten minutes, an hour, six hours, or a day.
    """
    return operations.system_history(system, chosen)


@marks.post("/marks", status_code=HTTPStatus.CREATED)
def add_mark(body: Annotated[NewMark, Depends(JsonBody(NewMark))], actor: CurrentActor) -> ChartMark:
    """Annotate the charts at the current time, for example for a deployment."""
    return operations.add_mark(body.text, actor)
