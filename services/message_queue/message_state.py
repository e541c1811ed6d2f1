"""Where messages are, which of them are meant, and a page of them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Literal, get_args

from services.message_queue.errors import InvalidMessage
from services.message_queue.messages import Message

Place = Literal["main", "processing", "dead", "acknowledged", "archived"]
PLACES: tuple[Place, ...] = get_args(Place)
SORTABLE = (
    "id",
    "type",
    "priority",
    "attempt_count",
    "created_at",
    "dequeued_at",
    "processing_started_at",
    "deadline_at",
    "failed_at",
    "acknowledged_at",
)


@dataclass(frozen=True, kw_only=True)
class Filter:
    """Which messages are meant; what is `None` says nothing. Times are seconds."""

    type: str | None = None
    priority: int | None = None
    attempts: int | None = None
    since: float | None = None
    until: float | None = None
    search: str | None = None
    """Somewhere in the payload, the id, the type or the last error, whatever the case of its letters from A to Z."""

    def to_json(self) -> str:
        """Return it as the scripts take it. Raises `InvalidMessage` for a text that cannot be anywhere."""
        wanted = {
            "type": self.type,
            "priority": self.priority,
            "attempts": self.attempts,
            "from": self.since,
            "until": self.until,
            "search": self.search or None,
        }
        text = json.dumps({name: value for name, value in wanted.items() if value is not None}, ensure_ascii=False)
        try:
            text.encode()
        except UnicodeEncodeError:
            raise InvalidMessage("search", "a text without halves of characters") from None
        return text


EVERYTHING = Filter()


@dataclass(frozen=True, kw_only=True)
class Page:
    """`cursor` is where the next page begins; `None` at the end.

    `matched` counts what was found on the way; `is_partial` says that the search stopped at its limit before the end.
    `is_reached` says that all messages before the cursor were shown, on this page or earlier ones.
    """

    messages: list[Message]
    cursor: str | None
    matched: int
    is_partial: bool
    is_reached: bool = True


@dataclass(frozen=True, kw_only=True)
class Counted:
    """How many messages match; at least so many unless `is_complete`."""

    count: int
    is_complete: bool
