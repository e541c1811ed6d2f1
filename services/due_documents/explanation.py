"""Why a document of a `DueDocuments` system is in its state."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime

from models import failed_item, outbox
from models.database import Document
from models.document_id import id_candidates, id_text
from queue_manager.core.wording import error_summary, sentence, when
from queue_manager.explanation import DispatchState, Explanation, TimelineEvent
from queue_manager.leases.state import LeaseDetail
from services.due_documents.declaration import NO_DATE
from services.due_documents.work import DocumentWork
from services.item_explanation import UNKNOWN_DISPATCH, ItemExplainer, StateText


def explain(work: DocumentWork, id: str, dispatch: DispatchState) -> list[Explanation]:
    """Explain the documents that an id names in a system: several if ids of several types have the same text."""
    found = work.documents.get_many(id_candidates(id))
    return [_DocumentExplainer(work, document, dispatch).explanation() for document in found]


class _DocumentExplainer(ItemExplainer):
    def __init__(self, work: DocumentWork, document: Document, dispatch: DispatchState) -> None:
        self._work, self._document = work, document
        id, due_at = id_text(document["_id"]), work.documents.due_at(document)
        super().__init__(
            dispatch,
            id,
            lease_id=id,
            title=work.system.title_of(document),
            due_at=due_at if isinstance(due_at, datetime) else None,
        )

    def past(self) -> Iterable[TimelineEvent]:
        return self._work.system.past(self._document)

    def explanation(self) -> Explanation:
        found = super().explanation()
        system, call = self._work.system, None
        if system.functions.after is not None:
            call = outbox.failing_of(system.name, self._document["_id"])
        if call is None or call.error is None:
            return found
        is_repeated = self.dispatch.is_on and self.dispatch.idle is None
        pending = sentence(
            f"its call of `after` has not succeeded since {when(call.written_at, self.now)}",
            "it is repeated" if is_repeated else self.dispatch.scan(),
            f"last error: {error_summary(call.error)}",
        )
        return replace(found, answer=f"{found.answer} {pending}", tone="bad")

    def answer(self) -> StateText:
        work, system, document, now = self._work, self._work.system, self._document, self.now
        if (problem := system.malformed(document)) is not None:
            return "malformed", "bad", sentence(problem, "it can never fall due")
        if self.due_at is None:
            state, answer = system.describe_idle(document, now)
            if state == NO_DATE and (done := self.done()):
                return "done", "good", f"{sentence(done)} {answer}"
            return state, "neutral", answer
        is_later = self.due_at > now
        due = f"{system.until if is_later else 'Due since'} {when(self.due_at, now)}"
        if not work.documents.fits(document["_id"]):
            condition = f"the condition of the system, {id_text(dict(system.where))}"
            if done := self.done():
                return "done", "good", sentence(done, f"it no longer meets {condition}")
            date = due if is_later else f"its date, {system.due}, was {when(self.due_at, now)}"
            return "not due", "neutral", sentence(f"it does not meet {condition}", date)
        lease = self.lease_of(work, work.due_of(document))
        if is_later and lease.step in ("free", "ahead", "unknown"):
            return system.later, "neutral", sentence(due, *self._before_it_is_due(lease, self.due_at))
        if lease.step == "cooling" and (failure := failed_item.get(system.name, document["_id"])) is not None:
            times = "" if failure.failures == 1 else f", {failure.failures} times in a row"
            error = f"Last error: {error_summary(failure.error)}"
            return "failed", "bad", sentence(f"all attempts failed{times}", f"{self.cool_down(lease)}. {error}")
        return self.due_state(lease, due)

    def _before_it_is_due(self, lease: LeaseDetail, due_at: datetime) -> tuple[str, ...]:
        if lease.step == "ahead":
            return ("dispatched ahead of time, to be executed then",)
        is_unknown = lease.step == "unknown"
        return UNKNOWN_DISPATCH if is_unknown else "not dispatched", self.dispatch.scan(due_at - self._work.ahead)
