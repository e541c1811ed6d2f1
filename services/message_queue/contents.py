"""The queue for people: what is where, and moving, replaying, changing and deleting it by hand.

Guarantee: each answer is per message; one that has gone meanwhile is reported, never made again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from services.message_queue.errors import InvalidMessage, MessageHeld, UnknownMessage
from services.message_queue.messages import (
    ALIASES,
    LONGEST_TYPE,
    Bounds,
    Message,
    as_json,
    checked_id,
    checked_options,
    checked_text,
    cut,
)
from services.message_queue.scripts import Scripts

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
LARGEST_PAGE = 1_000
MOST_IDS = 1_000
"""Messages that one call moves, deletes or replays."""
BY_HAND = "Moved by hand"
_CURSOR = re.compile(r"\d{1,20}-\d{1,20}/\d{1,3}|\d{1,9}")


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
        """Return it as `list.lua` takes it. Raises `InvalidMessage` for a text that cannot be anywhere."""
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


@dataclass(frozen=True, kw_only=True)
class Page:
    """`cursor` is where the next page begins; `None` at the end.

    `matched` counts what was found on the way; `is_partial` says that the search stopped at its limit before the end.
    """

    messages: list[Message]
    cursor: str | None
    matched: int
    is_partial: bool


@dataclass(frozen=True, kw_only=True)
class Counts:
    """How many messages are where, at `now` (seconds, by the server's clock)."""

    waiting: list[int]
    """By priority, from 0 up."""
    processing: int
    dead: int
    acknowledged: int
    archived: int
    total_acknowledged: int
    overdue: int
    now: float
    first_deadline_at: float | None
    total_requeued: int
    """By sweeps, as the next."""
    total_dead_lettered: int

    @property
    def main(self) -> int:
        return sum(self.waiting)

    def of(self, place: Place) -> int:
        return int(getattr(self, place))


Outcome = Literal["MOVED", "DELETED", "NOT_FOUND", "UNDECODABLE"]


class Contents:
    """What is in one queue. Any number of threads may use it. Every method raises QueueUnavailable."""

    def __init__(self, scripts: Scripts, *, bounds: Bounds) -> None:
        self._scripts, self._bounds = scripts, bounds

    def counts(self) -> Counts:
        """Count what is where."""
        answer = self._scripts.run("counts", self._bounds.levels)
        waiting, processing, dead, acknowledged, archived, total, overdue, now, first, requeued, given_up = answer
        return Counts(
            waiting=waiting,
            processing=processing,
            dead=dead,
            acknowledged=acknowledged,
            archived=archived,
            total_acknowledged=total,
            overdue=overdue,
            now=now / 1000,
            first_deadline_at=first / 1000 if first else None,
            total_requeued=requeued,
            total_dead_lettered=given_up,
        )

    def list(
        self,
        place: Place,
        *,
        limit: int = 50,
        skip: int = 0,
        cursor: str | None = None,
        wanted: Filter | None = None,
        sort_by: str | None = None,
        ascending: bool = False,
    ) -> Page:
        """Read a page, the newest first unless it says otherwise.

        With a filter or a field to sort by, one page looks at 5,000 entries at most, and always at 16 MiB at most;
        `cursor` goes on from there. Raises `InvalidMessage`, which names the argument.
        """
        if cursor is not None and not _CURSOR.fullmatch(cursor):
            raise InvalidMessage("cursor", "the cursor of an earlier page")
        if sort_by is not None and sort_by not in SORTABLE:
            raise InvalidMessage("sortBy", f"one of {', '.join(SORTABLE)}")
        rows, ended, matched, stopped = self._scripts.run(
            "list",
            place,
            self._bounds.levels,
            limit,
            skip,
            cursor or "",
            (wanted or Filter()).to_json(),
            sort_by or "",
            "1" if ascending else "0",
        )
        return Page(
            messages=[Message.read(id, data, record) for id, data, record, _, _ in rows],
            cursor=ended.decode() or None,
            matched=matched,
            is_partial=stopped == b"1",
        )

    def find(self, id: str) -> Message | None:
        """Return the message wherever it is, or `None`."""
        answer = self._scripts.run("find", checked_id(id))
        return Message.read(*answer) if answer else None

    def move(
        self, ids: Sequence[str], *, to: Place, source: Place | None = None, reason: str | None = None
    ) -> dict[str, Outcome]:
        """Move messages to `to`, from `source` or wherever they are. Moved to `main` they begin anew."""
        if to == "processing":
            raise InvalidMessage("toQueue", "main, dead, acknowledged or archived")
        checked = checked_ids(ids)
        if not checked:
            return {}
        answers = self._scripts.run("move", source or "", to, cut(reason or BY_HAND), *checked)
        return {id: answer.decode() for id, answer in zip(checked, answers, strict=True)}

    def replay(self, ids: Sequence[str]) -> dict[str, Outcome]:
        """Send dead letters to the main queue again: with all their attempts, and their history kept."""
        return self.move(ids, to="main", source="dead")

    def replay_matching(self, wanted: Filter, *, limit: int = MOST_IDS) -> dict[str, Outcome]:
        """Replay up to `limit` dead letters that match, the newest of them, in the order in which they failed."""
        page = self.list("dead", limit=limit, wanted=wanted)
        return self.replay([message.id for message in reversed(page.messages)])

    def delete(self, ids: Sequence[str], *, source: Place | None = None) -> dict[str, Outcome]:
        """Delete messages from `source` or wherever they are, whoever holds them."""
        checked = checked_ids(ids)
        if not checked:
            return {}
        answers = self._scripts.run("delete", source or "", *checked)
        return {id: answer.decode() for id, answer in zip(checked, answers, strict=True)}

    def update(self, id: str, changes: Mapping[str, Any], *, source: Place | None = None) -> None:
        """Change type, payload, priority, ack timeout or attempts of a message that nobody works on.

        Raises:
            InvalidMessage: names the field.
            UnknownMessage: it is not there.
            MessageHeld: a consumer works on it.
        """
        known = {ALIASES.get(name, name): value for name, value in changes.items()}
        for name in changes:
            if ALIASES.get(name, name) not in ("type", "payload", "priority", "ack_timeout", "max_attempts"):
                raise InvalidMessage(
                    name[:64], "no such field; type, payload, priority, ackTimeout, maxAttempts can change"
                )
        if not known:
            raise InvalidMessage("body", "at least one of type, payload, priority, ackTimeout, maxAttempts")
        record: dict[str, Any] = checked_options(
            ack_timeout=known.get("ack_timeout"), max_attempts=known.get("max_attempts")
        )
        record |= {
            f"custom_{name}": None for name in ("ack_timeout", "max_attempts") if name in known and known[name] is None
        }
        if "type" in known:
            record["type"] = checked_text(known["type"], "type", longest=LONGEST_TYPE)
        if "priority" in known:
            record["priority"] = self._bounds.checked_priority(known["priority"])
        payload = self._bounds.checked_payload(known["payload"]) if "payload" in known else ""
        kind = as_json(record["type"]) if "type" in record else ""
        answer = self._scripts.run("update", checked_id(id), source or "", json.dumps(record), kind, payload)
        if answer == b"NOT_FOUND":
            raise UnknownMessage(f"There is no message {id} in {source or 'the queue'}")
        if answer == b"HELD":
            raise MessageHeld(f"A consumer is working on the message {id}: it can be changed when it is back")
        if answer == b"UNDECODABLE":
            raise InvalidMessage("id", f"the id of a message; {id} cannot be decoded, only deleted or archived")

    def clear(self, place: Place | None = None) -> int:
        """Delete everything in `place`, or everywhere; return how many messages that were."""
        return int(self._scripts.run("clear", place or "", self._bounds.levels))


def checked_ids(ids: Sequence[str]) -> list[str]:
    """Return ids, each once. Raises `InvalidMessage`."""
    if len(ids) > MOST_IDS:
        raise InvalidMessage("messageIds", f"at most {MOST_IDS} ids")
    return list(dict.fromkeys(checked_id(id, "messageIds") for id in ids))
