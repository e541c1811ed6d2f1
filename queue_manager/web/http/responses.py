"""Types that responses of several resources share."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from queue_manager.core.json_types import Moment

ServerTime = Annotated[Moment, Field(description="The time of the database server when the answer was made.")]
NextCursor = Annotated[str | None, Field(description="The `cursor` of the next page; null on the last page.")]
IsComplete = Annotated[bool, Field(description="False if the time was not enough for all. Repeat it then.")]

UndoId = Annotated[
    str | None,
    Field(description="The id for `POST /api/audit/{id}/undo`, which restores it for 10 minutes; null if it cannot."),
]
