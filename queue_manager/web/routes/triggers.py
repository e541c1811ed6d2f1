"""`POST /api/trigger/<group>/<job>`: one scan now, whether or not its system is switched on.

Guarantee: 202 with the task's id after the broker took the message; of two requests at once, one is 202 and the
other 409. The route exists only while `QM_HOOKS` is true.
"""

from __future__ import annotations

from http import HTTPStatus
from uuid import uuid4

from fastapi import APIRouter
from pydantic import BaseModel

from beat_schedule import systems
from models import scan_run
from models.database import server_now
from queue_manager.beat import scan_ticks
from queue_manager.core.errors import Unavailable, reason
from queue_manager.core.log import get_logger
from queue_manager.core.settings import settings
from queue_manager.server_calls import broker, mongodb, redis_server
from queue_manager.system import SCANS_QUEUE, System
from queue_manager.web.auth.authorization import EACH, CurrentActor, CurrentPrincipal, operator_of, require_system
from queue_manager.web.http.errors import ApiError, errors
from services.audit import recorded
from tasks import app

log = get_logger("QM/triggers")
router = APIRouter(dependencies=[operator_of(EACH)], tags=["systems"])


def spellings(trigger: str) -> tuple[str, str]:
    """Return both accepted forms: `group/some-job` and `group/someJob`."""
    group, _, job = trigger.rpartition("/")
    first, *others = job.split("-")
    return trigger, f"{group}/{first}{''.join(map(str.capitalize, others))}"


class TriggeredScan(BaseModel):
    """The task of the scan."""

    task_id: str


@router.post("/api/trigger/{path:path}", status_code=HTTPStatus.ACCEPTED, responses=errors(404, 409, 503))
def trigger(path: str, actor: CurrentActor, principal: CurrentPrincipal) -> TriggeredScan:
    """Send the scan that `path` names. 409: it is running."""
    system = next((system for system in systems() if path in spellings(system.trigger)), None)
    if system is None:
        known = ", ".join(system.trigger for system in systems() if principal.has_system(system.name))
        raise ApiError(HTTPStatus.NOT_FOUND, "unknown job", f"There is no trigger {path!r}; the triggers are: {known}")
    require_system(principal, system.name)
    token = str(uuid4())
    with recorded(actor, "scan", system=system.name, detail=f"task {token}"):
        _begin(system, token)
        try:
            _send(system, token)
        except Exception:
            _end(system, token)
            raise
    log.info("Scan triggered", scan=system.name, task_id=token)
    return TriggeredScan(task_id=token)


def _begin(system: System, token: str) -> None:
    """Record that the scan runs, which it does itself when it begins and ends. 409: it is running."""
    # A message that no worker takes must not block the next trigger for longer than one period.
    lease = min(scan_run.RUN_LEASE, system.period(settings()))
    with mongodb():
        if not scan_run.try_begin(system.scan_task, token, now=server_now(), lease=lease):
            message = f"The scan {system.name} is running; try again later"
            raise ApiError(HTTPStatus.CONFLICT, "already running", message)


def _end(system: System, token: str) -> None:
    try:
        with mongodb():
            scan_run.end(system.scan_task, token)
    except Unavailable as error:
        log.warning("A scan that was not sent counts as running until its lease ends", error=reason(error))


def _send(system: System, token: str) -> None:
    """Send the scan's task, as a tick: a worker skips it if a run began after it was sent. Raises `Unavailable`.

    It does not expire, because a worker would judge that by its own clock.
    """
    with broker() as connection, redis_server() as client:
        app.send_task(
            system.scan_task,
            queue=SCANS_QUEUE,
            task_id=token,
            headers={scan_ticks.TICK_HEADER: scan_ticks.issue(client, system.name)},
            connection=connection,
            retry=False,
        )
