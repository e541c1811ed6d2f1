"""Reading the message queue for operators: count, list, filter and find messages.

Guarantee: each script call scans a bounded slice, and the next call continues from there. A slice is a consistent
snapshot, and no page contains a message twice.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, get_args

from queue_manager.core.clock import from_unix_ms, seconds
from queue_manager.core.json_types import Count
from queue_manager.pauses import PauseState
from services.message_queue.errors import InvalidMessage
from services.message_queue.fields import checked_text, is_id
from services.message_queue.messages import Message, QueueOptions
from services.message_queue.other_programs import OtherPrograms
from services.message_queue.scripts import BULK_BATCH_SIZE, Scripts, batches, translate_errors

MessageState = Literal["main", "processing", "dead", "acknowledged", "archived"]
MESSAGE_STATES: tuple[MessageState, ...] = get_args(MessageState)
KeptState = Literal["main", "dead", "acknowledged", "archived"]
"""A state whose messages no consumer holds."""
KEPT_STATES: tuple[KeptState, ...] = get_args(KeptState)

SORT_FIELDS_BY_STATE: Mapping[MessageState, tuple[str, ...]] = {
    "main": ("created_at", "priority"),
    "processing": ("deadline_at",),
    "dead": ("failed_at",),
    "acknowledged": ("acknowledged_at",),
    "archived": ("archived_at",),
}
"""Fields in whose order Redis keeps the messages of a state. A requeued message counts as created at its requeue."""
MAX_MESSAGES_PER_PAGE = 1_000
MAX_PAGE_BYTES = 16 * 1024 * 1024
MAX_BULK_IDS = 1_000
"""Maximum number of messages that one call moves, deletes or replays."""
COUNT_BUDGET = seconds(2)
LIST_SEARCH_BUDGET = seconds(0.08)
"""Time after which a filtered list starts no further slice."""
LIST_SKIP_BUDGET = seconds(2)
"""Time after which a list without a filter skips no further slice; about 100,000 messages."""
ALL_MATCHES = 2**53
_CURSOR = re.compile(r"\d{1,20}-\d{1,20}/\d{1,3}")


@dataclass(frozen=True, kw_only=True)
class Filter:
    """Conditions on messages; `None` matches everything. `since` and `until` are Unix seconds of `created_at`."""

    type: str | None = None
    priority: int | None = None
    attempts: int | None = None
    since: float | None = None
    until: float | None = None
    search: str | None = None
    """Substring of the payload, id, type or last error; ASCII letters match case-insensitively. The payload may escape
    characters, or separate members, in another way: see `json_spellings`."""

    def to_json(self) -> str:
        """Return the JSON form that the scripts expect. Raises `InvalidMessage` for unpaired surrogates."""
        conditions = vars(self) | {"search": json_spellings(self.search) if self.search else None}
        text = json.dumps({name: value for name, value in conditions.items() if value is not None}, ensure_ascii=False)
        try:
            text.encode()
        except UnicodeEncodeError:
            raise InvalidMessage("search", "a string without unpaired surrogates") from None
        return text


MATCH_ALL = Filter()


def json_spellings(text: str) -> list[str]:
    """Return `text` as it may be spelled in the JSON of a payload: as it is, escaped, without and with spaces.

    Python escapes characters beyond ASCII and puts spaces between members. PHP also escapes slashes. JavaScript does
    none of this. All escape quotation marks and backslashes, unless `text` is itself a part of the JSON.
    """
    texts = (text, json.dumps(text, ensure_ascii=False)[1:-1])
    ascii_only = [re.sub(r"[^\x00-\x7f]+", lambda found: json.dumps(found[0])[1:-1], one) for one in texts]
    escaped = (*texts, *ascii_only, *(one.replace("/", "\\/") for one in ascii_only))
    compact = (re.sub(r'(?<=":) +|(?<=,) +(?=")', "", one) for one in escaped)
    spaced = (re.sub(r'(?<=":)(?! )|(?<=,)(?=")', " ", one) for one in escaped)
    return [*dict.fromkeys((*escaped, *compact, *spaced))]


@dataclass(frozen=True)
class QueueCounts:
    """The number of messages in each state at `now` (Unix seconds, server clock); `counts.lua` returns this order."""

    now: float
    first_deadline_at: float | None
    waiting: list[int]
    """By priority, starting at 0."""
    processing: int
    dead: int
    acknowledged: int
    archived: int
    total_acknowledged: int
    overdue: int
    total_requeued: int
    """By sweeps, like `total_dead_lettered`."""
    total_dead_lettered: int

    @property
    def main(self) -> int:
        return sum(self.waiting)

    def of(self, state: MessageState) -> int:
        return int(getattr(self, state))


@dataclass(frozen=True, kw_only=True)
class MessageListing:
    """A page of messages.

    `cursor` is where the next page begins, `None` on the last page. `matched` is the number of matches found so far,
    `searched` the number of messages read for them. `is_partial` is True if the search, or skipping, stopped at its
    limit before the end.
    """

    messages: list[Message]
    cursor: str | None
    matched: int
    searched: int
    is_partial: bool


@dataclass(frozen=True, kw_only=True)
class DeadMessage:
    """Why a message is a dead letter; `failed_at` in Unix seconds."""

    id: str
    type: str
    error: str
    failed_at: float


class MessageBrowser:
    """The messages of one queue. Thread-safe. Every method raises QueueUnavailable."""

    def __init__(self, scripts: Scripts, options: QueueOptions) -> None:
        self._scripts, self._options = scripts, options
        self._other_programs = OtherPrograms(scripts, options)

    def counts(self) -> QueueCounts:
        """Count the messages by state."""
        now, first, *counts = self._scripts.run("counts", self._options.levels)
        return QueueCounts(now / 1000, first / 1000 if first else None, *counts)

    def count(self, state: MessageState, where: Filter = MATCH_ALL, *, within: timedelta = COUNT_BUDGET) -> Count:
        """Count the messages in `state` that match; start no further slice after `within`."""
        if where == MATCH_ALL:
            return Count(count=self.counts().of(state), is_complete=True)
        ends = time.monotonic() + within.total_seconds()
        count, is_complete = 0, False
        for _, cursor, matched, _ in self._slices(state, "newest", where, "ids", skip=ALL_MATCHES):
            count, is_complete = count + matched, not cursor
            if time.monotonic() >= ends:
                break
        return Count(count=count, is_complete=is_complete)

    def _slices(
        self,
        state: MessageState,
        order: str,
        where: Filter,
        rows: str,
        *,
        cursor: bytes = b"",
        skip: int = 0,
        limit: int = ALL_MATCHES,
    ) -> Iterator[tuple[Any, bytes, int, int]]:
        """Yield what `list.lua` returns of each slice, up to `limit` rows or the end of the list."""
        conditions = where.to_json()
        while limit > 0:
            arguments = (order, cursor, conditions, rows, skip, limit)
            found, cursor, matched, read = self._scripts.run("list", self._options.levels, state, *arguments)
            yield found, cursor, matched, read
            if not cursor:
                return
            skip, limit = max(skip - matched, 0), limit - len(found)

    def pauses(self) -> Mapping[str, PauseState]:
        """Return the paused types, in alphabetical order, with since when, by whom and why."""
        with translate_errors():
            stored: Any = self._scripts.client.hgetall(f"{self._scripts.queue}:pauses")
        return {_decoded(type): _pause(made) for type, made in sorted(stored.items()) if made}

    def list(
        self,
        state: MessageState,
        *,
        limit: int = 50,
        skip: int = 0,
        cursor: str | None = None,
        where: Filter = MATCH_ALL,
        sort_by: str | None = None,
        ascending: bool = False,
        max_bytes: int = MAX_PAGE_BYTES,
    ) -> MessageListing:
        """Return a page of messages, newest first unless sorted otherwise; in `processing` by deadline, latest first.

        A state is sorted only by its `SORT_FIELDS_BY_STATE`. A filtered search stops after about 80 ms, and without a
        filter skipping stops after about 2 s; at least one slice is read. A page ends at the latest 2 MiB after it has
        `max_bytes`.

        Raises `InvalidMessage`, which names the argument.
        """
        if cursor is not None and not _CURSOR.fullmatch(cursor):
            raise InvalidMessage("cursor", "the cursor of an earlier page")
        order = _order(state, sort_by, ascending)
        is_filtered = where != MATCH_ALL
        ends = time.monotonic() + (LIST_SEARCH_BUDGET if is_filtered else LIST_SKIP_BUDGET).total_seconds()
        messages: dict[str, Message] = {}
        matched = searched = size = 0
        at, is_partial = (cursor or "").encode(), False
        slices = self._slices(state, order, where, "messages", cursor=at, skip=skip, limit=limit)
        for rows, at, found, read in slices:
            listed = (Message.read(id, data, record) for id, data, record, _ in rows)
            messages |= {_key(message): message for message in listed}
            matched, searched = matched + found, searched + read
            size += sum(len(data) for _, data, *_ in rows)
            is_searching = is_filtered or matched < skip
            if size >= max_bytes or (is_searching and time.monotonic() >= ends):
                is_partial = at != b"" and len(messages) < limit
                break
        return MessageListing(
            messages=[*messages.values()],
            cursor=at.decode() or None,
            matched=matched,
            searched=searched,
            is_partial=is_partial,
        )

    def export(self, state: MessageState, where: Filter = MATCH_ALL) -> Iterator[Sequence[Message]]:
        """Yield pages of the messages in `state` that match, oldest first; in `processing` latest deadline first.

        Messages that arrive after the first page are omitted; messages that change their state meanwhile may be.
        """
        end = self.counts().now * 1000
        cursor, is_last = None, False
        while not is_last:
            page = self.list(state, limit=BULK_BATCH_SIZE, cursor=cursor, where=where, ascending=state != "processing")
            exported = page.messages
            if state != "processing":
                exported = [one for one in exported if _parse_entry_id(one.fields["_stream_id"].encode())[0] <= end]
            yield exported
            cursor, is_last = page.cursor, page.cursor is None or len(exported) < len(page.messages)

    def first_ids(self, state: MessageState, limit: int, *, ascending: bool = False) -> Sequence[str]:
        """Return the ids of the first messages of a list without a filter, without reading the messages."""
        slices = self._slices(state, _order(state, None, ascending), MATCH_ALL, "ids", limit=limit)
        return [_decoded(id) for found, *_ in slices for id, _ in found]

    def matching_ids(self, state: KeptState, where: Filter) -> Iterator[Sequence[str]]:
        """Yield the ids of the messages in `state` that match now, oldest first, at most `BULK_BATCH_SIZE` at a time.

        Messages of other producers whose ids are not valid are omitted.
        """
        newest, *_ = next(self._slices(state, "newest", MATCH_ALL, "ids", limit=1))
        last = _parse_entry_id(newest[0][1]) if newest else (0, 0)
        for found, cursor, *_ in self._slices(state, "oldest", where, "ids"):
            matching = (_decoded(id) for id, sid in found if _parse_entry_id(sid) <= last)
            yield from batches([id for id in matching if is_id(id)])
            if cursor and _parse_entry_id(cursor.partition(b"/")[0]) > last:
                return

    def _ids_in_processing(self, where: Filter) -> Iterator[Sequence[str]]:
        """Yield the ids of the messages in processing that match, at most `BULK_BATCH_SIZE` at a time.

        All are read before the first is yielded, the earliest deadline first: one that is touched meanwhile moves on.
        """
        slices = self._slices("processing", "oldest", where, "ids")
        ids = dict.fromkeys(_decoded(id) for found, *_ in slices for id, _ in found)
        yield from batches([id for id in ids if is_id(id)])

    def failures(self) -> Iterator[DeadMessage]:
        """Yield why the dead letters failed, newest first; read slice by slice, without the messages."""
        for found, *_ in self._slices("dead", "newest", MATCH_ALL, "failures"):
            for id, type, error, failed_at in found:
                yield DeadMessage(
                    id=_decoded(id), type=_decoded(type), error=_decoded(error), failed_at=float(failed_at)
                )

    def find(self, id: str) -> Message | None:
        """Return the message in any state, or `None`."""
        found = self.find_with_state(id)
        return found and found[1]

    def find_with_state(self, id: str) -> tuple[MessageState, Message] | None:
        """Return the state and content of the message, or `None`."""
        found = next(self.locate([checked_text(id, "id")]), None)
        if found is None and self._other_programs.adopt():
            found = next(self.locate([id]), None)
        return found

    def locate(self, ids: Sequence[str]) -> Iterator[tuple[MessageState, Message]]:
        """Yield the state and content of each message that exists; read in batches."""
        for rows in self._scripts.run_for_each("locate", (), [(id,) for id in ids]):
            for id, data, record, state, _ in filter(None, rows):
                yield state.decode(), Message.read(id, data, record)


def _pause(stored: bytes) -> PauseState:
    made = json.loads(stored)
    return PauseState(at=from_unix_ms(made["at"]), by=made["by"], reason=made["reason"])


def _order(state: MessageState, sort_by: str | None, ascending: bool) -> str:
    """Return the order of `list.lua`. Raises `InvalidMessage` if Redis does not keep the messages in it."""
    if sort_by is not None and sort_by not in SORT_FIELDS_BY_STATE[state]:
        raise InvalidMessage("sortBy", f"{' or '.join(SORT_FIELDS_BY_STATE[state])} in {state}")
    if sort_by == "priority":
        return "lowest" if ascending else "highest"
    return "oldest" if ascending else "newest"


def _key(message: Message) -> str:
    """Return a unique key. A message without an id is known by its entry id, which is unique only per stream."""
    return message.id if message.is_decodable else f"{message.id} {message.fields['_stream_name']}"


def _parse_entry_id(sid: bytes) -> tuple[int, ...]:
    """Return a stream entry id as a tuple that sorts in stream order."""
    return tuple(map(int, sid.split(b"-")))


def _decoded(text: bytes) -> str:
    """Return a text of any program. Bytes that are not UTF-8 are kept as unpaired surrogates."""
    return text.decode("utf-8", "surrogateescape")
