"""The queue for people: what is where, and moving, replaying, changing and deleting it by hand.

Guarantee: each answer is per message; one that has gone meanwhile is reported, never made again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Literal, cast

from queue_manager.core.clock import seconds
from services.message_queue.browser import Looking
from services.message_queue.errors import InvalidMessage, MessageHeld, UnknownMessage
from services.message_queue.message_state import EVERYTHING, PLACES, SORTABLE, Counted, Filter, Page, Place
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

__all__ = [
    "LARGEST_PAGE",
    "MOST_IDS",
    "PLACES",
    "SORTABLE",
    "Counted",
    "Counts",
    "Filter",
    "Outcome",
    "Page",
    "Place",
    "QueueAdmin",
    "Replayed",
    "checked_ids",
]

LARGEST_PAGE = 1_000
MOST_IDS = 1_000
"""Messages that one call moves, deletes or replays."""
AT_ONCE = 100
"""Messages that one call of the server moves, deletes or finds, unless their payloads are large: less than 10 ms."""
COUNT_FOR = seconds(2)
REPLAY_FOR = seconds(10)
BY_HAND = "Moved by hand"


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


@dataclass(frozen=True, kw_only=True)
class Replayed:
    """What became of dead letters. `outcomes` has each of them, and is `None` when they are more than 1,000."""

    moved: int = 0
    failed: int = 0
    is_complete: bool = True
    outcomes: Mapping[str, Outcome] | None = field(default_factory=dict)

    def with_more(self, outcomes: Mapping[str, Outcome]) -> Replayed:
        done = sum(outcome == "MOVED" for outcome in outcomes.values())
        moved, failed = self.moved + done, self.failed + len(outcomes) - done
        told = {**(self.outcomes or {}), **outcomes} if moved + failed <= MOST_IDS else None
        return replace(self, moved=moved, failed=failed, outcomes=told)


class QueueAdmin:
    """What is in one queue. Any number of threads may use it. Every method raises QueueUnavailable."""

    def __init__(self, scripts: Scripts, *, bounds: Bounds) -> None:
        self._scripts, self._bounds = scripts, bounds
        self._looking = Looking(scripts, levels=bounds.levels)

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

        What is processed is listed by deadline, the latest first. With a filter it looks for about 80 ms; sorted by a
        field by which entries have no order (`has_order`), it looks at 5,000 entries: `is_partial` says that there
        are more, and `cursor` goes on behind what was looked at. A page has 16 MiB at most.

        Raises `InvalidMessage`, which names the argument.
        """
        return self._looking.page(
            place,
            limit=limit,
            skip=skip,
            cursor=cursor,
            wanted=wanted or EVERYTHING,
            sort_by=sort_by,
            ascending=ascending,
        )

    def count(self, place: Place, wanted: Filter = EVERYTHING, *, within: timedelta = COUNT_FOR) -> Counted:
        """Count the messages in a place that match: all of them, or as many as `within` is enough for."""
        if wanted == EVERYTHING:
            return Counted(count=self.counts().of(place), is_complete=True)
        return self._looking.count(place, wanted, within=within)

    def dead_letters(self, wanted: Filter = EVERYTHING) -> Iterator[Sequence[str]]:
        """Yield the ids of the dead letters that match and are there by now, in parts, the oldest failure first."""
        return self._looking.dead_letters(wanted)

    def find(self, id: str) -> Message | None:
        """Return the message wherever it is, or `None`."""
        return next((message for _, message in self.locate([checked_id(id)])), None)

    def locate(self, ids: Sequence[str]) -> Iterator[tuple[Place, Message]]:
        """Yield those of the messages that are anywhere, with where they are; read in slices."""
        done = 0
        while done < len(ids):
            rows, looked = self._scripts.run("locate", *ids[done : done + AT_ONCE])
            yield from ((place.decode(), Message.read(id, data, record)) for id, data, record, place in rows)
            done += looked

    def move(
        self, ids: Sequence[str], *, to: Place, source: Place | None = None, reason: str | None = None
    ) -> dict[str, Outcome]:
        """Move messages to `to`, from `source` or wherever they are. Moved to `main` they begin anew."""
        if to == "processing":
            raise InvalidMessage("toQueue", "main, dead, acknowledged or archived")
        return self._each("move", ids, source or "", to, cut(reason or BY_HAND))

    def replay(self, ids: Sequence[str]) -> dict[str, Outcome]:
        """Send dead letters to the main queue again: with all their attempts, and their history kept."""
        return self.move(ids, to="main", source="dead")

    def replay_matching(self, wanted: Filter, *, within: timedelta = REPLAY_FOR) -> Replayed:
        """Replay the dead letters that match and are there by now, the oldest failure first; stop after `within`."""
        ends = time.monotonic() + within.total_seconds()
        replayed = Replayed()
        for ids in self.dead_letters(wanted):
            for begin in range(0, len(ids), AT_ONCE):
                if time.monotonic() >= ends:
                    return replace(replayed, is_complete=False)
                replayed = replayed.with_more(self.replay(ids[begin : begin + AT_ONCE]))
        return replayed

    def delete(self, ids: Sequence[str], *, source: Place | None = None) -> dict[str, Outcome]:
        """Delete messages from `source` or wherever they are, whoever holds them."""
        return self._each("delete", ids, source or "")

    def _each(self, script: str, ids: Sequence[str], *arguments: str | bytes) -> dict[str, Outcome]:
        """Run a script for messages in slices. Raises QueueUnavailable; then earlier slices may be done."""
        checked = checked_ids(ids)
        answers: list[bytes] = []
        while (done := len(answers)) < len(checked):
            answers += self._scripts.run(script, *arguments, *checked[done : done + AT_ONCE])
        return {id: cast(Outcome, answer.decode()) for id, answer in zip(checked, answers, strict=True)}

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
        """Delete everything in `place`, or everywhere; return how many messages that were. See `clearing`."""
        return sum(self.clearing(place))

    def clearing(self, place: Place | None = None) -> Iterator[int]:
        """Delete everything in `place`, or everywhere, slice by slice; yield how many messages each slice had.

        What is enqueued after the first slice stays, and so may a message that moves meanwhile.
        """
        state: bytes | str = ""
        while True:
            cleared, state = self._scripts.run("clear", place or "", self._bounds.levels, state)
            yield cleared
            if not state:
                return


def checked_ids(ids: Sequence[str]) -> list[str]:
    """Return ids, each once. Raises `InvalidMessage`."""
    if len(ids) > MOST_IDS:
        raise InvalidMessage("messageIds", f"at most {MOST_IDS} ids")
    return list(dict.fromkeys(checked_id(id, "messageIds") for id in ids))
