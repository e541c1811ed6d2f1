"""The history of systems, and the marks in their charts."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Depends, Query

from beat_schedule import systems
from models import mark
from models.database import server_now
from models.mark import ChartMark
from queue_manager.core.log import get_logger
from queue_manager.server_calls import mongodb, redis_server
from queue_manager.telemetry import counters
from queue_manager.telemetry.latency import MEASURES, Measure
from queue_manager.web.auth import CurrentActor
from queue_manager.web.http.errors import errors
from queue_manager.web.http.requests import JsonBody
from queue_manager.web.routes.latency import latency_of, percentiles_of
from queue_manager.web.routes.systems.queries import Named
from queue_manager.web.routes.systems.schemas import NewMark, PercentileSeries, SystemHistory
from services import history
from services.audit import recorded
from services.history import Range

MAX_MARK_BODY = 4 * 1024  # bytes

log = get_logger("QM/systems")
router = APIRouter(responses=errors(404, 503))
marks = APIRouter(responses=errors(503))


@router.get("/systems/{name}/history")
def system_history(
    system: Named, chosen: Annotated[Range, Query(alias="range", description="How far back.")] = "24h"
) -> SystemHistory:
    """Return what a system did in the last hour, day, 7, 30 or 90 days: outcomes and latency, in steps.

    A step is a minute, ten minutes, an hour, six hours, or a day.
    """
    with mongodb(), redis_server():
        now = server_now()
        found = history.read(system, chosen, systems=systems(), now=now)
    return SystemHistory(
        server_time=now,
        begins_at=found.begins_at,
        step_seconds=int(found.step.total_seconds()),
        outcomes={outcome: found.numbers(outcome) for outcome in counters.OUTCOMES},
        percentiles={measure: _series(found, measure) for measure in MEASURES},
        latency=latency_of(system, found.total),
        duration_names={**system.duration_names},
        marks=found.marks,
    )


@marks.post("/marks", status_code=HTTPStatus.CREATED)
def add_mark(
    body: Annotated[NewMark, Depends(JsonBody(NewMark, max_bytes=MAX_MARK_BODY))], actor: CurrentActor
) -> ChartMark:
    """Annotate the charts at the current time, for example for a deployment."""
    with recorded(actor, "mark", detail=body.text), mongodb():
        made = ChartMark(kind="deployment", at=server_now(), text=body.text, by=actor.who)
        mark.add(made)
    log.info("A mark was made", text=made.text)
    return made


def _series(found: history.RangeHistory, measure: Measure) -> PercentileSeries:
    steps = [percentiles_of(durations) for durations in found.histograms(measure)]
    return PercentileSeries(
        p50_ms=[None if one is None else one.p50_ms for one in steps],
        p95_ms=[None if one is None else one.p95_ms for one in steps],
        p99_ms=[None if one is None else one.p99_ms for one in steps],
    )
