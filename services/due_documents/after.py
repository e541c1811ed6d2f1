"""Calls of `after`. Each is recorded in the outbox in the transaction of its write, and deleted once it succeeded.

Guarantee: `after` is called at least once for each document that was written. The process that wrote calls it; if that
fails or dies, the record is left, and scans dispatch the call again until it succeeds: after its last attempt for each
half of its documents, the oldest batches first, so that one document with which `after` fails does not hold up others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

from models import database, outbox
from models.document_id import id_key
from models.due_documents import DueCollection, UpdateGroup, ids_of
from queue_manager.core.clock import minutes
from queue_manager.core.errors import typed_reason
from queue_manager.core.functions import contained, require_done
from queue_manager.core.log import get_logger
from queue_manager.core.wording import error_summary
from queue_manager.items import DueItem
from queue_manager.leases import MustCoolDown
from services.due_documents.declaration import CallAgain, DueDocuments, Run, Written
from services.due_documents.updates import documents_after
from services.due_work import Due, DueWork

AFTER = ".after"  # suffix of the system's name for the leases of calls of `after`
AFTER_RETRY_DELAY = minutes(1)
MAX_HALVED = 8  # failing batches of a system at a time: in an outage, not all become one call for each document

log = get_logger("QM/systems")


@dataclass(frozen=True, kw_only=True)
class AfterCalls(DueWork):
    """The calls of one system; as due work, those to repeat, whose arguments are `(batch, time of the write)`."""

    system: DueDocuments
    documents: DueCollection

    @property
    def system_name(self) -> str:
        return self.system.name

    # The first call, by the process that writes

    def begin(self) -> outbox.OutboxRecord | None:
        """Return the record to insert with a write; `None` if the system has no `after`."""
        if self.system.functions.after is None:
            return None
        # A new record, because a redelivered batch may write while its earlier record is still in the outbox.
        return outbox.OutboxRecord(id=uuid4().hex, system=self.system.name, lease=self.leases.lease, clock=self.clock)

    def call(self, record: outbox.OutboxRecord, groups: Sequence[UpdateGroup], run: Run) -> None:
        """Call `after` for what was written. Raises the errors of the function; the next scan then repeats the call."""
        try:
            self._call(record.id, self._written(groups, run))
        except Exception as error:
            with suppress(database.Error):
                outbox.postpone(record.id, until=self.clock(), error=error_summary(typed_reason(error)))
            raise

    def _call(self, batch: str, written: list[Written]) -> None:
        function = self.system.functions.after
        assert function is not None
        try:
            with contained():
                result = function(written)
            require_done(result, "`after`")
        except CallAgain as again:
            outbox.postpone(batch, until=self.clock() + again.wait)
        else:
            outbox.delete(batch)

    def _written(self, groups: Sequence[UpdateGroup], run: Run) -> list[Written]:
        left = [(group.documents, documents_after(self.system, group)) for group in groups]
        found = [pair for before, after in left if after is not None for pair in zip(before, after, strict=True)]
        if unknown := [one for before, after in left if after is None for one in before]:
            found += zip(unknown, self._read(ids_of(unknown)), strict=True)
        return [
            Written(id=before["_id"], due_at=self.documents.due_at(before), written_at=run.now, document=document)
            for before, document in found
        ]

    def _read(self, ids: Sequence[Any]) -> list[database.Document]:
        """Return documents as they are now; of a deleted document, only the id."""
        found = {id_key(one["_id"]): one for one in self.documents.get_many(ids, self.system.read_fields)}
        return [found.get(id_key(id), {"_id": id}) for id in ids]

    # Repeated calls, for records that a crash or an error left

    def find_due(self, until: datetime) -> Iterator[Due]:
        return (Due(id=batch, due_at=at) for batch, at in outbox.pending(self.system_name, now=until))

    def due_ms(self, item: DueItem) -> int | None:
        return None  # otherwise repeated calls would count as late items

    def repeat(self, batch: str) -> None:
        """Call `after` for the documents that a batch has written, unless its record in the outbox is gone."""
        if (pending := outbox.get(batch)) is not None:
            documents = self._read(list(pending.due_at))
            written = [
                Written(id=id, due_at=at, written_at=pending.written_at, document=document)
                for (id, at), document in zip(pending.due_at.items(), documents, strict=True)
            ]
            try:
                self._call(batch, written)
            except Exception as error:
                with suppress(database.Error):
                    outbox.record_error(batch, error_summary(typed_reason(error)))
                raise

    def give_up(self, item: DueItem, *, error: str) -> None:
        self._leave(item, error=error, cool_down=AFTER_RETRY_DELAY)

    def lost(self, item: DueItem, why: str) -> None:
        outbox.record_error(item.args[0], why)
        super().lost(item, why)

    def cool_down_lost(self, item: DueItem, lost: MustCoolDown) -> None:
        pending = outbox.get(item.args[0])
        error = None if pending is None else pending.error
        if error is None:  # the worker died, too
            error = f"its process was lost {lost.losses} times in a row"
            outbox.record_error(item.args[0], error)
        self._leave(item, error=error, cool_down=lost.cool_down)

    def _leave(self, item: DueItem, *, error: str, cool_down: timedelta) -> None:
        """Leave the call to scans: for each half of the documents, or whole after a cool-down."""
        is_halved = outbox.halve(item.args[0], at_once=MAX_HALVED)
        how = "for each half of its documents" if is_halved else "after a cool-down"
        log.error(
            f"`after` failed; it is called again {how}",
            system=self.system_name,
            batch=item.args[0],
            error=error,
        )
        self.leases.release([item.lease], cool_down=cool_down)
