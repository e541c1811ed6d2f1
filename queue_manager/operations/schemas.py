"""Types that the requests and responses of several resources share."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from itertools import takewhile
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from queue_manager.core.clock import milliseconds, parse_utc
from queue_manager.core.errors import InvalidField, PermanentError
from queue_manager.core.json_types import Moment
from queue_manager.pauses import MAX_REASON_LENGTH
from queue_manager.system import System
from queue_manager.telemetry import latency
from queue_manager.telemetry.latency import MEASURES, Histogram, Measure

MAX_FIELD_LENGTH = 64  # characters of a name that is quoted

ServerTime = Annotated[Moment, Field(description="The time of the database server when the answer was made.")]
NextCursor = Annotated[str | None, Field(description="The `cursor` of the next page; null on the last page.")]
IsComplete = Annotated[bool, Field(description="False if the time was not enough for all. Repeat it then.")]

UndoId = Annotated[
    str | None,
    Field(description="The id for `POST /api/audit/{id}/undo`, which restores it for 10 minutes; null if it cannot."),
]
EmptyIsNone = BeforeValidator(lambda value: None if value == "" else value)
"""For a query parameter that may be empty: forms also send the fields that were not filled in."""


def _moment(value: Any) -> datetime | None:
    try:
        return parse_utc(value, field="")
    except PermanentError:
        raise ValueError("must be an ISO 8601 time with a zone, such as 2026-01-31T09:30:00Z") from None


At = Annotated[datetime | None, BeforeValidator(_moment)]
"""A time in a body."""


class Members(BaseModel):
    """The members of a JSON object. Unknown ones are refused; null counts as not given."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, given: Any) -> Any:
        return {name: value for name, value in given.items() if value is not None} if isinstance(given, dict) else given


class NoMembers(Members):
    """An empty object."""


PAUSE_REASON: Any = Field(
    default=None, min_length=1, max_length=MAX_REASON_LENGTH, description="Why, for the people who see it."
)


class NewPause(Members):
    """A pause of a system."""

    reason: str | None = PAUSE_REASON


M = TypeVar("M", bound=Members)


def validated(model: type[M], given: dict[str, Any]) -> M:
    """Return the members of a body as a `model`. Raises `InvalidField` about the first invalid one."""
    for name in given:
        if name not in model.model_fields:
            known = f"the fields are {', '.join(model.model_fields)}" if model.model_fields else "there are none"
            raise InvalidField(name[:MAX_FIELD_LENGTH], f"unknown field; {known}")
    try:
        return model.model_validate(given)
    except ValidationError as error:
        raise invalid_because(error.errors()[0]) from None


def invalid_because(error: Mapping[str, Any]) -> InvalidField:
    """Return a validation error of pydantic as an error about the field."""
    field = ".".join(takewhile(lambda part: isinstance(part, str), error["loc"]))[:MAX_FIELD_LENGTH]
    match error["type"]:
        case "missing":
            return InvalidField(field, "is missing")
        case "value_error":
            return InvalidField(field, str(error["ctx"]["error"]))
    sentence = re.sub(r"^\w+ should ", "must ", error["msg"])
    return InvalidField(field, re.sub(r" after validation.*|, unable to .*", "", sentence))


# Latency


class Percentiles(BaseModel):
    """Percentiles of durations, in milliseconds, interpolated within the buckets of a histogram.

    Each bucket ends at about twice its beginning. More than four hours count as four hours.
    """

    count: int = Field(description="The number of durations.")
    p50_ms: float
    p95_ms: float
    p99_ms: float


class OnTime(BaseModel):
    """How many items were on time."""

    of: Measure = Field(description="The duration that is compared.")
    within_ms: int = Field(description="The bound for an item to be on time, from the system's declaration.")
    share: float = Field(ge=0, le=1)


class Latency(BaseModel):
    """How long items took that were done; null where there were none, or the system does not measure it."""

    due_to_done: Percentiles | None = Field(description="From the due time to the result.")
    wait: Percentiles | None = Field(description="From the due time or the dispatch, whichever is later, to the start.")
    run: Percentiles | None = Field(description="From the start to the result.")
    on_time: OnTime | None


def latency_of(system: System, counts: Mapping[str, int]) -> Latency:
    """Return the latency of a system by the durations that were counted."""
    histograms = latency.histograms(counts)
    return Latency(
        **{measure: percentiles_of(histograms[measure]) for measure in MEASURES},
        on_time=_on_time(system, histograms[system.on_time_of]),
    )


def percentiles_of(durations: Histogram) -> Percentiles | None:
    """Return the percentiles of durations; `None` if there are none."""
    p50, p95, p99 = (durations.percentile(share) for share in (0.5, 0.95, 0.99))
    if p50 is None or p95 is None or p99 is None:
        return None
    return Percentiles(count=durations.total, p50_ms=round(p50, 1), p95_ms=round(p95, 1), p99_ms=round(p99, 1))


def _on_time(system: System, durations: Histogram) -> OnTime | None:
    within_ms = milliseconds(system.on_time_within)
    share = durations.share_within(within_ms)
    return None if share is None else OnTime(of=system.on_time_of, within_ms=within_ms, share=share)
