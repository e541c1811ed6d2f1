"""How `queue-manager jobs` shows jobs: tables, one job with its history, the state of the queues."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from models.database import Document
from models.foreign_job import MAX_FOREIGN_COUNT
from models.job import WAITING_STATES, JobState
from queue_manager.cli.terminal import (
    MAX_ERROR_LENGTH,
    MAX_PAYLOAD_LENGTH,
    print_json,
    print_line,
    print_pauses,
    print_rows,
)
from queue_manager.core.wording import many, rounded, without_traceback
from queue_manager.pauses import PauseState
from services.job_queues import as_json

HIDDEN_STATUS_COLUMNS = ("next due", "canceled", "running", "oldest due", "success", "executing")
"""Columns of the status that a narrow terminal does not show, the least important first."""
JOB_FIELDS = {"id": "_id", "name": "name", "state": "state", "priority": "priority", "attempts": "attempts"}
JOB_NUMBERS = ("priority", "attempts", "due")
HIDDEN_JOB_COLUMNS = ("priority", "attempts", "arguments", "due", "last error", "name", "state")


def print_document(content: Document) -> None:
    print_json(json_text(content))


def print_jobs(jobs: Sequence[Document], now: datetime, *, nothing: str) -> None:
    """Print a table of jobs, with times relative to `now`; `nothing` if there are none."""
    rows = [_job_row(job, now) for job in jobs]
    print_rows(rows, nothing=nothing, numbers=JOB_NUMBERS, rest="arguments", hidden_first=HIDDEN_JOB_COLUMNS)


def _job_row(job: Document, now: datetime) -> dict[str, str]:
    # Any field may be missing, or have any type: another program may have written it.
    known = {title: str(job.get(name, "")) for title, name in JOB_FIELDS.items()}
    state, due_at = job.get("state"), job.get("due")
    due = _from(due_at, now) if state in WAITING_STATES and isinstance(due_at, datetime) else ""
    error = without_traceback(str(job.get("last_error", "")))[:MAX_ERROR_LENGTH] if state == JobState.FAILURE else ""
    arguments = json_text(as_json(job).get("arguments"))[:MAX_PAYLOAD_LENGTH]
    return {**known, "due": due, "last error": error, "arguments": arguments}


def print_job(job: Document) -> None:
    """Print a job with one field per line, and its history."""
    shown = as_json(job)
    history = shown.pop("history") if _has_entries(shown.get("history")) else []
    for name, value in shown.items():
        text = value if isinstance(value, str) else json_text(value)
        print_line((f"{name:<12}", "bold"), text)
    print_line(("history", "bold"))
    for entry in history:
        text = "  ".join(f"{name} {value}" for name, value in entry.items() if name not in ("at", "state"))
        print_line(f"  {entry.get('at', '')}  {entry.get('state', '')!s:<9}  {text}".rstrip())


def _has_entries(history: Any) -> bool:
    """Return True if a history, which another program may have written, is a list of documents."""
    return isinstance(history, list) and all(isinstance(entry, dict) for entry in history)


def print_status(status: dict[str, Any], now: datetime) -> None:
    """Print the leader, and a table of the queues."""
    leader = status["leader"]
    if leader is None:
        text = "no leader has dispatched jobs yet: start `celery -A tasks beat` and workers with QM_JOBS=true"
    else:
        heartbeat, since = _ago(leader["heartbeat"], now), _ago(leader["since"], now)
        text = f"leader: epoch {leader['epoch']}, took over {since}, last heartbeat {heartbeat}"
    print_line(text)
    if others := status["other_documents"]:
        documents = many(others, "document", limit=MAX_FOREIGN_COUNT)
        print_line(f"ignored: {documents} that another program stored; see `queue-manager adopt jobs`")
    rows = [_status_row(queue, now) for queue in status["queues"]]
    print_rows(rows, nothing="no queue", numbers=[*JobState], hidden_first=HIDDEN_STATUS_COLUMNS)
    print_pauses({queue["name"]: PauseState(**queue["pause"]) for queue in status["queues"] if queue["is_paused"]})


def _status_row(queue: Document, now: datetime) -> dict[str, str]:
    """Return the cells of a queue by their titles."""
    name = f"{queue['name']} (paused)" if queue["is_paused"] else queue["name"]
    counts = {state.value: str(queue["states"][state]) for state in JobState}
    oldest, following = (_from(queue[one], now) if queue[one] else "" for one in ("oldest_due", "next_due"))
    running = _running(queue["running"], now)
    return {"name": name, **counts, "running": running, "oldest due": oldest, "next due": following}


def _running(running: Document | None, now: datetime) -> str:
    if running is None:
        return ""
    left = (running["claimed_until"] - now).total_seconds()
    where = f" on {running['worker']}" if "worker" in running else ""
    return f"{running['id']}{where}, lease {f'{left:.0f} s' if left > 0 else 'over'}"


def _from(moment: datetime, now: datetime) -> str:
    return f"in {rounded(moment - now, least=1)}" if moment > now else _ago(moment, now)


def _ago(moment: datetime, now: datetime) -> str:
    return f"{rounded(now - moment, least=1)} ago"


def json_text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
