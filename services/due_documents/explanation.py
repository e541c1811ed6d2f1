"""Why a document of a `DueDocuments` system is in its state."""

from __future__ import annotations

from datetime import datetime

from models import failed_item, item_events
from models.database import Document
from models.document_id import id_candidates, id_text
from queue_manager.core.wording import error_summary, sentence, when
from queue_manager.explanation import DispatchState, Explanation
from queue_manager.leases.state import LeaseDetail
from services.due_documents.declaration import NO_DATE
from services.due_documents.work import DocumentWork
from services.item_explanation import StateText, describe_done, describe_state, explanation


def explain(work: DocumentWork, id: str, dispatch: DispatchState) -> list[Explanation]:
    """Explain the documents that an id names in a system: several if ids of several types have the same text."""
    found = work.documents.get_many(id_candidates(id))
    return [_DocumentExplanation(work, document, dispatch).explanation() for document in found]


class _DocumentExplanation:
    """One document while it is explained."""

    def __init__(self, work: DocumentWork, document: Document, dispatch: DispatchState) -> None:
        self._work, self._system, self._document, self._dispatch = work, work.system, document, dispatch
        self._id, self._now = document["_id"], dispatch.now
        self._due_at = work.documents.due_at(document)
        self._history = item_events.of_item(self._system.name, id_text(self._id))

    def explanation(self) -> Explanation:
        return explanation(
            self._system,
            id_text(self._id),
            self._answer(),
            self._dispatch,
            self._history,
            title=self._system.title_of(self._document),
            due_at=self._due_at if isinstance(self._due_at, datetime) else None,
            events=self._system.past(self._document),
        )

    def _answer(self) -> StateText:
        if (problem := self._system.malformed(self._document)) is not None:
            return "malformed", "bad", sentence(problem, "it can never fall due")
        if not isinstance(self._due_at, datetime):
            state, answer = self._system.describe_idle(self._document, self._now)
            if state == NO_DATE and (done := describe_done(self._history, None, self._now)):
                return "done", "good", f"{sentence(done)} {answer}"
            return state, "neutral", answer
        is_later = self._due_at > self._now
        due = f"{self._system.until if is_later else 'Due since'} {when(self._due_at, self._now)}"
        if not self._work.documents.fits(self._id):
            condition = f"the condition of the system, {id_text(dict(self._system.where))}"
            if done := describe_done(self._history, self._due_at, self._now):
                return "done", "good", sentence(done, f"it no longer meets {condition}")
            date = due if is_later else f"its date, {self._system.due}, was {when(self._due_at, self._now)}"
            return "not due", "neutral", sentence(f"it does not meet {condition}", date)
        lease = self._work.leases.detail(self._work.due_of(self._document).lease)
        if is_later and lease.step in ("free", "ahead"):
            return self._system.later, "neutral", sentence(due, *self._before_it_is_due(lease, self._due_at))
        if lease.step == "cooling" and (failure := failed_item.get(self._system.name, self._id)) is not None:
            times = "" if failure.failures == 1 else f", {failure.failures} times in a row"
            error = f"Last error: {error_summary(failure.error)}"
            cooling = f"it cools down until {when(lease.at or failure.retry_at, self._now)}"
            return "failed", "bad", sentence(f"all attempts failed{times}", f"{cooling}. {error}")
        state, tone, clause = describe_state(lease, self._dispatch, self._history, queue=self._system.queue)
        return state, tone, sentence(due, clause)

    def _before_it_is_due(self, lease: LeaseDetail, due_at: datetime) -> tuple[str, ...]:
        if lease.step == "ahead":
            return ("dispatched ahead of time, to be executed then",)
        return "not dispatched", self._dispatch.scan(due_at - self._work.ahead)
