"""Looking through a place: pages in order, sorted pages, counting, and the ids of what matches.

Guarantee: no call of the server takes long, however much there is: it looks at a slice, and the next call goes on. What
moves meanwhile is seen once in a slice, and no page has a message twice.
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
from services.message_queue.message_state import EVERYTHING, SORTABLE, Counted, Filter, Page, Place
from services.message_queue.messages import Message, is_id
from services.message_queue.scripts import Scripts

Order = Literal["newest", "oldest", "highest", "lowest"]
ORDERS: Mapping[tuple[Place, str | None], tuple[Order, Order]] = {
    ("main", "priority"): ("highest", "lowest"),
    ("processing", "deadline_at"): ("newest", "oldest"),
    ("dead", "failed_at"): ("newest", "oldest"),
    ("acknowledged", "acknowledged_at"): ("newest", "oldest"),
}
"""Orders that entries have of themselves, descending and ascending: nothing needs to be sorted."""
MOMENTS = ("created_at", "dequeued_at", "processing_started_at", "deadline_at", "failed_at", "acknowledged_at")
BEFORE_THE_ENTRY = ("created_at", "failed_at", "acknowledged_at")
"""Moments that never lie behind the one at which a message came to where it is."""
SEARCH_FOR = seconds(0.08)
"""Time after which a page that is filtered begins no further slice."""
SORTED = 5_000
"""Entries among which a page is sorted that have no such order."""
PAGE_BYTES = 16 * 1024 * 1024
READ = 200  # entries that one call is asked to read
_CURSOR = re.compile(r"\d{1,20}-\d{1,20}/\d{1,3}|\d{1,9}")
_SORTED_CURSOR = re.compile(r"(?P<start>\d{1,20}-\d{1,20}/\d{1,3}|\d{1,9})?(~(?P<shown>\d{1,9}))?")
"""Where the entries begin that are sorted, and how many of them earlier pages have shown."""


def has_order(place: Place, sort_by: str | None) -> bool:
    """Tell whether entries have this order of themselves, so that every page has a cursor and none is partial."""
    return sort_by is None or (place, sort_by) in ORDERS


class _Survey(NamedTuple):
    """What a slice has: of each match a value, which may be missing, and the stream and id of its entry."""

    found: list[tuple[Any, str, str]]
    cursor: str
    matched: int
    looked: int


class Looking:
    """Looks through the places of one queue. Any number of threads may use it. Every method raises QueueUnavailable."""

    def __init__(self, scripts: Scripts, *, levels: int) -> None:
        self._scripts, self._levels = scripts, levels

    def page(
        self,
        place: Place,
        *,
        limit: int,
        skip: int,
        cursor: str | None,
        wanted: Filter,
        sort_by: str | None,
        ascending: bool,
    ) -> Page:
        """Read a page. Raises `InvalidMessage`, which names the argument."""
        has_own_order = has_order(place, sort_by)
        if cursor is not None and not (_CURSOR if has_own_order else _SORTED_CURSOR).fullmatch(cursor):
            raise InvalidMessage("cursor", "the cursor of an earlier page")
        if sort_by is not None and sort_by not in SORTABLE:
            raise InvalidMessage("sortBy", f"one of {', '.join(SORTABLE)}")
        if sort_by is None or has_own_order:
            order = ORDERS.get((place, sort_by), ("newest", "oldest"))[ascending]
            return self._in_order(place, order, limit, skip, cursor, wanted)
        return self._sorted(place, sort_by, ascending, limit, skip, cursor, wanted)

    def count(self, place: Place, wanted: Filter, *, within: timedelta) -> Counted:
        """Count what matches; after `within` it begins no further slice."""
        ends = time.monotonic() + within.total_seconds()
        count, cursor = 0, ""
        while True:
            _, cursor, matched, _ = self._survey(place, "newest", cursor, wanted, "")
            count += matched
            if not cursor or time.monotonic() >= ends:
                return Counted(count=count, is_complete=not cursor)

    def dead_letters(self, wanted: Filter) -> Iterator[Sequence[str]]:
        """Yield the ids of those that match and are there by now, slice by slice, the oldest failure first.

        What another producer gave an id that nobody can name is left out.
        """
        rows, *_ = self._scripts.run("list", "dead", self._levels, "newest", "", EVERYTHING.to_json(), 0, 1)
        last = _place_of(rows[0][3].decode()) if rows else (0, 0)
        cursor = ""
        while True:
            found, cursor, _, _ = self._survey("dead", "oldest", cursor, wanted, "id")
            yield [id for id, _, sid in found if _place_of(sid) <= last and is_id(id)]
            if not cursor or _place_of(cursor.partition("/")[0]) >= last:
                return

    # In an order that entries have

    def _in_order(self, place: Place, order: Order, limit: int, skip: int, cursor: str | None, wanted: Filter) -> Page:
        ends = time.monotonic() + SEARCH_FOR.total_seconds()
        messages: dict[str, Message] = {}
        matched = size = 0
        at, is_over = cursor or "", False
        while not is_over and len(messages) < limit:
            rows, ended, found, _ = self._scripts.run(
                "list",
                place,
                self._levels,
                order,
                at,
                wanted.to_json(),
                max(skip - matched, 0),
                limit - len(messages),
            )
            messages |= _by_id(rows)
            matched += found
            size += sum(len(row[1]) for row in rows)
            at = ended.decode()
            is_over = not at or size >= PAGE_BYTES or (wanted != EVERYTHING and time.monotonic() >= ends)
        is_partial = bool(at) and len(messages) < limit
        return Page(messages=list(messages.values()), cursor=at or None, matched=matched, is_partial=is_partial)

    # Sorted

    def _sorted(
        self,
        place: Place,
        sort_by: str,
        ascending: bool,
        limit: int,
        skip: int,
        cursor: str | None,
        wanted: Filter,
    ) -> Page:
        """Sort what lies within a bound, from the end at which what comes first is more likely to be.

        A page that stops at its bytes has a cursor with the number of messages before the next page: like any page
        number, it shifts by the messages that come or go before it.
        """
        order: Order = "oldest" if ascending and sort_by in MOMENTS else "newest"
        is_bounded = sort_by in BEFORE_THE_ENTRY and not ascending and place != "processing" and wanted == EVERYTHING
        found: list[tuple[Any, str, str]] = []
        given = _SORTED_CURSOR.fullmatch(cursor or "")
        start, shown = (given["start"] or "", given["shown"]) if given else ("", None)
        skip += int(shown or 0)
        at, looked, is_settled = start, 0, False
        while True:
            some, at, _, of_slice = self._survey(place, order, at, wanted, sort_by)
            found += some
            looked += of_slice
            is_settled = is_bounded and _is_settled(found, skip + limit, at)
            if not at or looked >= SORTED or is_settled:
                break
        chosen = _ranked(found, ascending)[skip : skip + limit]
        messages, read = self._read(place, chosen)
        end = skip + read
        is_cut = read < len(chosen)
        goes_on = is_cut or (shown is not None and end < len(found))
        return Page(
            messages=messages,
            cursor=f"{start}~{end}" if goes_on else at or None,
            matched=len(found),
            is_partial=is_cut or (bool(at) and not is_settled),
            is_reached=goes_on or end >= len(found),
        )

    def _read(self, place: Place, found: Sequence[tuple[Any, str, str]]) -> tuple[list[Message], int]:
        """Return the messages of entries, as many as a page may have by their bytes, and how many entries that were."""
        messages: dict[str, Message] = {}
        read = size = 0
        while read < len(found) and size < PAGE_BYTES:
            entries = [word for _, stream, sid in found[read : read + READ] for word in (_bytes(stream), sid)]
            rows, looked = self._scripts.run("read", place, *entries)
            messages |= _by_id(rows)
            read += looked
            size += sum(len(row[1]) for row in rows)
        return list(messages.values()), read

    def _survey(self, place: Place, order: Order, cursor: str, wanted: Filter, field: str) -> _Survey:
        found, ended, matched, looked = self._scripts.run(
            "survey", place, self._levels, order, cursor, wanted.to_json(), field
        )
        listed = json.loads(found.decode("utf-8", "surrogateescape"))
        return _Survey([tuple(one) for one in listed], ended.decode(), matched, looked)


def _by_id(rows: Sequence[Any]) -> dict[str, Message]:
    return {_key(message): message for message in (Message.read(id, data, record) for id, data, record, _, _ in rows)}


def _key(message: Message) -> str:
    """Return what tells messages apart: without an id it is that of the entry, which another stream may have too."""
    return message.id if message.is_decodable else f"{message.id} {message.fields['_stream_name']}"


def _ranked(found: list[tuple[Any, str, str]], ascending: bool) -> list[tuple[Any, str, str]]:
    """Return what was found, sorted: those without the field last, equal ones in the order of their entries."""
    with_value = [one for one in found if one[0] is not None]
    without = [one for one in found if one[0] is None]
    return [*sorted(with_value, key=lambda one: one[0], reverse=not ascending), *without]


def _is_settled(found: list[tuple[Any, str, str]], count: int, cursor: str) -> bool:
    """Tell whether nothing behind the cursor can be among the `count` latest."""
    latest = nlargest(count, (value for value, _, _ in found if value is not None))
    reached = int(cursor.partition("-")[0]) / 1000 if cursor else 0.0
    return count < len(found) and len(latest) == count and latest[-1] > reached


def _place_of(sid: str) -> tuple[int, ...]:
    """Return the id of an entry as numbers, whose order is that of the stream."""
    return tuple(map(int, sid.split("-")))


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
