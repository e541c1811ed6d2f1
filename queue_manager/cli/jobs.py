"""`queue-manager jobs`: list, export and show jobs; the state and latency of their queues.

`job_changes` has the commands that change jobs.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from typing import Annotated, Any

import typer

from models.database import Document, server_now
from models.foreign_job import MAX_FOREIGN_COUNT
from models.job import WAITING_STATES, JobState, is_job
from models.job import names as stored_names
from queue_manager.cli.completion import complete_job_state
from queue_manager.cli.job_changes import OneJobName, cancel, clear, pause, remove, reschedule, resume, retry, run
from queue_manager.cli.terminal import (
    MAX_ERROR_LENGTH,
    MAX_PAYLOAD_LENGTH,
    AnswerJsonOption,
    CursorOption,
    FormatOption,
    every_page,
    export_rows,
    print_answer,
    print_cursor,
    print_document,
    print_line,
    print_pauses,
    print_rows,
    print_table,
)
from queue_manager.core.errors import ConfigurationError
from queue_manager.core.wording import did_you_mean, many, rounded, without_traceback
from queue_manager.operations.job_schemas import job_as_json
from queue_manager.operations.jobs import JobList, jobs_status, read_latency
from queue_manager.pauses import PauseState
from services import job_queues
from services.job_queues import as_json
from services.job_queues.fields import checked_state

MAX_JOBS_LISTED = 1_000
EXPORT_PAGE_SIZE = 200
CSV_JOB_FIELDS = (
    *("_id", "name", "arguments", "state", "due", "priority", "created", "updated", "attempts", "last_error"),
    *("repetition", "progress", "losses"),
)
HIDDEN_STATUS_COLUMNS = ("next due", "canceled", "running", "oldest due", "success", "executing")
"""Columns of the status that a narrow terminal does not show, the least important first."""
JOB_FIELDS = {"id": "_id", "name": "name", "state": "state", "priority": "priority", "attempts": "attempts"}
JOB_NUMBERS = ("priority", "attempts", "due")
HIDDEN_JOB_COLUMNS = ("priority", "attempts", "arguments", "due", "last error", "name", "state")

jobs = typer.Typer(
    help="Run, list, reschedule, retry, cancel and delete jobs.\n\n"
    "Jobs of one name run one after another. A job is `pending`, then `executing`, then `success`; a `failure` is "
    "retried until it succeeds or is `canceled`.",
    no_args_is_help=True,
)

OneJobState = Annotated[
    str | None, typer.Option("--state", help="Only jobs in this state.", autocompletion=complete_job_state)
]
JobSearch = Annotated[
    str | None, typer.Option("--search", help="Only jobs with this text in arguments, name or last error.")
]
ApiJsonOption = Annotated[bool, typer.Option("--json", help="Print JSON as in the HTTP API.")]


@jobs.command("list")
def list_jobs(
    name: OneJobName = None,
    state: OneJobState = None,
    search: JobSearch = None,
    sort: Annotated[
        str | None, typer.Option(help="created (the default), due, updated, priority or attempts.", metavar="FIELD")
    ] = None,
    is_ascending: Annotated[bool, typer.Option("--ascending", help="The lowest first instead of the highest.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=MAX_JOBS_LISTED, help="Maximum number of jobs.")] = 20,
    cursor: CursorOption = None,
    is_json: ApiJsonOption = False,
) -> None:
    """List jobs, newest first.

    A search stops after a short time and prints the cursor to continue.

    Example: `queue-manager jobs list --name send_invoice --state failure`
    """
    listed = JobList(
        name=name, state=_state(state), search=search, sort=sort or "created", is_descending=not is_ascending
    )
    page = listed.page(cursor, limit)
    if is_json:
        print_document(listed.answer(page))
        return
    now = server_now()
    about_name = "" if name is None or page.jobs else _about_unknown(name)
    _print_jobs(page.jobs, now, nothing=f"no jobs{about_name}")
    print_cursor(page.cursor)


@jobs.command("export")
def export_jobs(
    name: OneJobName = None, state: OneJobState = None, search: JobSearch = None, form: FormatOption = "jsonl"
) -> None:
    """Print all jobs that match, as JSON lines or CSV.

    The newest come first.

    Example: `queue-manager jobs export --state failure --format csv > failed.csv`
    """
    listed = JobList(name=name, state=_state(state), search=search)
    pages = every_page(lambda cursor: listed.page(cursor, EXPORT_PAGE_SIZE))
    rows = (_json_text(job_as_json(job)) for page in pages for job in page.jobs)
    export_rows(rows, form, columns=CSV_JOB_FIELDS)


@jobs.command()
def show(
    id: Annotated[str, typer.Argument(help="The job's id.", metavar="ID")], is_json: ApiJsonOption = False
) -> None:
    """Show all fields of one job and its history. Times are UTC.

    Example: `queue-manager jobs show 6b01475714001c3a87bb78b8`
    """
    job = job_queues.jobs.get(id)
    if is_json:
        print_document(job_as_json(job) if is_job(job) else as_json(job))
    else:
        _print_job(job)


for _command in (run, cancel, retry, remove, reschedule, clear, pause, resume):
    jobs.command()(_command)


@jobs.command()
def status(is_json: ApiJsonOption = False) -> None:
    """Show the leader, and the jobs of each name by state.

    Also shows which job is executing and when the next one is due. Includes names without jobs that are registered by
    JOBS_IMPORTS.

    Example: `queue-manager jobs status --json`
    """
    if is_json:
        print_document(jobs_status())
        return
    found = job_queues.jobs.status()
    now = server_now()
    _print_status(found, now)


@jobs.command()
def latency(is_json: AnswerJsonOption = False) -> None:
    """Show how long jobs waited and ran in 24 hours, by name.

    Example: `queue-manager jobs latency --json`
    """
    found = read_latency()
    if is_json:
        print_answer(found)
        return
    rows = [
        {
            "name": name,
            "done": one.run.count,
            "wait_p95_ms": one.wait and one.wait.p95_ms,
            "run_p95_ms": one.run.p95_ms,
        }
        for name, one in found.names.items()
        if one.run is not None
    ]
    print_table(rows, ("name", "done", "wait_p95_ms", "run_p95_ms"), nothing="no job was done in the last 24 hours")


# Lists


def _state(state: str | None) -> JobState | None:
    return None if state is None else checked_state(state)


def _about_unknown(name: str) -> str:
    """Return what to print about a name that has no job in any state, and no function; empty for others."""
    known = set(stored_names())
    with suppress(ConfigurationError):  # jobs can be listed while an import fails
        known |= set(job_queues.registry.names())
    return "" if name in known else f": no job has the name {name!r}{did_you_mean(name, known)}"


# Output


def _print_jobs(jobs: Sequence[Document], now: datetime, *, nothing: str) -> None:
    """Print a table of jobs, with times relative to `now`; `nothing` if there are none."""
    rows = [_job_row(job, now) for job in jobs]
    print_rows(rows, nothing=nothing, numbers=JOB_NUMBERS, rest="arguments", hidden_first=HIDDEN_JOB_COLUMNS)


def _job_row(job: Document, now: datetime) -> dict[str, str]:
    # Any field may be missing, or have any type: another program may have written it.
    known = {title: str(job.get(name, "")) for title, name in JOB_FIELDS.items()}
    state, due_at = job.get("state"), job.get("due")
    due = _from(due_at, now) if state in WAITING_STATES and isinstance(due_at, datetime) else ""
    error = without_traceback(str(job.get("last_error", "")))[:MAX_ERROR_LENGTH] if state == JobState.FAILURE else ""
    arguments = _json_text(as_json(job).get("arguments"))[:MAX_PAYLOAD_LENGTH]
    return {**known, "due": due, "last error": error, "arguments": arguments}


def _print_job(job: Document) -> None:
    """Print a job with one field per line, and its history."""
    shown = as_json(job)
    history = shown.pop("history") if _has_entries(shown.get("history")) else []
    for name, value in shown.items():
        text = value if isinstance(value, str) else _json_text(value)
        print_line((f"{name:<12}", "bold"), text)
    print_line(("history", "bold"))
    for entry in history:
        text = "  ".join(f"{name} {value}" for name, value in entry.items() if name not in ("at", "state"))
        print_line(f"  {entry.get('at', '')}  {entry.get('state', '')!s:<9}  {text}".rstrip())


def _has_entries(history: Any) -> bool:
    """Return True if a history, which another program may have written, is a list of documents."""
    return isinstance(history, list) and all(isinstance(entry, dict) for entry in history)


def _print_status(status: dict[str, Any], now: datetime) -> None:
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


def _json_text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
