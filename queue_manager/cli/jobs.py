"""`queue-manager jobs`: run, cancel, retry, remove and list jobs; pause and resume queues.

Guarantee: commands on several jobs report an outcome for each; exit code 1 if one failed. Text of applications reaches
a terminal without control characters or markup.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from models.audit import ActionName
from models.database import Document, id_text, server_now
from models.job import WAITING_STATES, JobState
from queue_manager.cli.audited import audited, echo_undo
from queue_manager.cli.errors import fail, report_errors
from queue_manager.cli.messages_render import (
    MAX_ERROR_LENGTH,
    MAX_PAYLOAD_LENGTH,
    console,
    print_json,
    printable,
    span,
)
from queue_manager.cli.pauses import PauseReason, checked_reason
from queue_manager.core.clock import parse_utc, to_iso
from queue_manager.core.errors import PermanentError
from queue_manager.core.pause import COMMAND_LINE, Pause
from services import job_queues
from services.job_queues import InvalidJob, as_json
from services.job_queues.fields import MAX_DELAY

MAX_JOBS_LISTED = 1_000

jobs = typer.Typer(
    help="Run, cancel, retry, remove and list jobs; pause and resume queues.\n\n"
    "Jobs of one name run one after another. A job is `pending`, then `executing`, then `success`; a `failure` is "
    "retried until it succeeds or is `canceled`.",
    no_args_is_help=True,
)

JobIdArguments = Annotated[list[str], typer.Argument(help="Ids of jobs.", metavar="ID...")]
JobNames = Annotated[list[str], typer.Argument(help="Names of jobs.", metavar="NAME...")]
ApiJsonOption = Annotated[bool, typer.Option("--json", help="Print JSON as in the HTTP API.")]


@jobs.command("list")
def list_jobs(
    name: Annotated[str | None, typer.Option(help="Only jobs of this name.")] = None,
    state: Annotated[str | None, typer.Option(help="Only jobs in this state.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=MAX_JOBS_LISTED, help="Maximum number of jobs.")] = 20,
    before: Annotated[str | None, typer.Option(help="Cursor printed by the previous page.")] = None,
    is_json: ApiJsonOption = False,
) -> None:
    """List jobs, newest first.

    Example: `queue-manager jobs list --name send_invoice --state failure`
    """
    with report_errors(InvalidJob):
        found = job_queues.jobs.list(name=name, state=state, before=before, limit=limit + 1)
        now = server_now()
    shown = found[:limit]
    cursor = id_text(shown[-1]["_id"]) if len(found) > limit else None
    if is_json:
        page = [as_json(job) for job in shown]
        _print({"jobs": page, "cursor": cursor, "server_time": to_iso(now)})
        return
    screen = console()
    screen.print(_table_of_jobs(shown, now) if shown else "no such job")
    if cursor is not None:
        screen.print(Text(f"there are more: --before {shlex.quote(cursor)}"), soft_wrap=True)


@jobs.command()
def show(
    id: Annotated[str, typer.Argument(help="The job's id.", metavar="ID")], is_json: ApiJsonOption = False
) -> None:
    """Show all fields of one job and its history. Times are UTC."""
    with report_errors(InvalidJob):
        job = job_queues.jobs.get(id)
    if is_json:
        _print(as_json(job))
    else:
        _print_job(console(), job)


@jobs.command()
def run(
    name: Annotated[str, typer.Argument(help="The job's name.", metavar="NAME")],
    arguments: Annotated[
        list[str] | None, typer.Argument(help="JSON if it parses as JSON, else a text.", metavar="[ARG...]")
    ] = None,
    at: Annotated[str | None, typer.Option(help="Due time, such as 2026-01-31T09:30:00Z.")] = None,
    delay: Annotated[float | None, typer.Option(help="Seconds until it is due.", metavar="SECONDS")] = None,
    priority: Annotated[int, typer.Option(help="-100 to 100, higher first.")] = 0,
    every: Annotated[float | None, typer.Option(help="Repeat it after so many seconds.", metavar="SECONDS")] = None,
    cron: Annotated[str | None, typer.Option(help="Repeat it at these times, such as '0 3 * * *' (UTC).")] = None,
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
    due_at, wait, period = _moment(at), _delay(delay, "--delay"), _delay(every, "--every")
    with report_errors(InvalidJob), audited("run", system=job_queues.system.name, detail=name) as action:
        job = job_queues.jobs.run(
            name,
            *map(_value, arguments or []),
            at=due_at,
            delay=wait,
            every=period,
            cron=cron,
            priority=priority,
            unique=unique,
            singular=singular,
        )
        action.ids, action.count = ([], 0) if job is None else ([id_text(job["_id"])], 1)
    if job is None:
        fail(f"blocked: there is a job {name} with these arguments already", code=1)
    _print(as_json(job))


@jobs.command()
def cancel(ids: JobIdArguments) -> None:
    """Cancel pending or failed jobs, and ask executing ones to stop; print an outcome for each.

    The process of a job that does not stop is ended after JOBS_GRACE_SECONDS.
    """
    _each(
        "cancel",
        ids,
        job_queues.jobs.cancel,
        lambda job: "canceled" if job["state"] == JobState.CANCELED else "stopping",
    )


@jobs.command()
def retry(ids: JobIdArguments) -> None:
    """Make jobs due now unless they are executing; print an outcome for each."""
    _each("retry", ids, job_queues.jobs.retry, lambda _: "due now")


@jobs.command()
def remove(ids: JobIdArguments) -> None:
    """Delete jobs unless they are executing; print an outcome for each, and how to undo it."""
    _each("remove", ids, job_queues.jobs.remove, lambda _: "removed")


@jobs.command()
def pause(names: JobNames, reason: PauseReason = None) -> None:
    """Pause queues in the whole system: no job of these names is started; an executing one finishes."""
    why = checked_reason(reason)
    change = partial(job_queues.jobs.pause, reason=why, by=COMMAND_LINE)
    _switch("pause", names, change, "paused", reason=why)


@jobs.command()
def resume(names: JobNames) -> None:
    """Resume paused queues."""
    _switch("resume", names, job_queues.jobs.resume, "resumed")


@jobs.command()
def status(is_json: ApiJsonOption = False) -> None:
    """Show the leader, and the jobs of each name by state, executing and due.

    Includes names without jobs that are registered by JOBS_IMPORTS.
    """
    with report_errors(InvalidJob):
        found = job_queues.jobs.status()
        now = server_now()
    if is_json:
        _print({**as_json(found), "server_time": to_iso(now)})
    else:
        _print_status(console(), found, now)


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


def _delay(amount: float | None, option: str) -> timedelta | None:
    if amount is None:
        return None
    maximum = int(MAX_DELAY.total_seconds())
    if not 0 <= amount <= maximum:
        fail(f"{option}: must be 0 to {maximum} seconds", code=2)
    return timedelta(seconds=amount)


# Actions


def _each(
    action: ActionName, ids: Sequence[str], change: Callable[[str], Document], outcome: Callable[[Document], str]
) -> None:
    """Change jobs one by one and print each outcome immediately, because the next change may fail."""
    is_done = True
    for id in ids:
        with report_errors(InvalidJob):
            try:
                text = outcome(_changed(action, id, change))
            except (job_queues.UnknownJob, job_queues.WrongState, job_queues.DuplicateJob) as error:
                text, is_done = str(error), False
        typer.echo(f"{printable(id)}  {printable(text)}")
    sys.exit(0 if is_done else 1)


def _changed(action: ActionName, id: str, change: Callable[..., Document]) -> Document:
    with audited(action, system=job_queues.system.name, ids=[id]) as done:
        if action == "remove" and done.archive is not None:
            change = partial(change, keep=done.archive.keep_jobs)
        before, job = job_queues.jobs.get(id), change(id)
        done.ids, done.count = [id_text(job["_id"])], 1
        if action != "remove":
            done.changed(job_queues.changeable(before), job_queues.changeable(job))
    echo_undo(done)
    return job


def _switch(
    action: ActionName,
    names: Sequence[str],
    change: Callable[[Sequence[str]], None],
    what: str,
    reason: str | None = None,
) -> None:
    selected = {"names": ", ".join(names)} | ({"reason": reason} if reason else {})
    with report_errors(InvalidJob), audited(action, system=job_queues.system.name, filter=selected):
        change(names)
    for name in names:
        typer.echo(f"{name}  {what}")


# Output


def _print(content: Document) -> None:
    print_json(_json_text(content))


def _table_of_jobs(jobs: Sequence[Document], now: datetime) -> Table:
    """Return a table of jobs, with times relative to `now`."""
    table = _table("id", "name", "state", *(numbers := ("priority", "attempts", "due")), "last error", numbers=numbers)
    table.add_column("arguments", overflow="ellipsis", no_wrap=True, ratio=1, style="dim")
    for job in jobs:
        # Any field may be missing, or have any type: another program may have written it.
        known = [job.get(name, "") for name in ("_id", "name", "state", "priority", "attempts")]
        state, due_at = job.get("state"), job.get("due")
        due = _from(due_at, now) if state in WAITING_STATES and isinstance(due_at, datetime) else ""
        error = str(job.get("last_error", ""))[:MAX_ERROR_LENGTH] if state == JobState.FAILURE else ""
        _add(table, *known, due, error, _json_text(as_json(job).get("arguments"))[:MAX_PAYLOAD_LENGTH])
    return table


def _print_job(console: Console, job: Document) -> None:
    """Print a job with one field per line, and its history."""
    shown = as_json(job)
    history = shown.pop("history") if _has_entries(shown.get("history")) else []
    for name, value in shown.items():
        text = value if isinstance(value, str) else _json_text(value)
        console.print(Text.assemble((f"{printable(name):<12}", "bold"), printable(text)), soft_wrap=True)
    console.print(Text("history", "bold"))
    for entry in history:
        text = "  ".join(f"{name} {value}" for name, value in entry.items() if name not in ("at", "state"))
        line = f"  {entry.get('at', '')}  {entry.get('state', '')!s:<9}  {text}"
        console.print(Text(printable(line.rstrip())), soft_wrap=True)


def _has_entries(history: Any) -> bool:
    """Return True if a history, which another program may have written, is a list of documents."""
    return isinstance(history, list) and all(isinstance(entry, dict) for entry in history)


def _print_status(console: Console, status: dict[str, Any], now: datetime) -> None:
    """Print the leader, and a table of the queues."""
    leader = status["leader"]
    if leader is None:
        text = "no leader has dispatched jobs yet: start `celery beat` and workers with QM_JOBS=true"
    else:
        heartbeat, since = _ago(leader["heartbeat"], now), _ago(leader["since"], now)
        text = f"leader of epoch {leader['epoch']}, last heartbeat {heartbeat}, took over {since}"
    console.print(Text(text), soft_wrap=True)
    if others := status["other_documents"]:
        console.print(f"{others} documents that are not jobs, which are ignored; see `queue-manager adopt jobs`")
    if not status["queues"]:
        console.print("no queue")
        return
    states = tuple(state.value for state in JobState)
    table = _table("name", *states, "running", "oldest due", "next due", numbers=states)
    for queue in status["queues"]:
        name = f"{queue['name']} (paused)" if queue["is_paused"] else queue["name"]
        counts = [str(queue["states"][state]) for state in states]
        due = [_from(queue[name], now) if queue[name] else "" for name in ("oldest_due", "next_due")]
        _add(table, name, *counts, _running(queue["running"], now), *due)
    console.print(table)
    for queue in status["queues"]:
        if queue["is_paused"]:
            console.print(printable(f"Paused: {queue['name']} {Pause(**queue['pause'])}"), soft_wrap=True)


def _running(running: Document | None, now: datetime) -> str:
    if running is None:
        return ""
    left = (running["claimed_until"] - now).total_seconds()
    where = f" on {running['worker']}" if "worker" in running else ""
    return f"{running['id']}{where}, lease {f'{left:.0f} s' if left > 0 else 'over'}"


def _table(*titles: str, numbers: Sequence[str]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", expand=True)
    for title in titles:
        is_number = title in numbers
        table.add_column(title, overflow="fold", justify="right" if is_number else "left", no_wrap=is_number)
    return table


def _add(table: Table, *cells: object) -> None:
    table.add_row(*(Text(printable(str(cell))) for cell in cells))


def _from(moment: datetime, now: datetime) -> str:
    left = (moment - now).total_seconds()
    return f"in {span(left)}" if left > 0 else _ago(moment, now)


def _ago(moment: datetime, now: datetime) -> str:
    return f"{span((now - moment).total_seconds())} ago"


def _json_text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
