"""The work of a `DueDocuments` system: what its scan finds, and the execution of its items, alone or in batches."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any

from pymongo.errors import BulkWriteError, DocumentTooLarge, WriteError
from structlog.stdlib import BoundLogger

from models import database, failed_item, item_events
from models.document_id import id_key, id_text, is_same_id, read_id, shown_id
from models.due_documents import DueCollection, StillDue, Update
from queue_manager.core.clock import parse_utc, seconds, to_iso
from queue_manager.core.errors import NotYetDue, PermanentError, Unavailable, clear_variables, reason, typed_reason
from queue_manager.core.functions import contained, require_done
from queue_manager.core.log import get_logger
from queue_manager.items import DueItem, Verdict
from queue_manager.leases import MAX_COOL_DOWN, Leases, MustCoolDown
from services.due_documents.after import AFTER, AfterCalls
from services.due_documents.declaration import DueDocuments, Failure, Run
from services.due_documents.updates import FailedCall, Unwritten, grouped_updates, require_update, update_of
from services.due_work import Due, DueWork, ItemResult

FLAG_TIMEOUT = seconds(2)  # for the flags of a batch
MAX_EARLY = seconds(0.1)  # our clock lags by a round trip, so an item that is dispatched ahead starts a little early
MAX_BATCH_TIME = 1.0  # seconds after which a batch begins no further transaction; another batch executes the items left
MAX_REFUSALS = 32  # transactions of a batch; finding three refused documents among a thousand takes at most 30
_REFUSED = (WriteError, BulkWriteError, DocumentTooLarge, StillDue)


@dataclass(frozen=True, kw_only=True)
class DocumentWork(DueWork):
    """The work of one system."""

    system: DueDocuments
    documents: DueCollection
    has_timelines: bool = True

    @cached_property
    def after_calls(self) -> AfterCalls:
        return AfterCalls(
            system=self.system,
            documents=self.documents,
            leases=Leases(f"{self.system.name}{AFTER}", self.leases.lease),
            clock=self.clock,
            limits=self.limits,
        )

    # Scan, and the flag for another program that works on the documents

    def find_due(self, until: datetime) -> Iterator[Due]:
        flag = self.system.flag_field
        fields = () if flag is None else (flag,)
        return map(self.due_of, self.documents.find(until, fields=fields, batch=self.limits.batch))

    def due_of(self, document: database.Document) -> Due:
        """Return the item of a due document."""
        flag = self.system.flag_field
        id, due_at = id_text(document["_id"]), self.documents.due_at(document)
        is_flagged = flag is not None and bool(database.value_at(document, flag))
        return Due(id=id, due_at=due_at, is_flagged=is_flagged)

    @property
    def flags_documents(self) -> bool:
        return self.system.flag_field is not None

    def flag(self, dispatched: Sequence[Due]) -> None:
        if (flag := self.system.flag_field) is not None:
            ids = [read_id(one.id, field="id") for one in dispatched]
            dates = [one.due_at for one in dispatched]
            try:
                with database.within(FLAG_TIMEOUT):
                    self.documents.update_range(ids, min(dates), max(dates), {"$set": {flag: True}})
            except database.Error as error:
                if not error.timeout:
                    raise
                # The write waits for the transaction of another program that has locked one of the documents.
                self._log.warning("Documents are dispatched without their flag", error=reason(error))

    def release(self, items: Sequence[DueItem]) -> None:
        super().release(items)
        if (flag := self.system.flag_field) is not None:
            ids = [id for id, _ in filter(None, map(self._readable_arguments, items))]
            for document in self.documents.get_many(ids, (self.system.due, flag)):
                self._clear_flag(document)

    def _clear_flag(self, document: database.Document) -> None:
        """Clear the flag of a document unless it is in flight for its present due time."""
        flag = self.system.flag_field
        if flag is None or not database.value_at(document, flag):
            return
        due_at = self.documents.due_at(document)
        if isinstance(due_at, datetime):
            (status,) = self.leases.statuses([self.due_of(document).lease])
            if status.state == "in-progress":
                return
        self.documents.update_if_unchanged(document["_id"], due_at, {"$set": {flag: False}})

    # Items

    @property
    def batch_function(self) -> Callable[[Sequence[DueItem]], Sequence[Any]] | None:
        return self.execute_batch if self.system.batch else None

    def execute(self, id: Any, due_at: Any, *, task_id: str) -> ItemResult:
        """Act on one document if it is due, at `due_at` unless that is `None`.

        Returns:
            `{success: true, id, due_at}`, or `{skipped: true, reason}`.

        Raises:
            PermanentError: an argument or the function's update is malformed.
            NotYetDue: the due time of the message has not come, or another transaction holds the document.
        """
        key, expected = self._arguments(id, due_at)
        run = Run(id=task_id, now=self.clock())
        try:
            written = self._write({key: expected}, run)
        except StillDue as error:
            raise PermanentError(self.still_due(", ".join(map(shown_id, error.ids)))) from None
        except database.Error as error:
            self._log.error(f"Database update failed: {reason(error)}")
            raise
        if key in written:
            return self.system.result(written[key], written_at=run.now)
        outcome = self._outcome_of_unwritten(self.documents.get(key), expected, run.now)
        if isinstance(outcome, NotYetDue):
            raise outcome
        return outcome

    def preview(self, document: database.Document, *, now: datetime) -> Update:
        """Return the update that a document which is due `now` would get; try it in a transaction that is aborted.

        Raises PermanentError if it leaves the document due, and the errors of the function and of the driver.
        """
        update = update_of(self.system, document, Run(id="preview", now=now))
        try:
            self.documents.rehearse(document, update, now=now)
        except StillDue:
            raise PermanentError(self.still_due("the document")) from None
        return update

    def execute_batch(self, items: Sequence[DueItem]) -> list[ItemResult | Exception | Verdict | None]:
        """Act on many documents as `execute` does, in one transaction, or in several if they are large or take long.

        A document whose update is refused is left to its own task. To find it, the batch is halved repeatedly. If a
        transaction fails after another was written, its items are left to their own tasks. Items whose documents are
        not due any more cost two reads together: after a crash, a thousand messages may be delivered a second time.

        Returns:
            The result of each item, or the error of its function; `None` if its own task must execute it; `UNREACHED`
            if `MAX_BATCH_TIME` was over.
        """
        arguments = [self._readable_arguments(item) for item in items]
        run = Run(id=items[0].task_id, now=self.clock())
        early = [one[1] - run.now for one in arguments if one and one[1] and run.now < one[1] <= run.now + MAX_EARLY]
        if early:
            raise NotYetDue(max(early))
        due_at, unreached = {one[0]: one[1] for one in arguments if one}, set[Any]()
        results: list[ItemResult | Exception | None] = [None] * len(items)
        for written, failed in self._write_in_parts(due_at, run, unreached=unreached):
            for number, one in enumerate(arguments):
                if one is None:
                    continue
                key, expected = one
                if (found := written.get(key)) is not None:
                    if _is_of_item(found["_id"], self.documents.due_at(found), key, expected):
                        results[number] = self.system.result(found, written_at=run.now)
                elif (call := failed.get(key)) is not None and _is_of_item(call.id, call.due_at, key, expected):
                    results[number] = call.error
        unwritten = [
            (number, *one)
            for number, one in enumerate(arguments)
            if one and results[number] is None and one[0] not in unreached
        ]
        with suppress(database.Error, Unavailable):  # which their own tasks meet too; what was written must be reported
            for number, outcome in self._outcomes_of_unwritten(unwritten, run.now):
                results[number] = outcome
        return [
            Verdict.UNREACHED if one and one[0] in unreached else result
            for one, result in zip(arguments, results, strict=True)
        ]

    def give_up(self, item: DueItem, *, error: str) -> None:
        """Record that the last attempt failed; the document is tried again after a growing cool-down."""
        key, expected = self._arguments(*item.args)
        now = self.clock()
        due = self.documents.due_with_ids([key], now)
        due_at = self.documents.due_at(due[0]) if due else None
        if due_at is None or expected not in (None, due_at):
            self.release([item])
            return
        failure = failed_item.record(self.system.name, key, due_at, error=error, now=now)
        lease = self.due_of(due[0]).lease  # the one that scans check; that of `delay` has no due time
        if item.lease != lease:
            self.leases.release([item.lease])
        self.leases.release([lease], cool_down=failure.retry_at - now)
        self._log.error(
            "All attempts failed; the next ones come after a cool-down",
            id=shown_id(key),
            failures=failure.failures,
            retry_at=to_iso(failure.retry_at),
            error=error,
        )
        if self.system.functions.failed is not None:
            about = Failure(id=key, due_at=due_at, error=error, failures=failure.failures, retry_at=failure.retry_at)
            self._call_failed(self.system.functions.failed, about)

    def _call_failed(self, failed: Callable[[Failure], Any], about: Failure) -> None:
        try:
            with contained():
                update = require_done(failed(about), "`failed`")
            if update:
                require_update(update, "`failed`")
                self.documents.update_if_due(about.id, about.due_at, update)
        except Exception as error:
            if database.is_outage(error):
                raise
            self.report_hook_error("`failed` failed; the document is not marked", error)

    def report_hook_error(self, what: str, error: Exception) -> None:
        """Report an error of `after` or `failed`, which does not change the outcome of the item."""
        self._log.error(what, error=typed_reason(error), exc_info=error)

    def cool_down_lost(self, item: DueItem, lost: MustCoolDown) -> None:
        """Record the loss like a failed attempt, so that the item is listed as failed."""
        why = item_events.last_loss(self.system.name, item.lease, since=self.clock() - MAX_COOL_DOWN)
        cause = "" if why is None else f". {why}"
        self.give_up(item, error=f"its process was lost {lost.losses} times in a row{cause}")

    # Writing

    def _write_in_parts(
        self, due_at: Mapping[Any, datetime | None], run: Run, *, unreached: set[Any]
    ) -> Iterator[tuple[dict[Any, database.Document], dict[Any, FailedCall]]]:
        """Yield what each transaction wrote, and whose function failed, by id.

        `unreached` gets the ids that were left when `MAX_BATCH_TIME` was over.
        """
        ends_at, parts, refusals, has_written = time.monotonic() + MAX_BATCH_TIME, [list(due_at)], 0, False
        while parts and (part := parts.pop()):
            unwritten = Unwritten()
            try:
                written = self._write({id: due_at[id] for id in part}, run, unwritten=unwritten)
            except _REFUSED as error:
                refusals += 1
                if refusals == 1:
                    self._log.warning("An update was refused; its batch is written in parts", error=reason(error))
                if refusals <= MAX_REFUSALS and (middle := len(part) // 2):
                    parts += [part[middle:], part[:middle]]
            except Exception as error:
                if not has_written:
                    raise
                self._log.warning("A batch was written only in part", error=reason(error))
                break
            else:
                has_written = has_written or bool(written)
                for call in unwritten.failed:
                    clear_variables(call.error)  # which hold all documents of the transaction
                yield written, {id_key(call.id): call for call in unwritten.failed}
                if unwritten.unreached:
                    parts.append([*map(id_key, unwritten.unreached)])
            if time.monotonic() > ends_at:
                break
        unreached.update(*parts)

    def _write(
        self, due_at: Mapping[Any, datetime | None], run: Run, *, unwritten: Unwritten | None = None
    ) -> dict[Any, database.Document]:
        """Update the documents that are due, and call `after`; return them as they were before, by id."""
        record = self.after_calls.begin()
        groups = self.documents.apply(
            due_at,
            lambda documents: grouped_updates(self.system, documents, run, unwritten=unwritten),
            fields=self.system.fields,
            now=run.now,
            record=record,
            unreached=None if unwritten is None else unwritten.unreached,
        )
        before = {id_key(one["_id"]): one for group in groups for one in group.documents}
        if before:
            self.system.log_written(len(before))
            with suppress(database.Error):  # the update is committed; a failure that stays is not listed, and expires
                failed_item.delete(self.system.name, list(before))
            if record is not None:
                try:
                    self.after_calls.call(record, groups, run)
                except Exception as error:
                    self.report_hook_error("`after` failed; it is called again", error)
        return before

    # Results

    def _outcomes_of_unwritten(
        self, items: Sequence[tuple[int, Any, datetime | None]], now: datetime
    ) -> Iterator[tuple[int, ItemResult]]:
        """Yield the results of items of a batch, each `(number, id, due time)`, whose documents are not due, or gone.

        Items that are not due yet are left to their own tasks, which read the clock again.
        """
        if not items:
            return
        ids, fields = [key for _, key, _ in items], filter(None, (self.system.due, self.system.flag_field))
        # By text, because `1` and `True` are two ids and one key.
        due = {id_text(one["_id"]): self.documents.due_at(one) for one in self.documents.due_with_ids(ids, now)}
        found = {id_text(one["_id"]): one for one in self.documents.get_many(ids, [*fields])}
        for number, key, expected in items:
            name = id_text(key)
            if name in due and expected in (None, due[name]):
                continue
            outcome = self._outcome_of_unwritten(found.get(name), expected, now)
            if not isinstance(outcome, NotYetDue):
                yield number, outcome

    def _outcome_of_unwritten(
        self, document: database.Document | None, expected: datetime | None, now: datetime
    ) -> ItemResult | NotYetDue:
        """Return why a document was not written, and clear its flag."""
        if document is None:
            return _skipped(self.system.not_found)
        due_at = self.documents.due_at(document)
        if isinstance(due_at, datetime) and due_at > now and expected in (None, due_at):
            return _skipped(self.system.not_due) if expected is None else NotYetDue(due_at - now)
        self._clear_flag(document)
        return _skipped(self.system.changed)

    def _arguments(self, id: Any, due_at: Any = None) -> tuple[Any, datetime | None]:
        names = self.system.arguments
        return id_key(read_id(id, field=names[0])), parse_utc(due_at, field=names[1])

    def _readable_arguments(self, item: DueItem) -> tuple[Any, datetime | None] | None:
        """Read the item's arguments; `None` for malformed ones, which the item's own task refuses."""
        try:
            return self._arguments(*item.args)
        except (PermanentError, TypeError):
            return None

    def still_due(self, what: object) -> str:
        """Return the error about an update that leaves documents due."""
        return (
            f"{self.system.item_task} left {what} due: its update must postpone or remove {self.system.due}, "
            "or change a field in `where`"
        )

    @property
    def _log(self) -> BoundLogger:
        return get_logger(self.system.initiator)


def _skipped(why: str) -> ItemResult:
    return {"skipped": True, "reason": why}


def _is_of_item(id: Any, due_at: Any, key: Any, expected: datetime | None) -> bool:
    """Return False if a document is that of another item, whose key is equal in Python or which was due before."""
    return is_same_id(id, key) and expected in (None, due_at)
