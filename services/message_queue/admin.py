"""Changing the message queue for operators: move, replay, update and delete messages; pause types.

Guarantee: every operation reports an outcome per message. A message that is gone is reported and never recreated.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import chain
from typing import Any, Literal, cast

from queue_manager.core.clock import seconds
from services.message_queue.activity import ActivityEntry, read_activity
from services.message_queue.browser import (
    MAX_BULK_IDS,
    MESSAGE_STATES,
    Filter,
    KeptState,
    MessageBrowser,
    MessageState,
)
from services.message_queue.errors import InvalidMessage, MessageInProgress, UnknownMessage
from services.message_queue.fields import (
    as_json,
    checked_new_type,
    checked_options,
    checked_text,
    truncate_reason,
)
from services.message_queue.messages import FIELD_ALIASES, Message
from services.message_queue.scripts import Argument

REPLAY_BUDGET = DELETE_BUDGET = seconds(10)
MAX_PAUSED_TYPES = 30  # each dequeue reads them, and a list reads parked messages of each type and priority
DEFAULT_MOVE_REASON = "Moved manually"
EDITABLE_FIELDS = "type, payload, priority, ackTimeout, maxAttempts"

MessageOutcome = Literal["MOVED", "DELETED", "NOT_FOUND", "CHANGED", "UNDECODABLE"]
MessageCopies = Sequence[Mapping[str, Any]]
KeepMessages = Callable[[MessageCopies], Callable[[MessageCopies], None]]
"""Stores records of messages before they are deleted. Returns a function that keeps only those that were."""
RESTORE_BATCH_SIZE = 50  # messages per script call, so that it takes less than 10 ms
MAX_DELETIONS = 3  # attempts at a message that changes between being read and being deleted


@dataclass(frozen=True, kw_only=True)
class ReplayResult:
    """Result of a replay of dead letters. `outcomes` is by id, and `None` if there are more than 1,000."""

    moved: int = 0
    failed: int = 0
    is_complete: bool = True
    outcomes: Mapping[str, MessageOutcome] | None = field(default_factory=dict)

    def with_more(self, outcomes: Mapping[str, MessageOutcome]) -> ReplayResult:
        done = sum(outcome == "MOVED" for outcome in outcomes.values())
        moved, failed = self.moved + done, self.failed + len(outcomes) - done
        outcomes_so_far = {**(self.outcomes or {}), **outcomes} if moved + failed <= MAX_BULK_IDS else None
        return replace(self, moved=moved, failed=failed, outcomes=outcomes_so_far)


@dataclass(frozen=True, kw_only=True)
class DeleteResult:
    """Number of messages deleted from each state; `is_complete` is False if the time was not enough for all."""

    deleted: Mapping[KeptState, int]
    is_complete: bool


class QueueAdmin(MessageBrowser):
    """Reads and changes the messages of one queue. Thread-safe. Every method raises QueueUnavailable."""

    def activity(self) -> list[ActivityEntry]:
        """Return the activity log, oldest first."""
        return read_activity(self._scripts, self._options)

    def pause(self, types: Sequence[str], *, by: str, reason: str | None = None) -> None:
        """Deliver no messages of these types until they are resumed: they wait, and those in processing go on.

        Raises `InvalidMessage` if more than 30 types would be paused; none of these is paused then.
        """
        about = json.dumps({"by": by, "reason": reason})[1:-1]
        if not self._scripts.run("pause", about, MAX_PAUSED_TYPES, *checked_types(types)):
            at_most = f"at most {MAX_PAUSED_TYPES} in total, with those that are paused already; resume some first"
            raise InvalidMessage("types", at_most)

    def resume(self, types: Sequence[str]) -> list[str]:
        """Deliver messages of these types again, in their original order; return the types that were paused."""
        return [type for type in checked_types(types) if self._scripts.run("resume", type)]

    def move(
        self, ids: Sequence[str], *, to: MessageState, source: MessageState | None = None, reason: str | None = None
    ) -> dict[str, MessageOutcome]:
        """Move messages to state `to`, from `source` or from any state. Moving to `main` resets the attempts."""
        if to == "processing":
            raise InvalidMessage("toQueue", "main, dead, acknowledged or archived")
        return self._each("move", ids, source or "", to, truncate_reason(reason or DEFAULT_MOVE_REASON))

    def replay(self, ids: Sequence[str]) -> dict[str, MessageOutcome]:
        """Move dead letters back to the main queue; their attempts are reset and their history is kept."""
        return self.move(ids, to="main", source="dead")

    def replay_matching(self, where: Filter, *, within: timedelta = REPLAY_BUDGET) -> Iterator[ReplayResult]:
        """Replay the dead letters that match now, oldest failure first; stop after `within`.

        Yields the result so far before each batch, and at the end.
        """
        ends = time.monotonic() + within.total_seconds()
        replayed = ReplayResult()
        for ids in self.matching_ids("dead", where):
            yield replace(replayed, is_complete=False)
            if time.monotonic() >= ends:
                return
            replayed = replayed.with_more(self.replay(ids))
        yield replayed

    def delete(
        self, ids: Sequence[str], *, source: MessageState | None = None, keep: KeepMessages | None = None
    ) -> dict[str, MessageOutcome]:
        """Delete messages from `source` or from any state, even while a consumer holds the lock.

        With `keep`, exactly what it was called with is deleted, for `restore`.
        """
        if keep is None:
            return self._each("delete", ids, source or "", 1)
        outcomes: dict[str, MessageOutcome] = dict.fromkeys(checked_ids(ids), "CHANGED")
        self._other_programs.adopt()
        for _ in range(MAX_DELETIONS):
            left = [id for id, outcome in outcomes.items() if outcome == "CHANGED"]
            outcomes |= dict.fromkeys(left, "NOT_FOUND")
            # What is kept together, `restore` adds by one script, so an undo that fails knows what it has restored.
            for rows in self._scripts.run_for_each("locate", (), [(id,) for id in left], most=RESTORE_BATCH_SIZE):
                copies = [
                    {"id": id.decode(), "state": state.decode(), "record": stored, "data": data}
                    for id, data, _, state, stored in filter(None, rows)
                    if source in (None, state.decode())
                ]
                keep_only = keep(copies)
                results = self._outcomes("delete", (source or "", 2), [(one["id"], one["record"]) for one in copies])
                outcomes |= results
                deleted = [one for one in copies if results[one["id"]] == "DELETED"]
                if len(deleted) < len(copies):
                    keep_only(deleted)
        return outcomes

    def restore(self, copies: MessageCopies) -> int:
        """Add deleted messages again, each to the end of its state; return their number.

        One that was being processed waits again. An id that exists is not added. Raises QueueFull.
        """
        items = [(one["id"], one["state"], one["record"], one["data"]) for one in copies]
        return sum(map(sum, self._scripts.run_for_each("restore", (), items, most=RESTORE_BATCH_SIZE)))

    def delete_matching(
        self, states: Sequence[KeptState], where: Filter, *, keep: KeepMessages | None = None
    ) -> Iterator[DeleteResult]:
        """Delete the messages in `states` that match now, as `delete` does; stop after `DELETE_BUDGET`.

        Yields the result so far before each batch, and at the end.
        """
        ends = time.monotonic() + DELETE_BUDGET.total_seconds()
        deleted = dict.fromkeys(states, 0)
        for state in states:
            for ids in self.matching_ids(state, where):
                yield DeleteResult(deleted=deleted, is_complete=False)
                if time.monotonic() >= ends:
                    return
                outcomes = self.delete(ids, source=state, keep=keep)
                deleted[state] += sum(outcome == "DELETED" for outcome in outcomes.values())
        yield DeleteResult(deleted=deleted, is_complete=True)

    def count_matching(self, states: Sequence[KeptState], where: Filter) -> DeleteResult:
        """Count the messages that `delete_matching` would delete."""
        counts = {state: self.count(state, where) for state in states}
        return DeleteResult(
            deleted={state: found.count for state, found in counts.items()},
            is_complete=all(found.is_complete for found in counts.values()),
        )

    def _each(self, script: str, ids: Sequence[str], *arguments: Argument) -> dict[str, MessageOutcome]:
        """Run a script on messages in batches. Raises QueueUnavailable; earlier batches may then be applied."""
        outcomes = self._outcomes(script, arguments, [(id,) for id in checked_ids(ids)])
        unknown = [(id,) for id, outcome in outcomes.items() if outcome == "NOT_FOUND"]
        if unknown and self._other_programs.adopt():
            outcomes |= self._outcomes(script, arguments, unknown)
        return outcomes

    def _outcomes(
        self, script: str, arguments: Sequence[Argument], items: Sequence[tuple[str, *tuple[bytes, ...]]]
    ) -> dict[str, MessageOutcome]:
        """Run a script on items that begin with an id, and return its answers by id."""
        answers = chain.from_iterable(self._scripts.run_for_each(script, arguments, items))
        return {id: cast(MessageOutcome, answer.decode()) for (id, *_), answer in zip(items, answers, strict=True)}

    def update(
        self, id: str, changes: Mapping[str, Any], *, source: MessageState | None = None
    ) -> tuple[Message, Message]:
        """Change type, payload, priority, ack timeout or max attempts of a message that is not being processed.

        Returns:
            The message before the change, and after it.

        Raises:
            InvalidMessage: names the field.
            UnknownMessage: there is no such message.
            MessageInProgress: a consumer is processing it.
        """
        known: dict[str, Any] = {}
        for name, value in changes.items():
            known_name = FIELD_ALIASES.get(name, name)
            if known_name not in ("type", "payload", "priority", "ack_timeout", "max_attempts"):
                raise InvalidMessage(name[:64], f"one of the fields {EDITABLE_FIELDS}")
            known[known_name] = value
        if not known:
            raise InvalidMessage("body", f"an object with at least one of {EDITABLE_FIELDS}")
        record: dict[str, Any] = {f"custom_{name}": None for name in ("ack_timeout", "max_attempts") if name in known}
        record |= checked_options(ack_timeout=known.get("ack_timeout"), max_attempts=known.get("max_attempts"))
        if "type" in known:
            record["type"] = checked_new_type(known["type"])
        if "priority" in known:
            record["priority"] = self._options.checked_priority(known["priority"])
        payload = self._options.checked_payload(known["payload"]) if "payload" in known else ""
        kind = as_json(record["type"]) if "type" in record else ""
        arguments = (checked_text(id, "id"), source or "", json.dumps(record), kind, payload)
        answer = self._scripts.run("update", *arguments)
        if answer == b"NOT_FOUND" and self._other_programs.adopt():
            answer = self._scripts.run("update", *arguments)
        if answer == b"NOT_FOUND":
            raise UnknownMessage(f"There is no message {id} in {source or 'the queue'}")
        if answer == b"HELD":
            raise MessageInProgress(f"A consumer is processing the message {id}; it can be changed once it is requeued")
        if answer == b"UNDECODABLE":
            raise InvalidMessage("id", f"the id of a decodable message; {id} can only be deleted or archived")
        before, after = answer[:2], answer[2:]
        return Message.read(id.encode(), *before), Message.read(id.encode(), *after)

    def clear_in_batches(self, state: MessageState | None = None, *, keep: KeepMessages | None = None) -> Iterator[int]:
        """Delete all messages in `state`, or in all states, in batches; yield the number deleted by each.

        Messages enqueued after the beginning are kept. A message that changes its state meanwhile may be kept. With
        `keep`, it is called with what is deleted, for `restore`, except entries without data.
        """
        progress: bytes | str = ""
        kept = 0
        if keep is not None:
            _, progress = self._scripts.run("clear", self._options.levels, state or "", "begin", 0)
            earlier = Filter(until=self.counts().now)
            for one in MESSAGE_STATES if state is None else [state]:
                for deleted in self._clear_kept(one, earlier, keep):
                    kept += deleted
                    yield deleted
        while True:
            cleared, progress = self._scripts.run("clear", self._options.levels, state or "", progress, kept)
            yield cleared
            if not progress:
                return

    def _clear_kept(self, state: MessageState, where: Filter, keep: KeepMessages) -> Iterator[int]:
        batches = self._ids_in_processing(where) if state == "processing" else self.matching_ids(state, where)
        for ids in batches:
            outcomes = self.delete(ids, source=state, keep=keep)
            yield sum(outcome == "DELETED" for outcome in outcomes.values())


def checked_types(types: Sequence[str]) -> list[str]:
    """Return the types without duplicates. Raises `InvalidMessage`."""
    return list(dict.fromkeys(checked_text(type, "types") for type in types))


def checked_ids(ids: Sequence[str]) -> list[str]:
    """Return the ids without duplicates. Raises `InvalidMessage`."""
    if len(ids) > MAX_BULK_IDS:
        raise InvalidMessage("messageIds", f"a list of at most {MAX_BULK_IDS} ids")
    return list(dict.fromkeys(checked_text(id, "messageIds") for id in ids))
