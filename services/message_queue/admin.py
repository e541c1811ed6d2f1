"""Operations on the message queue for operators: list, count, move, replay, change and delete messages.

Guarantee: every operation reports an outcome per message. A message that is gone is reported and never recreated.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Literal, cast

from queue_manager.core.clock import seconds
from services.message_queue.browser import MessageBrowser
from services.message_queue.errors import InvalidMessage, MessageInProgress, UnknownMessage
from services.message_queue.message_state import (
    MATCH_ALL,
    MESSAGE_STATES,
    SORTABLE,
    Filter,
    MatchCount,
    MessagePage,
    MessageState,
)
from services.message_queue.messages import (
    FIELD_ALIASES,
    MAX_TYPE_BYTES,
    Message,
    QueueLimits,
    as_json,
    checked_id,
    checked_options,
    checked_text,
    truncate_reason,
)
from services.message_queue.scripts import Scripts

__all__ = [
    "MAX_BULK_IDS",
    "MAX_PAGE_SIZE",
    "MESSAGE_STATES",
    "SORTABLE",
    "Counts",
    "Filter",
    "MatchCount",
    "MessagePage",
    "MessageState",
    "Outcome",
    "QueueAdmin",
    "ReplayResult",
    "checked_ids",
]

MAX_PAGE_SIZE = 1_000
MAX_BULK_IDS = 1_000
"""Maximum number of messages that one call moves, deletes or replays."""
BULK_BATCH_SIZE = 100
"""Maximum number of messages per script call, so that it takes less than 10 ms; fewer if payloads are large."""
COUNT_BUDGET = seconds(2)
REPLAY_BUDGET = seconds(10)
DEFAULT_MOVE_REASON = "Moved by hand"


@dataclass(frozen=True, kw_only=True)
class Counts:
    """The number of messages in each state at `now` (Unix seconds, server clock)."""

    waiting: list[int]
    """By priority, starting at 0."""
    processing: int
    dead: int
    acknowledged: int
    archived: int
    total_acknowledged: int
    overdue: int
    now: float
    first_deadline_at: float | None
    total_requeued: int
    """By sweeps, like `total_dead_lettered`."""
    total_dead_lettered: int

    @property
    def main(self) -> int:
        return sum(self.waiting)

    def of(self, state: MessageState) -> int:
        return int(getattr(self, state))


Outcome = Literal["MOVED", "DELETED", "NOT_FOUND", "UNDECODABLE"]


@dataclass(frozen=True, kw_only=True)
class ReplayResult:
    """Result of a replay of dead letters. `outcomes` is by id, and `None` if there are more than 1,000."""

    moved: int = 0
    failed: int = 0
    is_complete: bool = True
    outcomes: Mapping[str, Outcome] | None = field(default_factory=dict)

    def with_more(self, outcomes: Mapping[str, Outcome]) -> ReplayResult:
        done = sum(outcome == "MOVED" for outcome in outcomes.values())
        moved, failed = self.moved + done, self.failed + len(outcomes) - done
        outcomes_so_far = {**(self.outcomes or {}), **outcomes} if moved + failed <= MAX_BULK_IDS else None
        return replace(self, moved=moved, failed=failed, outcomes=outcomes_so_far)


class QueueAdmin:
    """The messages of one queue. Thread-safe. Every method raises QueueUnavailable."""

    def __init__(self, scripts: Scripts, *, limits: QueueLimits) -> None:
        self._scripts, self._limits = scripts, limits
        self._browser = MessageBrowser(scripts, levels=limits.levels)

    def counts(self) -> Counts:
        """Count the messages by state."""
        answer = self._scripts.run("counts", self._limits.levels)
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
        state: MessageState,
        *,
        limit: int = 50,
        skip: int = 0,
        cursor: str | None = None,
        where: Filter | None = None,
        sort_by: str | None = None,
        ascending: bool = False,
    ) -> MessagePage:
        """Return a page of messages, newest first unless sorted otherwise.

        Messages in `processing` are listed by deadline, latest first. A filtered search stops after about 80 ms. A sort
        by a field without `has_natural_order` sorts at most 5,000 entries. In both cases `is_partial` is True if there
        are more, and `cursor` continues after the last entry scanned. A page has at most 16 MiB.

        Raises `InvalidMessage`, which names the argument.
        """
        return self._browser.page(
            state,
            limit=limit,
            skip=skip,
            cursor=cursor,
            where=where or MATCH_ALL,
            sort_by=sort_by,
            ascending=ascending,
        )

    def count(self, state: MessageState, where: Filter = MATCH_ALL, *, within: timedelta = COUNT_BUDGET) -> MatchCount:
        """Count the messages in `state` that match; stop after `within`."""
        if where == MATCH_ALL:
            return MatchCount(count=self.counts().of(state), is_complete=True)
        return self._browser.count(state, where, within=within)

    def dead_letters(self, where: Filter = MATCH_ALL) -> Iterator[Sequence[str]]:
        """Yield batches of ids of the dead letters that match now, oldest failure first."""
        return self._browser.dead_letters(where)

    def find(self, id: str) -> Message | None:
        """Return the message in any state, or `None`."""
        return next((message for _, message in self.locate([checked_id(id)])), None)

    def locate(self, ids: Sequence[str]) -> Iterator[tuple[MessageState, Message]]:
        """Yield the state and content of each message that exists; read in batches."""
        done = 0
        while done < len(ids):
            rows, scanned = self._scripts.run("locate", *ids[done : done + BULK_BATCH_SIZE])
            yield from ((state.decode(), Message.read(id, data, record)) for id, data, record, state in rows)
            done += scanned

    def move(
        self, ids: Sequence[str], *, to: MessageState, source: MessageState | None = None, reason: str | None = None
    ) -> dict[str, Outcome]:
        """Move messages to state `to`, from `source` or from any state. Moving to `main` resets the attempts."""
        if to == "processing":
            raise InvalidMessage("toQueue", "main, dead, acknowledged or archived")
        return self._each("move", ids, source or "", to, truncate_reason(reason or DEFAULT_MOVE_REASON))

    def replay(self, ids: Sequence[str]) -> dict[str, Outcome]:
        """Move dead letters back to the main queue; their attempts are reset and their history is kept."""
        return self.move(ids, to="main", source="dead")

    def replay_matching(self, where: Filter, *, within: timedelta = REPLAY_BUDGET) -> ReplayResult:
        """Replay the dead letters that match now, oldest failure first; stop after `within`."""
        ends = time.monotonic() + within.total_seconds()
        replayed = ReplayResult()
        for ids in self.dead_letters(where):
            for begin in range(0, len(ids), BULK_BATCH_SIZE):
                if time.monotonic() >= ends:
                    return replace(replayed, is_complete=False)
                replayed = replayed.with_more(self.replay(ids[begin : begin + BULK_BATCH_SIZE]))
        return replayed

    def delete(self, ids: Sequence[str], *, source: MessageState | None = None) -> dict[str, Outcome]:
        """Delete messages from `source` or from any state, even while a consumer holds the lock."""
        return self._each("delete", ids, source or "")

    def _each(self, script: str, ids: Sequence[str], *arguments: str | bytes) -> dict[str, Outcome]:
        """Run a script on messages in batches. Raises QueueUnavailable; earlier batches may then be applied."""
        checked = checked_ids(ids)
        answers: list[bytes] = []
        while (done := len(answers)) < len(checked):
            answers += self._scripts.run(script, *arguments, *checked[done : done + BULK_BATCH_SIZE])
        return {id: cast(Outcome, answer.decode()) for id, answer in zip(checked, answers, strict=True)}

    def update(self, id: str, changes: Mapping[str, Any], *, source: MessageState | None = None) -> None:
        """Change type, payload, priority, ack timeout or max attempts of a message that is not being processed.

        Raises:
            InvalidMessage: names the field.
            UnknownMessage: there is no such message.
            MessageInProgress: a consumer is processing it.
        """
        known = {FIELD_ALIASES.get(name, name): value for name, value in changes.items()}
        for name in changes:
            if FIELD_ALIASES.get(name, name) not in ("type", "payload", "priority", "ack_timeout", "max_attempts"):
                raise InvalidMessage(name[:64], "one of the fields type, payload, priority, ackTimeout, maxAttempts")
        if not known:
            raise InvalidMessage(
                "body", "an object with at least one of type, payload, priority, ackTimeout, maxAttempts"
            )
        record: dict[str, Any] = checked_options(
            ack_timeout=known.get("ack_timeout"), max_attempts=known.get("max_attempts")
        )
        record |= {
            f"custom_{name}": None for name in ("ack_timeout", "max_attempts") if name in known and known[name] is None
        }
        if "type" in known:
            record["type"] = checked_text(known["type"], "type", max_bytes=MAX_TYPE_BYTES)
        if "priority" in known:
            record["priority"] = self._limits.checked_priority(known["priority"])
        payload = self._limits.checked_payload(known["payload"]) if "payload" in known else ""
        kind = as_json(record["type"]) if "type" in record else ""
        answer = self._scripts.run("update", checked_id(id), source or "", json.dumps(record), kind, payload)
        if answer == b"NOT_FOUND":
            raise UnknownMessage(f"There is no message {id} in {source or 'the queue'}")
        if answer == b"HELD":
            raise MessageInProgress(f"A consumer is processing the message {id}; it can be changed once it is requeued")
        if answer == b"UNDECODABLE":
            raise InvalidMessage("id", f"the id of a decodable message; {id} can only be deleted or archived")

    def clear(self, state: MessageState | None = None) -> int:
        """Delete all messages in `state`, or in all states; return their number. See `clear_in_batches`."""
        return sum(self.clear_in_batches(state))

    def clear_in_batches(self, state: MessageState | None = None) -> Iterator[int]:
        """Delete all messages in `state`, or in all states, in batches; yield the number deleted by each.

        Messages enqueued after the first batch are kept. A message that changes its state meanwhile may be kept.
        """
        progress: bytes | str = ""
        while True:
            cleared, progress = self._scripts.run("clear", state or "", self._limits.levels, progress)
            yield cleared
            if not progress:
                return


def checked_ids(ids: Sequence[str]) -> list[str]:
    """Return the ids without duplicates. Raises `InvalidMessage`."""
    if len(ids) > MAX_BULK_IDS:
        raise InvalidMessage("messageIds", f"a list of at most {MAX_BULK_IDS} ids")
    return list(dict.fromkeys(checked_id(id, "messageIds") for id in ids))
