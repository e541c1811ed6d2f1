"""The search for any id over HTTP: what it names, and why that is in its state."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from queue_manager.operations.diagnosis import MAX_SEARCH_ID_LENGTH, Diagnosis, diagnose
from queue_manager.operations.systems import find_system
from queue_manager.web.auth.authorization import EACH, CurrentPrincipal, require_system, viewer_of
from queue_manager.web.http.errors import errors

router = APIRouter(prefix="/api", dependencies=[viewer_of(EACH)], responses=errors(404, 503), tags=["search"])


@router.get("/search")
def search(
    id: Annotated[
        str,
        Query(min_length=1, max_length=MAX_SEARCH_ID_LENGTH, description="Of an item, a message, a job, or a task."),
    ],
    principal: CurrentPrincipal,
    system: Annotated[str | None, Query(description="The only system to be searched.")] = None,
) -> Diagnosis:
    """Explain what an id names: one answer in words, and a timeline of what happened.

    The id of an item is the 24 hexadecimal digits of an ObjectId, a string, a number, a UUID, or extended JSON.
    """
    if system is not None:
        require_system(principal, system)
        find_system(system)
    return diagnose(id, system_names=principal.systems if system is None else [system])
