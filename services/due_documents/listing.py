"""The documents of `DueDocuments` as people see them: due, in progress, stuck or failed; and manual retries.

Guarantee: a list of items that are in progress or stuck reads only the documents of leases, not all due documents.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Any, TypeVar

from models import database, failed_item, listing
from models.document_id import existing_ids, id_key, id_text, read_id
from models.listing import NoPosition, Position, position
from queue_manager import leases
from queue_manager.core.clock import minutes, unix_ms
from queue_manager.core.errors import PermanentError
from queue_manager.items import DueItem, Item, Listed, State
from queue_manager.leases.state import LeaseState, LeaseStatus
from services.due_documents.work import DocumentWork

T = TypeVar("T")

LIST_PAGE_SIZE = 250
LEASES_PER_READ = 1_000
MAX_LISTED_LEASES = 100_000  # of one state; with more, a list walks the due documents
SHOWN_AS: dict[LeaseState, State] = {"free": "due", "in-progress": "in-progress", "stuck": "stuck"}


@dataclass(frozen=True, kw_only=True)
class DocumentList(Listed):
    """The list of one system, ordered by due time; failed items are ordered by the time of the failure."""

    work: DocumentWork

    def items(self, state: State, *, after: Position | None = None, newest_first: bool = True) -> Iterator[Item]:
        found = self.read(state, after=after, newest_first=newest_first)
        yield from (one for one in found if isinstance(one, Item))

    def read(
        self, state: State, *, after: Position | None = None, newest_first: bool = True
    ) -> Iterator[Item | Position]:
        if state == "failed":
            yield from self._failed(after, newest_first)
            return
        for page in _pages(self._documents(state, after, newest_first), LIST_PAGE_SIZE):
            statuses = self.work.leases.statuses([self.work.due_of(one).lease for one in page])
            for document, status in zip(page, statuses, strict=True):
                item = self._item(document, status)
                if item is not None and item.state == state:
                    yield item
                else:
                    yield position(document, self.work.documents.order)

    def _documents(self, state: State, after: Position | None, newest_first: bool) -> Iterator[database.Document]:
        """Return the documents that may be in a state, in the order of the list."""
        until = self.work.clock()
        if state == "in-progress" or state == "stuck":
            until += self.work.ahead
            names = self.work.leases.candidates(state, limit=MAX_LISTED_LEASES)
            if names is not None:
                return self._leased(names, until, after, newest_first)
        return self.work.documents.walk(until, self._fields, position=after, is_descending=newest_first)

    def _leased(
        self, names: Iterable[str], until: datetime, after: Position | None, newest_first: bool
    ) -> Iterator[database.Document]:
        """Yield the documents of leases, by their due time and id as `DueCollection.walk` does."""
        by_time: dict[int, list[str]] = defaultdict(list)
        for name in names:
            if (at := leases.due_ms(name)) is not None:
                by_time[at].append(name)
        if after is not None:
            if len(after) != len(self.work.documents.order) or not isinstance(after[0], datetime):
                raise NoPosition(f"{after!r:.100} is not a position in a list by due time and id")
            last = unix_ms(after[0])
            yield from self._by_id(by_time.pop(last, []), until, newest_first, after=after[1:])
            by_time = {at: some for at, some in by_time.items() if (at < last if newest_first else at > last)}
        for batch in _batches(by_time, newest_first):
            found = self._by_id(batch, until, newest_first)
            if len(batch) > LEASES_PER_READ:  # all have one due time, so they are in order
                yield from found
            else:
                yield from sorted(found, key=self.work.documents.due_at, reverse=newest_first)

    def _by_id(
        self, names: Sequence[str], until: datetime, newest_first: bool, *, after: Position | None = None
    ) -> Iterator[database.Document]:
        """Yield the documents of leases that are still due at the same time, in the server's order of ids.

        The server reads them in the order of its index on `_id`: only the server can order ids of several types.
        """
        documents, wanted = self.work.documents, set(names)
        ids = list(self._keys([leases.id_of(name) for name in names]))
        if not ids:
            return
        found = listing.walk(
            documents.collection(),
            {**documents.is_due(until), "_id": {"$in": ids}},
            index="_id_",
            order=("_id",),
            fields=self._fields,
            after=after,
            is_descending=newest_first,
        )
        yield from (one for one in found if self.work.due_of(one).lease in wanted)

    @property
    def _fields(self) -> Sequence[str]:
        return (self.work.documents.due, *self.work.system.shown)

    def _item(self, document: database.Document, status: LeaseStatus) -> Item | None:
        due_at = self.work.documents.due_at(document)
        state = SHOWN_AS.get(status.state)
        if state is None or (state == "due" and due_at > self.work.clock()):
            return None
        return Item(
            id=id_text(document["_id"]),
            title=self.work.system.title_of(document),
            state=state,
            position=position(document, self.work.documents.order),
            due_at=due_at,
            since=due_at if state == "due" else None,
            next_at=status.ends_at,
        )

    def _failed(self, after: Position | None, newest_first: bool) -> Iterator[Item | Position]:
        """Yield failures that no scan has taken since, of documents that are still due at the same time."""
        documents, now = self.work.documents, self.work.clock()
        since = now - self.work.leases.max_time_failed() - minutes(1)  # recorded before the cool-down began
        found = failed_item.page(self.work.system.name, since=since, after=after, is_descending=newest_first)
        for page in _pages(found, LIST_PAGE_SIZE):
            due = documents.due_with_ids([one.id for one in page], now, self.work.system.shown)
            by_id = {id_key(one["_id"]): one for one in due}
            statuses = self.work.leases.statuses([leases.name(id_text(one.id), one.due_at) for one in page])
            for one, status in zip(page, statuses, strict=True):
                document = by_id.get(one.id)
                if document is None or documents.due_at(document) != one.due_at or status.state != "cooling":
                    yield one.position
                    continue
                yield Item(
                    id=id_text(one.id),
                    title=self.work.system.title_of(document),
                    state="failed",
                    position=one.position,
                    due_at=one.due_at,
                    since=one.failed_at,
                    reason=one.error,
                    attempts=one.failures,
                    next_at=one.retry_at if one.retry_at > now else None,
                )

    def take(self, ids: Sequence[str]) -> list[DueItem]:
        """Take those of `ids` that are due and not in progress, even if they cool down."""
        found = self.work.documents.due_with_ids(self._existing(ids), self.work.clock())
        due = sorted((self.work.due_of(one) for one in found), key=lambda one: one.due_at)
        return self.work.take_manually(due) if due else []

    def has(self, id: str) -> bool:
        return bool(self._existing([id]))

    def document(self, id: str) -> Mapping[str, Any] | None:
        return next(iter(self.work.documents.get_many(self._existing([id]))), None)

    def _existing(self, ids: Sequence[str]) -> list[Any]:
        return existing_ids(ids, lambda keys: [one["_id"] for one in self.work.documents.get_many(keys, ["_id"])])

    def _keys(self, ids: Sequence[str]) -> Iterator[Any]:
        for id in ids:
            with suppress(PermanentError):
                yield id_key(read_id(id, field="id"))


def _batches(by_time: Mapping[int, Sequence[str]], newest_first: bool) -> Iterator[list[str]]:
    """Yield names by time: all of one time together, and of several times at most `LEASES_PER_READ`."""
    batch: list[str] = []
    for at in sorted(by_time, reverse=newest_first):
        if batch and len(batch) + len(by_time[at]) > LEASES_PER_READ:
            yield batch
            batch = []
        batch = [*batch, *by_time[at]]
    if batch:
        yield batch


def _pages(found: Iterator[T], size: int) -> Iterator[list[T]]:
    while page := list(islice(found, size)):
        yield page
