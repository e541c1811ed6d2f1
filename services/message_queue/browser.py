"""Listing and counting of messages: pages in natural order, sorted pages, and ids of matching dead letters.

Guarantee: each script call scans a bounded slice, and the next call continues from there. A slice is a consistent
snapshot, and no page contains a message twice.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from heapq import nlargest
from typing import Any, Literal, NamedTuple

from queue_manager.core.clock import seconds
from services.message_queue.errors import InvalidMessage
from services.message_queue.message_state import MATCH_ALL, SORTABLE, Filter, MatchCount, MessagePage, MessageState
from services.message_queue.messages import Message, is_id
from services.message_queue.scripts import Scripts

Order = Literal["newest", "oldest", "highest", "lowest"]
NATURAL_ORDERS: Mapping[tuple[MessageState, str | None], tuple[Order, Order]] = {
    ("main", "priority"): ("highest", "lowest"),
    ("processing", "deadline_at"): ("newest", "oldest"),
    ("dead", "failed_at"): ("newest", "oldest"),
    ("acknowledged", "acknowledged_at"): ("newest", "oldest"),
}
"""Orders, descending and ascending, in which Redis keeps the entries, so that no sort is needed."""
TIMESTAMP_FIELDS = ("created_at", "dequeued_at", "processing_started_at", "deadline_at", "failed_at", "acknowledged_at")
TIMESTAMPS_UP_TO_ENTRY = ("created_at", "failed_at", "acknowledged_at")
"""Timestamps that are never later than the time at which the message entered its current stream."""
SEARCH_BUDGET = seconds(0.08)
"""Time after which a filtered search starts no further slice."""
MAX_SORTED_ENTRIES = 5_000
"""Maximum number of entries that are sorted when there is no natural order."""
MAX_PAGE_BYTES = 16 * 1024 * 1024
READ_BATCH_SIZE = 200  # entries per script call
_CURSOR = re.compile(r"\d{1,20}-\d{1,20}/\d{1,3}|\d{1,9}")
_SORTED_CURSOR = re.compile(r"(?P<start>\d{1,20}-\d{1,20}/\d{1,3}|\d{1,9})?(~(?P<shown>\d{1,9}))?")
"""The first entry that is sorted, and the number of sorted entries that earlier pages returned."""


def has_natural_order(state: MessageState, sort_by: str | None) -> bool:
    """Return True if Redis keeps the entries in this order; then every page has a cursor and none is partial."""
    return sort_by is None or (state, sort_by) in NATURAL_ORDERS


class _Survey(NamedTuple):
    """Result of one slice. `found` has the field value (or None), the stream and the entry id of each match."""

    found: list[tuple[Any, str, str]]
    cursor: str
    matched: int
    scanned: int


class MessageBrowser:
    """Lists and counts the messages of one queue. Thread-safe. Every method raises QueueUnavailable."""

    def __init__(self, scripts: Scripts, *, levels: int) -> None:
        self._scripts, self._levels = scripts, levels

    def page(
        self,
        state: MessageState,
        *,
        limit: int,
        skip: int,
        cursor: str | None,
        where: Filter,
        sort_by: str | None,
        ascending: bool,
    ) -> MessagePage:
        """Return a page. Raises `InvalidMessage`, which names the argument."""
        is_natural = has_natural_order(state, sort_by)
        if cursor is not None and not (_CURSOR if is_natural else _SORTED_CURSOR).fullmatch(cursor):
            raise InvalidMessage("cursor", "the cursor of an earlier page")
        if sort_by is not None and sort_by not in SORTABLE:
            raise InvalidMessage("sortBy", f"one of {', '.join(SORTABLE)}")
        if sort_by is None or is_natural:
            order = NATURAL_ORDERS.get((state, sort_by), ("newest", "oldest"))[ascending]
            return self._in_order(state, order, limit, skip, cursor, where)
        return self._sorted(state, sort_by, ascending, limit, skip, cursor, where)

    def count(self, state: MessageState, where: Filter, *, within: timedelta) -> MatchCount:
        """Count the matches; start no further slice after `within`."""
        ends = time.monotonic() + within.total_seconds()
        count, cursor = 0, ""
        while True:
            _, cursor, matched, _ = self._survey(state, "newest", cursor, where, "")
            count += matched
            if not cursor or time.monotonic() >= ends:
                return MatchCount(count=count, is_complete=not cursor)

    def dead_letters(self, where: Filter) -> Iterator[Sequence[str]]:
        """Yield the ids of the dead letters that match now, slice by slice, oldest failure first.

        Dead letters of other producers whose ids are not valid are omitted.
        """
        rows, *_ = self._scripts.run("list", "dead", self._levels, "newest", "", MATCH_ALL.to_json(), 0, 1)
        last = _parse_entry_id(rows[0][3].decode()) if rows else (0, 0)
        cursor = ""
        while True:
            found, cursor, _, _ = self._survey("dead", "oldest", cursor, where, "id")
            yield [id for id, _, sid in found if _parse_entry_id(sid) <= last and is_id(id)]
            if not cursor or _parse_entry_id(cursor.partition("/")[0]) >= last:
                return

    # Natural order

    def _in_order(
        self, state: MessageState, order: Order, limit: int, skip: int, cursor: str | None, where: Filter
    ) -> MessagePage:
        ends = time.monotonic() + SEARCH_BUDGET.total_seconds()
        messages: dict[str, Message] = {}
        matched = size = 0
        at, is_over = cursor or "", False
        while not is_over and len(messages) < limit:
            rows, ended, found, _ = self._scripts.run(
                "list",
                state,
                self._levels,
                order,
                at,
                where.to_json(),
                max(skip - matched, 0),
                limit - len(messages),
            )
            messages |= _by_id(rows)
            matched += found
            size += sum(len(row[1]) for row in rows)
            at = ended.decode()
            is_over = not at or size >= MAX_PAGE_BYTES or (where != MATCH_ALL and time.monotonic() >= ends)
        is_partial = bool(at) and len(messages) < limit
        return MessagePage(messages=list(messages.values()), cursor=at or None, matched=matched, is_partial=is_partial)

    # Other orders

    def _sorted(
        self,
        state: MessageState,
        sort_by: str,
        ascending: bool,
        limit: int,
        skip: int,
        cursor: str | None,
        where: Filter,
    ) -> MessagePage:
        """Sort up to `MAX_SORTED_ENTRIES`, scanning from the end where the first results are more likely to be.

        A page that reaches `MAX_PAGE_BYTES` has a cursor with the offset of the next page. Like any offset, it shifts
        when messages before it are added or removed.
        """
        order: Order = "oldest" if ascending and sort_by in TIMESTAMP_FIELDS else "newest"
        is_bounded = (
            sort_by in TIMESTAMPS_UP_TO_ENTRY and not ascending and state != "processing" and where == MATCH_ALL
        )
        found: list[tuple[Any, str, str]] = []
        given = _SORTED_CURSOR.fullmatch(cursor or "")
        start, shown = (given["start"] or "", given["shown"]) if given else ("", None)
        skip += int(shown or 0)
        at, scanned, is_settled = start, 0, False
        while True:
            some, at, _, of_slice = self._survey(state, order, at, where, sort_by)
            found += some
            scanned += of_slice
            is_settled = is_bounded and _is_settled(found, skip + limit, at)
            if not at or scanned >= MAX_SORTED_ENTRIES or is_settled:
                break
        chosen = _ranked(found, ascending)[skip : skip + limit]
        messages, read = self._read(state, chosen)
        end = skip + read
        is_truncated = read < len(chosen)
        has_next_page = is_truncated or (shown is not None and end < len(found))
        return MessagePage(
            messages=messages,
            cursor=f"{start}~{end}" if has_next_page else at or None,
            matched=len(found),
            is_partial=is_truncated or (bool(at) and not is_settled),
            is_gapless=has_next_page or end >= len(found),
        )

    def _read(self, state: MessageState, found: Sequence[tuple[Any, str, str]]) -> tuple[list[Message], int]:
        """Return the messages of entries up to `MAX_PAGE_BYTES`, and the number of entries read."""
        messages: dict[str, Message] = {}
        read = size = 0
        while read < len(found) and size < MAX_PAGE_BYTES:
            entries = [
                word for _, stream, sid in found[read : read + READ_BATCH_SIZE] for word in (_bytes(stream), sid)
            ]
            rows, scanned = self._scripts.run("read", state, *entries)
            messages |= _by_id(rows)
            read += scanned
            size += sum(len(row[1]) for row in rows)
        return list(messages.values()), read

    def _survey(self, state: MessageState, order: Order, cursor: str, where: Filter, field: str) -> _Survey:
        found, ended, matched, scanned = self._scripts.run(
            "survey", state, self._levels, order, cursor, where.to_json(), field
        )
        listed = json.loads(found.decode("utf-8", "surrogateescape"))
        return _Survey([tuple(one) for one in listed], ended.decode(), matched, scanned)


def _by_id(rows: Sequence[Any]) -> dict[str, Message]:
    return {_key(message): message for message in (Message.read(id, data, record) for id, data, record, _, _ in rows)}


def _key(message: Message) -> str:
    """Return a unique key. A message without an id is known by its entry id, which is unique only per stream."""
    return message.id if message.is_decodable else f"{message.id} {message.fields['_stream_name']}"


def _ranked(found: list[tuple[Any, str, str]], ascending: bool) -> list[tuple[Any, str, str]]:
    """Return the matches sorted stably by value; those without a value come last."""
    with_value = [one for one in found if one[0] is not None]
    without = [one for one in found if one[0] is None]
    return [*sorted(with_value, key=lambda one: one[0], reverse=not ascending), *without]


def _is_settled(found: list[tuple[Any, str, str]], count: int, cursor: str) -> bool:
    """Return True if no entry after the cursor can be among the `count` latest."""
    latest = nlargest(count, (value for value, _, _ in found if value is not None))
    reached = int(cursor.partition("-")[0]) / 1000 if cursor else 0.0
    return count < len(found) and len(latest) == count and latest[-1] > reached


def _parse_entry_id(sid: str) -> tuple[int, ...]:
    """Return a stream entry id as a tuple that sorts in stream order."""
    return tuple(map(int, sid.split("-")))


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
