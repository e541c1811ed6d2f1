"""Why a job is in its state."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from functools import partial
from urllib.parse import quote

from models import executing_job, job, job_queue
from models.database import Document
from models.document_id import shown_id
from models.job import RESCHEDULABLE_STATES, JobState
from models.malformed import READ_ERRORS, typed
from queue_manager.core.errors import typed_reason
from queue_manager.core.wording import error_summary, many, ordinal, sentence, when
from queue_manager.explanation import DispatchState, Explanation, TimelineEvent, Tone, newest_first, pause_text

JOB_TONES: dict[JobState, Tone] = {
    JobState.PENDING: "neutral",
    JobState.EXECUTING: "good",
    JobState.SUCCESS: "good",
    JobState.FAILURE: "bad",
    JobState.CANCELED: "neutral",
}
MAX_COUNTED_JOBS = 10_000


def explain(id: str, dispatch: DispatchState) -> list[Explanation]:
    """Return the job that an id names."""
    found = job.get_any(id) if dispatch.is_on else None
    if found is None or not job.is_job(found):
        return []
    system, id = dispatch.system, shown_id(found["_id"])
    path = f"/api/jobs/{quote(id, safe='')}"
    explained = partial(
        Explanation, system=system.name, kind=system.item_name, id=id, page=system.page_of_item(id), document=path
    )
    try:
        state = JobState(found["state"])
        can_be_retried = state in RESCHEDULABLE_STATES
        return [
            explained(
                title=typed(found, "name", str),
                label=state.value,
                tone=JOB_TONES[state],
                answer=sentence(*_Reasons(found, dispatch).clauses()),
                due_at=typed(found, "due", datetime),
                retry=f"{path}/retry" if can_be_retried else None,
                retry_body={"state": state.value} if can_be_retried else {},
                timeline=newest_first(_entries(found)),
            )
        ]
    except READ_ERRORS as error:
        answer = sentence(f"malformed: {typed_reason(error)}")
        return [explained(title=str(found.get("name")), label=str(found.get("state")), tone="bad", answer=answer)]


class _Reasons:
    """Why a job is in its state."""

    def __init__(self, document: Document, dispatch: DispatchState) -> None:
        self._job, self._dispatch, self._now = document, dispatch, dispatch.now

    def clauses(self) -> Iterator[str]:
        match self._job["state"]:
            case JobState.PENDING:
                yield from self._waiting()
            case JobState.EXECUTING:
                yield from self._executing()
            case JobState.FAILURE:
                yield from self._failed()
            case JobState.SUCCESS:
                yield f"succeeded at {self._when(self._job['updated'])}"
                yield f"at attempt {job.attempt_of(self._job)}"
            case JobState.CANCELED:
                yield f"canceled at {self._when(self._job['updated'])}, so it is not executed until someone retries it"

    def _executing(self) -> Iterator[str]:
        claim, since = self._job["claim"], self._when(self._job["updated"])
        by = f" by {claim['worker']}" if "worker" in claim else ""
        yield f"being executed{by} since {since}, in its {self._attempt()}"
        until = claim["claimed_until"]
        if until > self._now:
            yield f"its worker's lease is renewed, and ends at {self._when(until)}"
        else:
            yield f"the lease of its worker ended at {self._when(until)}"
            yield self._dispatch.scan()

    def _failed(self) -> Iterator[str]:
        stored = self._job.get("last_error")  # of any type, by another program
        error = "unknown" if stored is None else error_summary(str(stored))
        if "waiting" not in self._job:
            yield f"its {self._attempt()} failed, and it is not retried by itself. Last error: {error}"
            return
        yield f"its {self._attempt()} failed"
        *clauses, last = self._waiting("the next one is")
        yield from clauses
        yield f"{last}. Last error: {error}"

    def _attempt(self) -> str:
        attempt = f"{ordinal(job.attempt_of(self._job))} attempt"
        return f"{attempt} for this due time" if "repetition" in self._job else attempt

    def _waiting(self, subject: str = "") -> Iterator[str]:
        """Yield when it may be started and, if it is due, why it was not."""
        waiting: datetime = self._job["waiting"] if "waiting" in self._job else self._job["due"]
        is_due = waiting <= self._now
        yield f"{subject} due {'since' if is_due else 'at'} {self._when(waiting)}".strip()
        if (pause := job_queue.pauses().get(self._job["name"])) is not None:
            why, name = pause_text(pause, self._now), self._job["name"]
            yield f"its queue is paused{why}: see `queue-manager jobs resume {name}`"
        elif is_due:
            yield self._obstacle()

    def _obstacle(self) -> str:
        name = self._job["name"]
        running = next((one for one in executing_job.find() if one.name == name), None)
        others = job.count_due(name, self._now, limit=MAX_COUNTED_JOBS) - 1
        counted = many(others, "other due job", limit=MAX_COUNTED_JOBS - 1)
        behind = f", with {counted} of its name" if others > 0 else ""
        if running is not None:
            return f"waiting{behind} for the job {shown_id(running.id)}, since jobs of one name run one at a time"
        if self._dispatch.has_no_worker:
            return f"waiting{behind}; no worker consumes the queue {self._dispatch.system.queue}"
        return f"waiting{behind}; {self._dispatch.scan()}"

    def _when(self, moment: datetime) -> str:
        return when(moment, self._now)


def _pending_title(entry: Document, number: int) -> str:
    if "attempt" in entry:
        return f"Attempt {entry['attempt']} was stopped by a shutdown"
    return "Made due" if number else "Stored"


def _entries(document: Document) -> Iterator[TimelineEvent]:
    for number, entry in enumerate(document["history"]):
        attempt = f"Attempt {entry['attempt']}" if "attempt" in entry else "The attempt"
        titles = {
            JobState.PENDING: _pending_title(entry, number),
            JobState.EXECUTING: "Started",
            JobState.SUCCESS: f"{attempt} succeeded",
            JobState.FAILURE: f"{attempt} failed",
            JobState.CANCELED: "Canceled",
        }
        yield TimelineEvent(
            at=typed(entry, "at", datetime),
            event=titles[JobState(entry["state"])],
            worker=entry.get("worker"),
            duration_ms=entry.get("took_ms"),
            error=entry.get("error"),
            task_id=entry.get("run"),
        )
