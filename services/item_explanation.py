"""The explanation of an item: its state in words, from its lease, its dispatch and its recorded events, and a timeline.

All systems of items use it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from datetime import datetime
from itertools import takewhile

from models import item_events
from models.item_events import ItemEvent
from queue_manager.core.clock import milliseconds, seconds
from queue_manager.core.wording import error_summary, many, sentence, when
from queue_manager.explanation import DispatchState, Explanation, TimelineEvent, Tone, newest_first
from queue_manager.leases.state import LeaseDetail
from services.due_work import Due, DueWork

MAX_ESTIMATE_ERROR = seconds(1)  # of the time of an event, an estimate of the database server's time
RETRYABLE_STATES = ("due", "stuck", "failed")
UNKNOWN_DISPATCH = "whether it is dispatched is unknown"
StateText = tuple[str, Tone, str]
"""A state in words, how good it is, and the answer or a clause of it."""


class ItemExplainer(ABC):
    """One item while it is explained.

    Args:
        id: its id in lists.
        lease_id: its id in the names of its leases, under which its events are recorded.
    """

    def __init__(
        self, dispatch: DispatchState, id: str, *, lease_id: str, title: str, due_at: datetime | None = None
    ) -> None:
        self.dispatch, self.system, self.now = dispatch, dispatch.system, dispatch.now
        self.id, self.title, self.due_at = id, title, due_at
        self.history = item_events.of_item(self.system.name, lease_id)

    @abstractmethod
    def answer(self) -> StateText:
        """Return its state, and the answer."""

    def past(self) -> Iterable[TimelineEvent]:
        """Yield the events that its document contains, for the timeline."""
        return ()

    def explanation(self) -> Explanation:
        state, tone, answer = self.answer()
        path = self.system.path_of_item(self.id)
        return Explanation(
            system=self.system.name,
            kind=self.system.item_name,
            id=self.id,
            title=self.title,
            label=state,
            tone=tone,
            answer=answer,
            due_at=self.due_at,
            page=self.system.page_of_item(self.id),
            document=path,
            retry=f"{path}/retry" if state in RETRYABLE_STATES and self.dispatch.is_on else None,
            timeline=newest_first([*map(_entry, reversed(self.history.events)), *self.past()]),
            has_whole_timeline=self.history.is_complete,
        )

    def lease_of(self, work: DueWork, item: Due) -> LeaseDetail:
        """Return the lease of the item. Raises `Unavailable`, unless it is known that Redis does not answer."""
        if self.dispatch.has_leader is None:
            return LeaseDetail(step="unknown")
        return work.leases.detail(item.lease)

    def due_state(self, lease: LeaseDetail, *clauses: str) -> StateText:
        """Return the state of a due item by its lease, and an answer that begins with these clauses."""
        state, tone, clause = self._step(lease)
        return state, tone, sentence(*clauses, clause)

    def cool_down(self, lease: LeaseDetail) -> str:
        """Return a clause about when a failed item is dispatched again."""
        if lease.at is None or lease.at > self.now:
            return f"it cools down{self._when('until', lease.at)}"
        return f"its cool-down is over; {self.dispatch.scan()}"

    def done(self) -> str:
        """Return a clause about the execution that ended it; empty if the last event is another one, or unknown."""
        events = [one for one in self.history.events if one.skipped is None]
        if not events or events[0].event != "executed":
            return ""
        if self.due_at is not None and events[0].at < self.due_at - MAX_ESTIMATE_ERROR:  # for an earlier due time
            return ""
        dispatch = next((one for one in events if one.event == "dispatched"), None)
        task = events[0].task or (None if dispatch is None else dispatch.task)
        return f"done at {when(events[0].at, self.now)}{'' if task is None else f', by the task {task}'}"

    def _step(self, lease: LeaseDetail) -> StateText:
        match lease.step:
            case "queued":
                if self._is_dead_lettered():
                    return "dead letter", "bad", "its message is a dead letter: see `queue-manager dead-letters`"
                behind = f"behind {many(lease.ahead_of_it, 'other')}" if lease.ahead_of_it else "as the next one"
                where = f"waiting in the queue {self.system.queue} {behind}"
                if self.dispatch.has_no_worker:
                    return "queued", "bad", f"{where}; no worker consumes that queue"
                return "queued", "good", where
            case "ahead":
                return "waiting", "warn", self._next_attempt(lease.at)
            case "received":
                return "in progress", "good", "received by a worker, and not started yet"
            case "started":
                return "in progress", "good", self._execution(lease)
            case "ended":
                return "in progress", "good", "its attempt ended a moment ago"
            case "stuck":
                ended = f"the lease of its worker ended without a result{self._when('at', lease.at)}"
                return "stuck", "bad", f"{ended}; {self.dispatch.scan()}"
            case "cooling":
                return "failed", "bad", f"all attempts failed, and {self.cool_down(lease)}"
            case "unknown":
                return "due", "warn", f"{UNKNOWN_DISPATCH}; {self.dispatch.scan()}"
            case "free":
                return "due", "warn", f"not dispatched yet; {self.dispatch.scan()}"

    def _is_dead_lettered(self) -> bool:
        """Return True if the message that was dispatched last is a dead letter of the broker, as far as it is known."""
        dispatch = next((one for one in self.history.events if one.event == "dispatched"), None)
        return dispatch is not None and dispatch.task is not None and self.dispatch.has_dead_letter(dispatch.task)

    def _execution(self, lease: LeaseDetail) -> str:
        workers = self.dispatch.workers
        by = f" by {workers[0]}" if workers is not None and len(workers) == 1 else ""
        lost = f", after its process was lost {many(lease.losses, 'time')} in a row" if lease.losses else ""
        return f"being executed{by}{self._when('since', lease.at)}{lost}"

    def _next_attempt(self, at: datetime | None) -> str:
        since_dispatch = takewhile(lambda one: one.event != "dispatched", self.history.events)
        last = next((one for one in since_dispatch if one.event == "retried"), None)
        if last is None:
            return f"dispatched, to be executed{self._when('at', at)}"
        error = error_summary(last.error or "unknown")
        return f"attempt {last.attempt} failed, and the next one starts{self._when('at', at)}. Last error: {error}"

    def _when(self, preposition: str, moment: datetime | None) -> str:
        return "" if moment is None else f" {preposition} {when(moment, self.now)}"


def _entry(event: ItemEvent) -> TimelineEvent:
    number = "" if event.attempt is None else f" {event.attempt}"
    titles = {
        "dispatched": "Dispatched by an operator" if event.is_manual else "Dispatched",
        "executed": "Executed" if event.skipped is None else "Nothing to do",
        "retried": f"Attempt{number} failed",
        "failed": f"Attempt{number} failed, the last one" if number else "Not started",
        "lost": "Process lost",
    }
    together = f"in a batch of {event.items:,}" if event.items > 1 else ""
    return TimelineEvent(
        at=event.at,
        event=titles[event.event],
        detail=event.skipped or together,
        worker=event.worker,
        duration_ms=None if event.took is None else milliseconds(event.took),
        error=event.error,
        task_id=event.task,
    )
