"""Adoption of jobs that the JavaScript package stored in `jobs_data`: they become jobs like any other.

Guarantee: id, name, arguments, due time and data stay as they are. Nothing is written for a document that cannot be
adopted. An adoption can be repeated, and can run next to workers.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from math import isfinite
from typing import Any

from bson import ObjectId

from models import foreign_job
from models.database import Document, server_now
from models.document_id import shown_id
from models.foreign_job import AdoptedJob
from models.job import FINISHED_STATES, JOBS_COLLECTION, MAX_HISTORY, WAITING_STATES, JobState
from queue_manager.core.clock import EPOCH, truncate
from queue_manager.core.wording import many
from services.job_queues.fields import (
    MAX_JOB_ID_LENGTH,
    MAX_PRIORITY,
    STATE_ALIASES,
    InvalidJob,
    checked_arguments,
    checked_name,
    checked_state,
    job_key,
    json_value,
    search_text,
)
from services.job_queues.job_run import MAX_STORED_ERROR_LENGTH

ADOPTION_BATCH_SIZE = 500
MAX_REJECTIONS_LISTED = 20
UNKNOWN_ERROR = "The application that stored the job gave no reason"
INTERRUPTED_ERROR = "The job was executing when it was adopted"


@dataclass(kw_only=True)
class Adoption:
    """Result of an adoption, or of a dry run."""

    jobs: Counter[tuple[str, str, JobState]] = field(default_factory=Counter)
    """Number of documents by name, stored state, and state as a job."""
    rejected: int = 0
    rejection_reasons: dict[str, str] = field(default_factory=dict)
    """Reasons by id, of the first `MAX_REJECTIONS_LISTED` documents that cannot be adopted."""
    adopted: int = 0
    """Number of documents that were changed; 0 after a dry run."""

    def reject(self, document: Document, error: InvalidJob) -> None:
        self.rejected += 1
        if len(self.rejection_reasons) < MAX_REJECTIONS_LISTED:
            self.rejection_reasons[shown_id(document["_id"])] = str(error)


def adoption_notes() -> list[str]:
    """Return a line about documents that could be adopted, for `queue-manager adopt`."""
    if not (found := foreign_job.count_unindexed()):
        return []
    what = many(found, "document", limit=foreign_job.MAX_FOREIGN_COUNT)
    return [f"{what} in {JOBS_COLLECTION} of another program; `queue-manager adopt jobs` makes jobs of them"]


def adopt(
    names: Sequence[str] = (), *, is_dry_run: bool, on_batch: Callable[[Adoption], object] | None = None
) -> Adoption:
    """Make the documents of the JavaScript package jobs, or only report what would be done.

    Args:
        names: those of the jobs; none means all.
        on_batch: called with the result so far after each batch that was adopted.
    """
    result, now = Adoption(), server_now()
    documents = foreign_job.walk(names, batch=ADOPTION_BATCH_SIZE)
    while batch := list(islice(documents, ADOPTION_BATCH_SIZE)):
        found = list(_adoptable(batch, now, result))
        if not is_dry_run:
            result.adopted += foreign_job.adopt(found)
            if on_batch is not None:
                on_batch(result)
    return result


def _adoptable(batch: list[Document], now: datetime, result: Adoption) -> Iterator[AdoptedJob]:
    for document in batch:
        try:
            fields = _as_job(document, now)
        except InvalidJob as error:
            result.reject(document, error)
            continue
        result.jobs[document["name"], document["state"], fields["state"]] += 1
        yield AdoptedJob(document=document, fields=fields)


def _as_job(document: Document, now: datetime) -> Document:
    """Return the fields of the job. Raises `InvalidJob`: the document cannot be adopted.

    A failed job waits for a retry or the next takeover, as a job does that is not retried automatically.
    """
    _check_id(document["_id"])
    name, stored_state = checked_name(document.get("name")), checked_state(document.get("state"))
    arguments = document.get("arguments") or []
    if not isinstance(arguments, list):
        raise InvalidJob("arguments", "must be a list")
    history = list(_history(document.get("history")))
    state = stored_state
    if stored_state is JobState.EXECUTING:
        state = JobState.FAILURE
        history.append({"at": now, "state": state, "error": INTERRUPTED_ERROR})
    due = _due(document, now, is_required=state in WAITING_STATES)
    created = _moment(document.get("created")) or due
    fields = {
        "arguments": checked_arguments(arguments),
        "state": state,
        "priority": _priority(document.get("priority")),
        "due": due,
        "created": created,
        "updated": now,
        "attempts": sum(entry["state"] in (JobState.SUCCESS, JobState.FAILURE) for entry in history),
        "key": job_key(name, arguments),
        "text": search_text(arguments),
        "history": history[-MAX_HISTORY:] or [{"at": created, "state": state}],
    }
    if state is JobState.PENDING:
        fields["waiting"] = due
    if state in FINISHED_STATES:
        fields["uncounted"] = True
    if state is JobState.FAILURE:
        fields["last_error"] = next((one["error"] for one in reversed(history) if "error" in one), UNKNOWN_ERROR)
    return fields


def _check_id(id: Any) -> None:
    is_text = isinstance(id, str) and id.isprintable() and len(id) <= MAX_JOB_ID_LENGTH and "/" not in id
    if not isinstance(id, ObjectId) and not (is_text and id.strip(".")):
        raise InvalidJob(
            "_id", f"must be an ObjectId, or a printable string of 1 to {MAX_JOB_ID_LENGTH} characters without /"
        )


def _due(document: Document, now: datetime, *, is_required: bool) -> datetime:
    due = _moment(document.get("due"))
    if due is None and is_required:
        raise InvalidJob("due", "must be a date after 1970")
    return due or _moment(document.get("created")) or now


def _moment(stored: Any) -> datetime | None:
    return truncate(stored) if isinstance(stored, datetime) and stored >= EPOCH else None


def _priority(stored: Any) -> int:
    is_number = isinstance(stored, int | float) and isfinite(stored)
    return max(-MAX_PRIORITY, min(MAX_PRIORITY, round(stored))) if is_number else 0


def _history(stored: Any) -> Iterator[Document]:
    """Yield the entries, with `at`, `state` and `error` as a job has them, and their other fields."""
    for entry in stored if isinstance(stored, list) else []:
        at = _moment(entry.get("date")) if isinstance(entry, dict) else None
        state = entry.get("state") if at is not None else None
        if isinstance(state, str) and (state in STATE_ALIASES or state in [*JobState]):
            error = _error_text(entry) if state == JobState.FAILURE else {}
            yield {**entry, "at": at, "state": checked_state(state), **error}


def _error_text(entry: Document) -> Document:
    error = entry.get("error") or entry.get("result") or UNKNOWN_ERROR
    text = error if isinstance(error, str) else json.dumps(json_value(error), ensure_ascii=False)
    return {"error": text[:MAX_STORED_ERROR_LENGTH]}
