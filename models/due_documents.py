"""Documents of any collection that fall due at a date: found by one index, changed in one transaction.

A document is due when the date at `due` has come and `where` holds. Guarantee: a change applies to documents that are
due at the moment of the write and have not changed since they were read; of two concurrent writers, one wins.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from hashlib import sha256
from typing import Any

import bson
from bson import MinKey
from pymongo import IndexModel, UpdateMany
from pymongo.client_session import ClientSession
from pymongo.collection import Collection
from pymongo.errors import DocumentTooLarge, OperationFailure

from models import listing, outbox
from models.database import Document, client, collection, first_reply, projection, update_all, value_at
from models.document_id import id_key
from models.listing import Order, Position
from models.transaction import commands, transact
from queue_manager.core.clock import EPOCH, MILLISECOND
from queue_manager.core.errors import reason
from queue_manager.core.wording import many

# MongoDB uses a partial index only for a query that repeats the condition of the index word for word. Dates before the
# epoch were written by mistake; the driver cannot even read all of them.
A_DATE: Document = {"$type": "date", "$gte": EPOCH}
TOO_LARGE = 10_334  # MongoDB's code for an update of more than 16 MB
_INDEX_NAME = re.compile(r"qm_due_\w+_[0-9a-f]{8}")
MAX_COUNT = 100_000  # counting stops here: this count means that many or more

Update = Document | list[Document]


@dataclass(frozen=True, kw_only=True)
class UpdateGroup:
    """One update, and the documents that get it."""

    documents: list[Document]
    """The documents before the update."""
    update: Update
    is_sure_to_end: bool
    """Whether the update alone ensures that no document stays due."""


class StillDue(Exception):
    """An update left documents due at the same time."""

    def __init__(self, ids: Sequence[Any]) -> None:
        self.ids = ids
        super().__init__(f"{many(len(ids), 'document')} still due after the update")


@dataclass(frozen=True, kw_only=True)
class DueCollection:
    """A collection whose documents fall due.

    Args:
        name: of the collection.
        due: path of the date.
        where: condition on a document besides its date, one that a partial index may have.
    """

    name: str
    due: str
    where: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def index(self) -> str:
        """The name of the index, which ends with a digest of its definition.

        MongoDB obeys a hint even if the partial index lacks documents that match, so a changed `where` must never meet
        the index of the old one. Systems of one definition share one index, as MongoDB wants it.
        """
        definition = bson.encode({"keys": self.order, "where": self._indexed})
        return f"qm_due_{re.sub('[^0-9A-Za-z]', '_', self.due)}_{sha256(definition).hexdigest()[:8]}"

    def collection(self) -> Collection[Document]:
        return collection(self.name)

    @property
    def order(self) -> Order:
        return (self.due, "_id")

    def indexes(self) -> list[IndexModel]:
        return [IndexModel(self.order, name=self.index, partialFilterExpression=self._indexed)]

    # Reading

    def find(
        self,
        until: datetime,
        *,
        fields: Sequence[str] = (),
        limit: int = 0,
        batch: int = listing.READ_BATCH_SIZE,
    ) -> Iterator[Document]:
        """Yield documents due by `until`, in the order of the index, oldest first: id, date and `fields`.

        The server reads `batch` of them at a time.
        """
        # Bounds instead of a sort: an index that ever held an array serves neither a range with two ends nor a sort.
        bounds = {"min": self._bound(EPOCH), "max": self._bound(until + MILLISECOND)}
        where, wanted = self.is_due(until), projection((self.due, *fields))
        return self.collection().find(where, wanted, hint=self.index, limit=limit, batch_size=batch, **bounds)

    def _bound(self, at: datetime) -> Document:
        return {self.due: at, "_id": MinKey()}

    def walk(
        self, until: datetime, fields: Sequence[str], *, position: Position | None, is_descending: bool
    ) -> Iterator[Document]:
        """Yield documents due by `until` after a position, in the order of their dates."""
        return listing.walk(
            self.collection(),
            self.is_due(until),
            index=self.index,
            order=self.order,
            fields=fields or [self.due],
            after=position,
            is_descending=is_descending,
        )

    def due_with_ids(self, ids: Sequence[Any], until: datetime, fields: Sequence[str] = ()) -> list[Document]:
        """Return the documents of `ids` that are due by then."""
        where = {**self.is_due(until), "_id": {"$in": list(ids)}}
        return list(self.collection().find(where, projection((self.due, *fields)), hint="_id_"))

    def count(self, until: datetime, *, limit: int = MAX_COUNT) -> int:
        """Count due documents, up to `limit`."""
        return self.collection().count_documents(self.is_due(until), hint=self.index, limit=limit)

    def stored_indexes(self) -> list[str]:
        """Return the names of the existing indexes of this and of other definitions, also of earlier ones."""
        return [name for name in self.collection().index_information() if _INDEX_NAME.fullmatch(name)]

    def has_dates(self) -> bool:
        """Return True if any document has a date at the path. Without the index it may read the whole collection."""
        return self.collection().find_one({self.due: A_DATE}, {"_id": 1}) is not None

    def never_due(self, *, limit: int) -> list[Any]:
        """Return ids of documents that match `where`, with a value at the path that is not a date since 1970.

        Reads the whole collection unless `where` has an index of its own.
        """
        where = {"$and": [dict(self.where), {self.due: {"$ne": None, "$not": A_DATE}}]}
        return [one["_id"] for one in self.collection().find(where, {"_id": 1}, limit=limit)]

    def count_unindexed(self, until: datetime) -> int:
        """Count due documents, up to `MAX_COUNT`, by reading the whole collection."""
        return self.collection().count_documents(self.is_due(until), limit=MAX_COUNT)

    def sample(self, until: datetime, fields: Sequence[str] | None, *, limit: int) -> list[Document]:
        """Return some due documents with or without the index."""
        wanted = None if fields is None else projection((self.due, *fields))
        return list(self.collection().find(self.is_due(until), wanted, limit=limit))

    def get(self, id: Any) -> Document | None:
        return self.collection().find_one({"_id": id})

    def get_many(self, ids: Sequence[Any], fields: Sequence[str] | None = None) -> list[Document]:
        wanted = None if fields is None else projection(fields)
        found = self.collection().find({"_id": {"$in": list(ids)}}, wanted, hint="_id_", batch_size=len(ids) + 1)
        return list(found)

    def fits(self, id: Any) -> bool:
        """Return True if a document meets the condition `where`; its date is not checked."""
        return self.collection().find_one({**self.where, "_id": id}, {"_id": 1}, hint="_id_") is not None

    def due_at(self, document: Document) -> Any:
        return value_at(document, self.due)

    def is_due(self, until: datetime) -> Document:
        """Return the condition that a document is due by then."""
        no_arrays = [{path: {"$type": "array"}} for path in self._paths]
        return {**self._indexed, self.due: {**A_DATE, "$lte": until}, "$nor": no_arrays}

    @property
    def _indexed(self) -> Document:
        """The condition of the index. It keeps out most arrays, which would make the index multikey: lists of dates.

        It also keeps out documents with a field named `0`, which a partial index cannot tell from arrays.
        """
        return {self.due: A_DATE, **{f"{path}.0": None for path in self._paths}, **self.where}

    @property
    def _paths(self) -> list[str]:
        """The path of the date, and its parent paths."""
        parts = self.due.split(".")
        return [".".join(parts[: depth + 1]) for depth in range(len(parts))]

    # Writing

    def apply(
        self,
        due_at: Mapping[Any, datetime | None],
        decide: Callable[[list[Document]], list[UpdateGroup]],
        *,
        fields: Sequence[str] | None,
        now: datetime,
        record: outbox.OutboxRecord | None = None,
        unreached: list[Any] | None = None,
    ) -> list[UpdateGroup]:
        """Read documents, choose their updates and write them, in one transaction.

        Args:
            due_at: by id, the due time of its message; `None`: any.
            decide: returns the updates of the documents that are due; may be called several times.
            fields: those that `decide` needs; `None`: all.
            record: kept with the write when something was written.
            unreached: gets the ids of those that were not read because the others have 16 MB, the most of one reply.

        Returns:
            The updates that were written.

        Raises:
            StillDue: an update leaves a document due, at no later date; nothing was written.
        """
        wanted = None if fields is None else projection((self.due, *fields))
        where = {**self.is_due(now), "_id": {"$in": list(due_at)}}

        def act(session: ClientSession) -> list[UpdateGroup]:
            with commands():
                found, is_whole = first_reply(
                    self.collection(), where, limit=len(due_at), projection=wanted, hint="_id_", session=session
                )
            if unreached is not None:
                read = {id_key(one["_id"]) for one in found}
                unreached[:] = [] if is_whole else [id for id in due_at if id not in read]
            # MongoDB also finds ids that differ in the types of their numbers.
            known = [(key, one) for one in found if (key := id_key(one["_id"])) in due_at]
            matching = [one for key, one in known if due_at[key] in (None, self.due_at(one))]
            groups = decide(matching)
            with commands():
                self._update(groups, session)
                self._refuse_still_due(groups, now, session)
                if record is not None and groups:
                    written = [one for group in groups for one in group.documents]
                    record.insert({id_key(one["_id"]): self.due_at(one) for one in written}, now=now, session=session)
            return groups

        return transact(act)

    def _update(self, groups: Sequence[UpdateGroup], session: ClientSession) -> None:
        """Write the updates with one command: a thousand commands would take longer than a transaction may."""
        updates = [({"_id": {"$in": ids_of(group.documents)}}, group.update) for group in groups]
        if len(updates) == 1:  # the error of a single write is easier to read
            self.collection().update_many(*updates[0], hint="_id_", session=session)
        elif updates:
            try:
                self.collection().bulk_write([UpdateMany(*one, hint="_id_") for one in updates], session=session)
            except OperationFailure as error:
                if error.code == TOO_LARGE:  # of a single write, the driver raises this itself
                    raise DocumentTooLarge(reason(error)) from error
                raise

    def _refuse_still_due(self, groups: Sequence[UpdateGroup], now: datetime, session: ClientSession) -> None:
        unsure = {id_key(one["_id"]): one for group in groups if not group.is_sure_to_end for one in group.documents}
        if unsure:
            where = {**self.is_due(now), "_id": {"$in": list(unsure)}}
            found = self.collection().find(where, projection([self.due]), hint="_id_", session=session)
            still = [one for one in found if self.due_at(one) <= self.due_at(unsure[id_key(one["_id"])])]
            if still:
                raise StillDue(ids_of(still))

    def rehearse(self, document: Document, update: Update, *, now: datetime) -> None:
        """Write an update to one document, check that it is not due any more, and abort the transaction.

        Raises StillDue, and what the driver raises.
        """
        rehearsed = UpdateGroup(documents=[document], update=update, is_sure_to_end=False)
        with client().start_session() as session, session.start_transaction():
            self.collection().update_one({"_id": document["_id"]}, update, hint="_id_", session=session)
            try:
                self._refuse_still_due([rehearsed], now, session)
            finally:
                session.abort_transaction()

    def update_if_due(self, id: Any, due_at: datetime, update: Update) -> bool:
        """Update one document if it is still due at that time; return True if it was."""
        where = {**self._indexed, "_id": id, self.due: {**A_DATE, "$eq": due_at}}
        return self.collection().update_one(where, update, hint="_id_").matched_count == 1

    def update_if_unchanged(self, id: Any, due_at: Any, update: Update) -> None:
        """Update one document if its date still has this value, which is `None` if it is missing."""
        self.collection().update_one({"_id": id, self.due: {"$eq": due_at}}, update, hint="_id_")

    def update_range(self, ids: Sequence[Any], first: datetime, last: datetime, update: Document) -> None:
        """Update those of `ids` that are still due between two dates (inclusive), as `update_all` does."""
        where = {"_id": {"$in": list(ids)}, self.due: {**A_DATE, "$gte": first, "$lte": last}}
        update_all(self.collection(), where, update, hint="_id_")


def ids_of(documents: Sequence[Document]) -> list[Any]:
    return [one["_id"] for one in documents]
