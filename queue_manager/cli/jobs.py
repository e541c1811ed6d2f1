"""`queue-manager jobs`: list, export and show jobs; the state and latency of their queues.

`job_changes` has the commands that change jobs.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated

import typer

from models.database import server_now
from models.job import JobState, is_job
from models.job import names as stored_names
from queue_manager.cli.completion import complete_job_state
from queue_manager.cli.job_changes import OneJobName, cancel, clear, pause, remove, reschedule, resume, retry, run
from queue_manager.cli.jobs_render import json_text, print_document, print_job, print_jobs, print_status
from queue_manager.cli.terminal import (
    AnswerJsonOption,
    CursorOption,
    FormatOption,
    every_page,
    export_rows,
    print_answer,
    print_cursor,
    print_table,
)
from queue_manager.core.errors import ConfigurationError
from queue_manager.core.wording import did_you_mean
from queue_manager.operations.job_schemas import job_as_json
from queue_manager.operations.jobs import JobList, jobs_status, read_latency
from services import job_queues
from services.job_queues import as_json
from services.job_queues.fields import checked_state

MAX_JOBS_LISTED = 1_000
EXPORT_PAGE_SIZE = 200
CSV_JOB_FIELDS = (
    *("_id", "name", "arguments", "state", "due", "priority", "created", "updated", "attempts", "last_error"),
    *("repetition", "progress", "losses"),
)

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
    print_jobs(page.jobs, now, nothing=f"no jobs{about_name}")
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
    rows = (json_text(job_as_json(job)) for page in pages for job in page.jobs)
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
        print_job(job)


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
    print_status(found, now)


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
