"""Types that responses of several resources share."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from pydantic import BaseModel, Field, PlainSerializer, WithJsonSchema

from queue_manager.core.clock import to_iso
from queue_manager.core.pause import Pause

Moment = Annotated[datetime, PlainSerializer(to_iso), WithJsonSchema({"type": "string", "format": "date-time"})]
"""A time, written as `2026-01-31T09:30:00.000Z`."""
Number = Annotated[int | float, WithJsonSchema({"type": "number"})]
"""A number that keeps its type: 30, not 30.0."""
ServerTime = Annotated[Moment, Field(description="The time of the database server when the answer was made.")]
NextCursor = Annotated[str | None, Field(description="The `cursor` of the next page; null on the last page.")]

UndoId = Annotated[
    str | None,
    Field(description="The id for `POST /api/audit/{id}/undo`, which restores it for 10 minutes; null if it cannot."),
]


class PauseState(BaseModel):
    """A pause that an operator made; what is unknown is null."""

    at: Moment | None
    by: str | None = Field(description="Who paused it: the name of the key, or `command line`.")
    reason: str | None

    @classmethod
    def of(cls, pause: Pause) -> PauseState:
        return cls(at=pause.at, by=pause.by, reason=pause.reason)


def optional(description: str) -> Any:
    """Return a field that is left out of the response instead of being null."""
    return Field(default=None, exclude_if=lambda value: value is None, description=description)
