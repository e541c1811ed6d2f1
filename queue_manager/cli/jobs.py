"""`queue-manager jobs`: run, cancel, retry and list jobs; pause and resume queues.

Guarantee: commands on several jobs report an outcome for each; exit code 1 if one failed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Annotated, Any, NoReturn

import typer

from models.database import server_now
from queue_manager.cli.errors import fail, report_errors
from queue_manager.cli.jobs_render import print_job, print_status, table_of
from queue_manager.cli.messages_render import console, print_json, printable
from queue_manager.core.clock import parse_utc, to_iso
from queue_manager.core.errors import PermanentError
from services import job_queues
from services.job_queues import InvalidJob, as_json
from services.job_queues.fields import MAX_DELAY

MAX_PAGE_SIZE = 1_000

jobs = typer.Typer(
    help="Run, cancel, retry and list jobs; pause and resume queues.\n\n"
    "Jobs of one name run one after another. A job is `pending`, then `executing`, then `success`; a `failure` is "
    "retried until it succeeds or is `canceled`.",
    no_args_is_help=True,
)

Ids = Annotated[list[str], typer.Argument(help="Ids of jobs.", metavar="ID...")]
Names = Annotated[list[str], typer.Argument(help="Names of jobs.", metavar="NAME...")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON as in the HTTP API.")]


@jobs.command("list")
def list_jobs(
    name: Annotated[str | None, typer.Option(help="Only jobs of this name.")] = None,
    state: Annotated[str | None, typer.Option(help="Only jobs in this state.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=MAX_PAGE_SIZE, help="Maximum number of jobs.")] = 20,
    before: Annotated[str | None, typer.Option(help="Cursor printed by the previous page.")] = None,
    as_json: JsonOption = False,
) -> None:
    """List jobs, newest first.

    Example: `queue-manager jobs list --name send_invoice --state failure`
    """
    with report_errors(InvalidJob):
        found = job_queues.jobs.list(name=name, state=state, before=before, limit=limit + 1)
        now = server_now()
    shown = found[:limit]
    cursor = str(shown[-1]["_id"]) if len(found) > limit else None
    if as_json:
        page = [job_queues.as_json(job) for job in shown]
        _print({"jobs": page, "cursor": cursor, "server_time": to_iso(now)})
        return
    screen = console()
    screen.print(table_of(shown, now) if shown else "no such job")
    if cursor is not None:
        screen.print(f"there are more: --before {cursor}", soft_wrap=True)


@jobs.command()
def show(id: Annotated[str, typer.Argument(help="The job's id.", metavar="ID")], as_json: JsonOption = False) -> None:
    """Show all fields of one job and its history. Times are UTC."""
    with report_errors(InvalidJob):
        job = job_queues.jobs.get(id)
    if as_json:
        _print(job_queues.as_json(job))
    else:
        print_job(console(), job)


@jobs.command()
def run(
    name: Annotated[str, typer.Argument(help="The job's name.", metavar="NAME")],
    arguments: Annotated[
        list[str] | None, typer.Argument(help="JSON if it parses as JSON, else a text.", metavar="[ARG...]")
    ] = None,
    at: Annotated[str | None, typer.Option(help="Due time, such as 2026-01-31T09:30:00Z.")] = None,
    delay: Annotated[float | None, typer.Option(help="Seconds until it is due.", metavar="SECONDS")] = None,
    priority: Annotated[int, typer.Option(help="-100 to 100, higher first.")] = 0,
    unique: Annotated[
        bool, typer.Option("--unique", help="Only if no job with this name and arguments exists, in any state.")
    ] = False,
    singular: Annotated[
        bool, typer.Option("--singular", help="Only if no such job is pending, failed or executing.")
    ] = False,
) -> None:
    """Store a job and print it as JSON; exit code 1 if a unique or singular job already exists.

    Workers run the job. Put negative numbers after `--`.

    Examples: `queue-manager jobs run send_invoice 42`, `queue-manager jobs run report '{"year": 2026}' --delay 60`
    """
    with report_errors(InvalidJob):
        job = job_queues.jobs.run(
            name,
            *map(_value, arguments or []),
            at=_moment(at),
            delay=_delay(delay),
            priority=priority,
            unique=unique,
            singular=singular,
        )
    if job is None:
        fail(f"blocked: there is a job {name} with these arguments already", code=1)
    _print(as_json(job))


@jobs.command()
def cancel(ids: Ids) -> None:
    """Cancel pending or failed jobs; print an outcome for each."""
    _each(ids, job_queues.jobs.cancel, "canceled")


@jobs.command()
def retry(ids: Ids) -> None:
    """Make jobs due now unless they are executing; print an outcome for each."""
    _each(ids, job_queues.jobs.retry, "due now")


@jobs.command()
def pause(names: Names) -> None:
    """Pause queues in the whole system: no job of these names is started; an executing one finishes."""
    _switch(names, job_queues.jobs.pause, "paused")


@jobs.command()
def resume(names: Names) -> None:
    """Resume paused queues."""
    _switch(names, job_queues.jobs.resume, "resumed")


@jobs.command()
def status(as_json: JsonOption = False) -> None:
    """Show the leader, and the jobs of each name by state, executing and due.

    Includes names without jobs that are registered by JOBS_IMPORTS.
    """
    with report_errors(InvalidJob):
        found = job_queues.jobs.status()
        now = server_now()
    if as_json:
        _print({**job_queues.as_json(found), "server_time": to_iso(now)})
    else:
        print_status(console(), found, now)


# Arguments


def _value(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return text


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)  # so that NaN is a text


def _moment(text: str | None) -> datetime | None:
    try:
        return parse_utc(text, field="--at")
    except PermanentError as error:
        fail(str(error), code=2)


def _delay(amount: float | None) -> timedelta | None:
    if amount is None:
        return None
    maximum = int(MAX_DELAY.total_seconds())
    if not 0 <= amount <= maximum:
        fail(f"--delay: must be 0 to {maximum} seconds", code=2)
    return timedelta(seconds=amount)


# Actions


def _each(ids: Sequence[str], change: Callable[[str], Any], outcome: str) -> None:
    """Change jobs one by one and print each outcome immediately, because the next change may fail."""
    is_done = True
    for id in ids:
        with report_errors(InvalidJob):
            try:
                change(id)
                text = outcome
            except (job_queues.UnknownJob, job_queues.WrongState, job_queues.DuplicateJob) as error:
                text, is_done = str(error), False
        typer.echo(f"{printable(id)}  {printable(text)}")
    sys.exit(0 if is_done else 1)


def _switch(names: Sequence[str], change: Callable[[Sequence[str]], None], what: str) -> None:
    with report_errors(InvalidJob):
        change(names)
    for name in names:
        typer.echo(f"{name}  {what}")


def _print(content: dict[str, Any]) -> None:
    print_json(json.dumps(content, ensure_ascii=False))


# Errors
