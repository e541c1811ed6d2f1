"""The documents of `DueDocuments` as people see them: due, in progress, stuck or failed; and retries by hand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from models import database, failed_item
from models.database import id_key, id_text
from models.due_documents import pages
from models.listing import Position, position
from queue_manager import leases
from queue_manager.core.errors import PermanentError
from queue_manager.items import Item, Listed, State
from queue_manager.leases import LeaseStatus
from services.due_documents.work import DocumentWork
from services.due_work import DueItem

LIST_PAGE_SIZE = 250
SHOWN_AS: dict[leases.LeaseState, State] = {"free": "due", "in-progress": "in-progress", "stuck": "stuck"}


@dataclass(frozen=True, kw_only=True)
class DocumentList(Listed):
    """The list of one system. Due items and those in progress come by their due time, failed ones by their failure."""

    work: DocumentWork

    def items(self, state: State, *, after: Position | None = None, newest_first: bool = True) -> Iterator[Item]:
        if state == "failed":
            yield from self._failed(after, newest_first)
            return
        until = self.work.clock() + self.work.ahead
        fields = (self.work.documents.due, *self.work.system.shown)
        found = self.work.documents.walk(until, fields, position=after, is_descending=newest_first)
        for page in pages(found, LIST_PAGE_SIZE):
            statuses = self.work.leases.statuses([self.work.due_of(one).lease for one in page])
            for document, status in zip(page, statuses, strict=True):
                item = self._item(document, status)
                if item is not None and item.state == state:
                    yield item

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

    def _failed(self, after: Position | None, newest_first: bool) -> Iterator[Item]:
        """Yield failures that are cooling, of documents that are still due as they were."""
        documents = self.work.documents
        found = failed_item.page(self.work.system.name, after=after, is_descending=newest_first)
        for page in pages(found, LIST_PAGE_SIZE):
            due = documents.among([one.id for one in page], self.work.clock(), self.work.system.shown)
            by_id = {id_key(one["_id"]): one for one in due}
            statuses = self.work.leases.statuses([leases.name(id_text(one.id), one.due_at) for one in page])
            for one, status in zip(page, statuses, strict=True):
                document = by_id.get(one.id)
                if document is None or documents.due_at(document) != one.due_at or status.state != "cooling":
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
                    next_at=one.retry_at,
                )

    def take(self, ids: Sequence[str]) -> list[DueItem]:
        """Take those of `ids` that are due and not in progress, whether or not they are cooling."""
        found = self.work.documents.among(list(self._keys(ids)), self.work.clock())
        due = sorted((self.work.due_of(one) for one in found), key=lambda one: one.due_at)
        return self.work.take_manually(due) if due else []

    def has(self, id: str) -> bool:
        return any(self.work.documents.get(key, ["_id"]) is not None for key in self._keys([id]))

    def document(self, id: str) -> Mapping[str, Any] | None:
        return next(iter(self.work.documents.get_many(list(self._keys([id])))), None)

    def _keys(self, ids: Sequence[str]) -> Iterator[Any]:
        for id in ids:
            with suppress(PermanentError):
                yield id_key(database.read_id(id, field="id"))
