"""The explanation of an item: its state in words, from its lease, its dispatch and its recorded events, and a timeline.

All systems of items use it.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from itertools import takewhile

from models.item_events import ItemEvent, ItemHistory
from queue_manager.core.clock import milliseconds, seconds
from queue_manager.core.wording import error_summary, many, when
from queue_manager.explanation import DispatchState, Explanation, TimelineEvent, Tone, newest_first
from queue_manager.leases.state import LeaseDetail
from queue_manager.system import System

MAX_ESTIMATE_ERROR = seconds(1)  # of the time of an event, an estimate of the database server's time
RETRYABLE_STATES = ("due", "stuck", "failed")
StateText = tuple[str, Tone, str]
"""A state in words, how good it is, and the answer or a clause of it."""


def explanation(
    system: System,
    id: str,
    described: StateText,
    dispatch: DispatchState,
    history: ItemHistory,
    *,
    title: str,
    due_at: datetime | None = None,
    events: Iterable[TimelineEvent] = (),
) -> Explanation:
    """Return the explanation of an item; `events` are those of its document, which the timeline also shows."""
    state, tone, answer = described
    path = system.path_of_item(id)
    return Explanation(
        system=system.name,
        kind=system.item_name,
        id=id,
        title=title,
        label=state,
        tone=tone,
        answer=answer,
        due_at=due_at,
        page=system.page_of_item(id),
        document=path,
        retry=f"{path}/retry" if state in RETRYABLE_STATES and dispatch.is_on else None,
        timeline=newest_first([*(_entry(one) for one in reversed(history.events)), *events]),
        has_whole_timeline=history.is_complete,
    )


def describe_state(
    lease: LeaseDetail, dispatch: DispatchState, history: ItemHistory, *, queue: str | None
) -> StateText:
    """Describe the state of a due item."""
    now = dispatch.now
    match lease.step:
        case "queued":
            behind = f"behind {many(lease.ahead_of_it, 'other')}" if lease.ahead_of_it else "as the next one"
            where = f"waiting in the queue {queue} {behind}"
            if dispatch.has_no_worker:
                return "queued", "bad", f"{where}; no worker consumes that queue"
            return "queued", "good", where
        case "ahead":
            return "waiting", "warn", _next_attempt(lease.at, history, now)
        case "received":
            return "in progress", "good", "received by a worker, and not started yet"
        case "started":
            return "in progress", "good", _execution(lease, dispatch)
        case "ended":
            return "in progress", "good", "its attempt ended a moment ago"
        case "stuck":
            ended = f"the lease of its worker ended without a result{_when('at', lease.at, now)}"
            return "stuck", "bad", f"{ended}; {dispatch.scan()}"
        case "cooling":
            return "failed", "bad", f"all attempts failed, and it cools down{_when('until', lease.at, now)}"
        case "free":
            return "due", "warn", f"not dispatched yet; {dispatch.scan()}"


def _when(preposition: str, moment: datetime | None, now: datetime) -> str:
    return "" if moment is None else f" {preposition} {when(moment, now)}"


def _execution(lease: LeaseDetail, dispatch: DispatchState) -> str:
    by = f" by {dispatch.workers[0]}" if dispatch.workers is not None and len(dispatch.workers) == 1 else ""
    since = _when("since", lease.at, dispatch.now)
    lost = f", after its process was lost {many(lease.losses, 'time')} in a row" if lease.losses else ""
    return f"being executed{by}{since}{lost}"


def _next_attempt(at: datetime | None, history: ItemHistory, now: datetime) -> str:
    since_dispatch = takewhile(lambda one: one.event != "dispatched", history.events)
    last = next((one for one in since_dispatch if one.event == "retried"), None)
    if last is None:
        return f"dispatched, to be executed{_when('at', at, now)}"
    error = error_summary(last.error or "unknown")
    return f"attempt {last.attempt} failed, and the next one starts{_when('at', at, now)}. Last error: {error}"


def describe_done(history: ItemHistory, due_at: datetime | None, now: datetime) -> str:
    """Return a clause about the execution that ended an item; empty if the last event is another one, or unknown."""
    events = [one for one in history.events if one.skipped is None]
    if not events or events[0].event != "executed":
        return ""
    if due_at is not None and events[0].at < due_at - MAX_ESTIMATE_ERROR:  # it was for an earlier due time
        return ""
    dispatch = next((one for one in events if one.event == "dispatched"), None)
    task = events[0].task or (None if dispatch is None else dispatch.task)
    return f"done at {when(events[0].at, now)}{'' if task is None else f', by the task {task}'}"


def _entry(event: ItemEvent) -> TimelineEvent:
    number = "" if event.attempt is None else f" {event.attempt}"
    titles = {
        "dispatched": "Dispatched by an operator" if event.is_manual else "Dispatched",
        "executed": "Executed" if event.skipped is None else "Nothing to do",
        "retried": f"Attempt{number} failed",
        "failed": f"Attempt{number} failed, the last one",
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
