"""Message states, filters, and pages of messages."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Literal, get_args

from services.message_queue.errors import InvalidMessage
from services.message_queue.messages import Message

MessageState = Literal["main", "processing", "dead", "acknowledged", "archived"]
MESSAGE_STATES: tuple[MessageState, ...] = get_args(MessageState)
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
    """Conditions on messages; `None` matches everything. `since` and `until` are Unix seconds of `created_at`."""

    type: str | None = None
    priority: int | None = None
    attempts: int | None = None
    since: float | None = None
    until: float | None = None
    search: str | None = None
    """Substring of the payload, id, type or last error; ASCII letters match case-insensitively."""

    def to_json(self) -> str:
        """Return the JSON form that the scripts expect. Raises `InvalidMessage` for unpaired surrogates."""
        conditions = {
            "type": self.type,
            "priority": self.priority,
            "attempts": self.attempts,
            "from": self.since,
            "until": self.until,
            "search": self.search or None,
        }
        text = json.dumps({name: value for name, value in conditions.items() if value is not None}, ensure_ascii=False)
        try:
            text.encode()
        except UnicodeEncodeError:
            raise InvalidMessage("search", "a text without unpaired surrogates") from None
        return text


MATCH_ALL = Filter()


@dataclass(frozen=True, kw_only=True)
class MessagePage:
    """A page of messages.

    `cursor` is where the next page begins, `None` on the last page. `matched` is the number of matches found so far.
    `is_partial` is True if the search stopped at its limit before the end. `is_gapless` is True if every match before
    the cursor is on this page or an earlier one.
    """

    messages: list[Message]
    cursor: str | None
    matched: int
    is_partial: bool
    is_gapless: bool = True


@dataclass(frozen=True, kw_only=True)
class MatchCount:
    """The number of matching messages; a lower bound unless `is_complete`."""

    count: int
    is_complete: bool
