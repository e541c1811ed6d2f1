"""The HTTP API of systems: show their state, scans, history, items, schedule and workers; retry items; pause; mark.

A retry is answered with 202 after the broker took the messages; see `tasks/retry.py`.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Path, Query, Request, Response

from models.mark import ChartMark
from queue_manager.core.json_types import Count
from queue_manager.core.log import get_logger
from queue_manager.items import State
from queue_manager.operations import items as item_operations
from queue_manager.operations import switches
from queue_manager.operations import systems as operations
from queue_manager.operations.schemas import NewPause
from queue_manager.operations.system_schemas import (
    MAX_ITEM_SEARCH_LENGTH,
    ItemDocument,
    Items,
    NewMark,
    OneSystem,
    PausedSystem,
    RetriedItems,
    Scans,
    Schedule,
    Sent,
    SentTask,
    SystemHistory,
)
from queue_manager.operations.workers import Workers, read_workers
from queue_manager.server_calls import mongodb
from queue_manager.system import System
from queue_manager.web.auth.authorization import (
    EACH,
    IN_PATH,
    CurrentActor,
    CurrentPrincipal,
    operator,
    operator_of,
    viewer,
    viewer_of,
)
from queue_manager.web.http.errors import ApiError, errors
from queue_manager.web.http.requests import Cursor, JsonBody, NoBody
from queue_manager.web.routes.systems.events import overview_states
from services.audit import recorded
from services.history import Range
from tasks.retry import retry

MAX_RETRY_BODY = 256 * 1024  # bytes

log = get_logger("QM/items")
queries = APIRouter(prefix="/api", dependencies=[viewer_of(IN_PATH)], responses=errors(404), tags=["systems"])
queries_of_all = APIRouter(prefix="/api", dependencies=[viewer], responses=errors(503), tags=["systems"])
queries_of_each = APIRouter(prefix="/api", dependencies=[viewer_of(EACH)], responses=errors(503), tags=["systems"])
commands = APIRouter(prefix="/api", dependencies=[operator_of(IN_PATH)], responses=errors(404, 503), tags=["systems"])
commands_of_all = APIRouter(prefix="/api", dependencies=[operator], responses=errors(503), tags=["systems"])


def _system_in_path(name: Annotated[str, Path()]) -> System:
    return operations.find_system(name)


Named = Annotated[System, Depends(_system_in_path)]
"""The system that a path names."""
PageSize = Annotated[int, Query(ge=1, le=200)]
Search = Annotated[
    str | None, Query(max_length=MAX_ITEM_SEARCH_LENGTH, description="A text in the id, the title or the reason.")
]


@queries.get("/systems/{name}")
async def one(system: Named, request: Request) -> OneSystem:
    """Return the state of one system."""
    return operations.one_system(await overview_states(request).state(), system)


@queries.get("/systems/{name}/scans", responses=errors(503))
def scans(
    system: Named,
    cursor: Cursor = None,
    limit: PageSize = 50,
    sort: Annotated[
        Literal["at", "duration"], Query(description="The newest first, or the slowest, which have no `cursor`.")
    ] = "at",
) -> Scans:
    """List the scans of the last 24 hours."""
    return operations.scan_page(system, cursor, limit, sort)


@queries.get("/systems/{name}/history", responses=errors(503))
def system_history(
    system: Named, chosen: Annotated[Range, Query(alias="range", description="How far back.")] = "24h"
) -> SystemHistory:
    """Return what a system did in the last hour, day, 7, 30 or 90 days: outcomes and latency, in steps.

    A step is a minute, ten minutes, an hour, six hours, or a day.
    """
    return operations.system_history(system, chosen)


@queries.get("/systems/{name}/items", responses=errors(503))
def items(
    system: Named,
    state: State = "due",
    search: Search = None,
    cursor: Cursor = None,
    limit: PageSize = 50,
    order: Literal["newest", "oldest"] = "newest",
) -> Items:
    """List the items in a state, by the time that it depends on: when they were due, or when their lease ends.

    A page reads 5,000 items of any state at most, so it may be short or empty; its cursor continues.
    """
    return item_operations.item_page(system, state, search=search, cursor=cursor, limit=limit, order=order)


@queries.get("/systems/{name}/items/count", responses=errors(503))
def count_items(system: Named, state: State = "due", search: Search = None) -> Count:
    """Count the items in a state, up to 20,000, for at most 5 s."""
    return item_operations.count_items(system, state, search)


@queries.get("/systems/{name}/items/{id:path}", response_model=ItemDocument, responses=errors(413, 503))
def item_document(system: Named, id: str) -> Response:
    """Return the document of an item as it is stored, in relaxed extended JSON."""
    return Response(item_operations.item_document(system, id), media_type="application/json")


@queries_of_all.get("/schedule")
def schedule() -> Schedule:
    """List the scans of the schedule: when each runs next, and what its last runs did."""
    return operations.read_schedule()


@queries_of_each.get("/workers")
def workers(principal: CurrentPrincipal) -> Workers:
    """List the workers that are online: queues, pool, what each process executes and since when, rate, memory, release.

    A key that is limited to systems sees only the workers of their queues; work for other systems is not named.

    A worker reports what it does every 5 seconds if that has changed, and at least once a minute.
    """
    found = read_workers()
    return found if principal.systems is None else found.of_systems(principal.systems)


@commands.post("/systems/{name}/items/retry", status_code=HTTPStatus.ACCEPTED)
def retry_items(
    system: Named,
    body: Annotated[RetriedItems, Depends(JsonBody(RetriedItems, max_bytes=MAX_RETRY_BODY))],
    actor: CurrentActor,
) -> Sent:
    """Send the tasks of the items of `ids`, or of all that match, at most 1,000.

    `of` is their number as `items/count` returns it. Items that are in progress, not due or gone are left alone.
    """
    return item_operations.retry_items(system, body, actor)


@commands.post("/systems/{name}/items/{id:path}/retry", status_code=HTTPStatus.ACCEPTED, responses=errors(409))
def retry_item(
    system: Named,
    id: str,
    _: NoBody,
    actor: CurrentActor,
) -> SentTask:
    """Send the task of one item that is due, stuck or failed. 409: it is in progress, or not due."""
    listed = system.open_items()
    with recorded(actor, "retry", system=system.name, ids=[id]) as action:
        taken = retry(system, listed, [id])
        if not taken:
            with mongodb():
                if not listed.has(id):
                    raise item_operations.no_item(id)
            message = f"The item {id!r:.100} is in progress or not due"
            raise ApiError(HTTPStatus.CONFLICT, "wrong state", message)
        action.succeeded([listed.id_of(item) for item in taken])
    log.info("An item is retried by an operator", system=system.name, item=id, task_id=taken[0].task_id)
    return SentTask(task_id=taken[0].task_id)


@commands.post("/systems/{name}/pause", responses=errors(409))
def pause(
    system: Named,
    body: Annotated[NewPause, Depends(JsonBody(NewPause, is_required=False))],
    actor: CurrentActor,
    request: Request,
) -> PausedSystem:
    """Dispatch no more items of a system until it is resumed. Items in flight finish.

    409: the system dispatches no items, because its scan does the work itself.
    """
    made = switches.pause_system(actor, system, body.reason)
    overview_states(request).expire()
    return PausedSystem(name=system.name, is_paused=True, pause=made)


@commands.post("/systems/{name}/resume", responses=errors(409))
def resume(system: Named, _: NoBody, actor: CurrentActor, request: Request) -> PausedSystem:
    """Dispatch the items of a paused system again, starting with its next scan."""
    switches.resume_system(actor, system.name)
    overview_states(request).expire()
    return PausedSystem(name=system.name, is_paused=False, pause=None)


@commands_of_all.post("/marks", status_code=HTTPStatus.CREATED)
def add_mark(body: Annotated[NewMark, Depends(JsonBody(NewMark))], actor: CurrentActor) -> ChartMark:
    """Annotate the charts at the current time, for example for a deployment."""
    return operations.add_mark(body.text, actor)
