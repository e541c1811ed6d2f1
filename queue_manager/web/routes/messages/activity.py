"""The activity log, its anomalies, and the history of a message, with the names of an older service."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Literal, get_args

from fastapi import APIRouter, Depends, Query
from pydantic import AfterValidator, BaseModel, Field, WithJsonSchema

from queue_manager.core.json_types import Number
from queue_manager.operations.message_activity import (
    ACTIONS,
    DEFAULT_ACTIVITY_LIMIT,
    MAX_ACTIVITY_LIMIT,
    Action,
    Activity,
    ActivityPage,
    ActivityPagination,
    MessageActivity,
    activity_page,
    checked_actions,
    entries_of,
    history_of,
    page_of,
)
from queue_manager.operations.message_fields import MAX_FILTER_BYTES, MAX_WHOLE, MomentOf
from queue_manager.operations.schemas import EmptyIsNone
from queue_manager.web.http.errors import errors
from services.message_queue import queue_admin
from services.message_queue.activity import ActivityEntry, AnomalySeverity, AnomalyType

SEVERITIES: tuple[AnomalySeverity, ...] = ("info", "warning", "critical")

router = APIRouter(responses=errors(503))


class AnomalySummary(BaseModel):
    """The number of anomalies in the page."""

    total: int
    by_type: dict[AnomalyType, int]
    by_severity: dict[AnomalySeverity, int]


class Anomalies(BaseModel):
    """Entries with an anomaly."""

    anomalies: list[Activity]
    summary: AnomalySummary
    pagination: ActivityPagination


class ConsumerStats(BaseModel):
    """The deliveries to a consumer in the events that are kept."""

    dequeue_count: int
    last_dequeue: Number


class ConsumersStats(BaseModel):
    """By the consumer's name; with `consumer_id`, those of one consumer, or null."""

    stats: dict[str, ConsumerStats] | ConsumerStats | None


ActivityLimit = Annotated[
    Annotated[int, Field(ge=1, le=MAX_ACTIVITY_LIMIT)] | None,
    EmptyIsNone,
    Query(description=f"Default: {DEFAULT_ACTIVITY_LIMIT}."),
]


_ANY_ACTION = f"({'|'.join(get_args(Action))})"
ActionList = Annotated[
    Annotated[
        str,
        AfterValidator(checked_actions),
        WithJsonSchema({"type": "string", "pattern": f"^{_ANY_ACTION}(,{_ANY_ACTION})*$"}),
    ]
    | None,
    EmptyIsNone,
    Query(description="Comma-separated list of actions."),
]
IdText = Annotated[Annotated[str, Field(max_length=MAX_FILTER_BYTES)] | None, EmptyIsNone]


def _entries(
    action: ActionList = None,
    start: Annotated[MomentOf, Query(alias="start_time")] = None,
    end: Annotated[MomentOf, Query(alias="end_time")] = None,
) -> list[ActivityEntry]:
    return entries_of(action, start, end)


Entries = Annotated[list[ActivityEntry], Depends(_entries)]


@router.get("/queue/activity")
def activity(
    entries: Entries,
    message_id: IdText = None,
    consumer_id: IdText = None,
    has_anomaly: Annotated[bool | None, EmptyIsNone] = None,
    anomaly_type: Annotated[AnomalyType | None, EmptyIsNone] = None,
    limit: ActivityLimit = None,
    offset: Annotated[Annotated[int, Field(ge=0, le=MAX_WHOLE)] | None, EmptyIsNone] = None,
) -> ActivityPage:
    """Return what happened in the queue, newest first, as far back as the events are kept (about 10,000)."""
    return activity_page(
        entries,
        message_id=message_id,
        consumer_id=consumer_id,
        has_anomaly=has_anomaly,
        anomaly_type=anomaly_type,
        limit=limit,
        offset=offset or 0,
    )


@router.get("/queue/activity/anomalies")
def anomalies(
    entries: Entries,
    severity: Annotated[AnomalySeverity | None, EmptyIsNone] = None,
    type: Annotated[AnomalyType | None, EmptyIsNone] = None,
    limit: ActivityLimit = None,
    sort_by: Literal["timestamp", "severity", "type", "action"] = "timestamp",
    sort_order: Literal["asc", "desc"] = "desc",
) -> Anomalies:
    """Return the entries with an anomaly, as far back as the events are kept."""
    found = [
        (entry, anomaly)
        for entry in reversed(entries)
        if (anomaly := entry.anomaly) is not None
        and (severity is None or anomaly.severity == severity)
        and (type is None or anomaly.type == type)
    ]
    if sort_by == "severity":
        found.sort(key=lambda one: SEVERITIES.index(one[1].severity))
    elif sort_by == "type":
        found.sort(key=lambda one: one[1].type)
    elif sort_by == "action":
        found.sort(key=lambda one: ACTIONS[one[0].type])
    if sort_order == "desc":
        found.reverse()
    page = page_of([entry for entry, _ in found], limit, 0)
    shown = found[: page.pagination.limit]
    by_severity = Counter(anomaly.severity for _, anomaly in shown)
    return Anomalies(
        anomalies=page.logs,
        summary=AnomalySummary(
            total=len(shown),
            by_type=Counter(anomaly.type for _, anomaly in shown),
            by_severity={severity: by_severity[severity] for severity in SEVERITIES},
        ),
        pagination=page.pagination,
    )


@router.get("/queue/activity/consumers")
def consumers(consumer_id: IdText = None) -> ConsumersStats:
    """Return the deliveries to each consumer that gave its name, as far back as the events are kept."""
    stats: dict[str, ConsumerStats] = {}
    for entry in queue_admin().activity():
        name = entry.event.consumer_id
        if entry.type == "dequeue" and name is not None:
            count = stats[name].dequeue_count if name in stats else 0
            stats[name] = ConsumerStats(dequeue_count=count + 1, last_dequeue=entry.at)
    return ConsumersStats(stats=stats.get(consumer_id) if consumer_id else stats)


@router.get("/queue/activity/message/{id:path}", responses=errors(404))
def of_message(id: str) -> MessageActivity:
    """Return the history of a message in the form of the older service; see also `GET /api/queue/message/{id}`."""
    message = queue_admin().find(id)
    return MessageActivity(message_id=id, history=list(history_of(message)) if message else [])
