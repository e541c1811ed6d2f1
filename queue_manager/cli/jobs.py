"""`queue-manager jobs`: run, reschedule, cancel, retry, remove and list jobs; pause, resume and clear queues.

Guarantee: commands on several jobs report an outcome for each; exit code 1 if one failed. Text of applications reaches
a terminal without control characters or markup.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from models.audit import ActionName
from models.database import Document, id_text, server_now
from models.job import WAITING_STATES, JobState
from queue_manager.cli.audited import audited, current_actor, echo_undo
from queue_manager.cli.completion import complete_job_name, complete_job_state
from queue_manager.cli.confirmation import YesOption, confirm_deletion
from queue_manager.cli.errors import fail, report_errors
from queue_manager.cli.lists import (
    AnswerJsonOption,
    CursorOption,
    FormatOption,
    export_rows,
    print_answer,
    print_cursor,
    print_table,
)
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
from queue_manager.web.http.requests import validated
from services import job_queues
from services.job_queues import as_json
from services.job_queues.fields import MAX_DELAY, checked_state

if TYPE_CHECKING:
    from queue_manager.web.routes.jobs.endpoints import JobList

MAX_JOBS_LISTED = 1_000
EXPORT_PAGE_SIZE = 200
ALL_NAMES = "all names"
CSV_JOB_FIELDS = (
    *("_id", "name", "arguments", "state", "due", "priority", "created", "updated", "attempts", "last_error"),
    *("repetition", "progress", "losses"),
)

jobs = typer.Typer(
    help="Run, reschedule, cancel, retry, remove and list jobs; pause, resume and clear queues.\n\n"
    "Jobs of one name run one after another. A job is `pending`, then `executing`, then `success`; a `failure` is "
    "retried until it succeeds or is `canceled`.",
    no_args_is_help=True,
)

OneJobName = Annotated[
    str | None, typer.Option("--name", help="Only jobs of this name.", autocompletion=complete_job_name)
]
OneJobState = Annotated[
    str | None, typer.Option("--state", help="Only jobs in this state.", autocompletion=complete_job_state)
]
JobSearch = Annotated[
    str | None, typer.Option("--search", help="Only jobs with this text in arguments, name or last error.")
]
JobIdArguments = Annotated[list[str], typer.Argument(help="Ids of jobs.", metavar="ID...")]
JobNames = Annotated[
    list[str], typer.Argument(help="Names of jobs.", metavar="NAME...", autocompletion=complete_job_name)
]
DueTime = Annotated[str | None, typer.Option(help="Due time, such as 2026-01-31T09:30:00Z.")]
DueDelay = Annotated[float | None, typer.Option(help="Seconds until it is due.", metavar="SECONDS")]
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
    with report_errors():
        listed = _job_list(name, state, search, sort, is_descending=not is_ascending)
        page = listed.page(cursor, limit)
        next_cursor, now = listed.next_cursor(page), server_now()
    if is_json:
        shown = {"jobs": [as_json(job) for job in page.jobs], "cursor": next_cursor, "is_partial": page.is_partial}
        _print({**shown, "server_time": to_iso(now)})
        return
    console().print(_table_of_jobs(page.jobs, now) if page.jobs else "no such job")
    print_cursor(next_cursor)


@jobs.command("export")
def export_jobs(
    name: OneJobName = None, state: OneJobState = None, search: JobSearch = None, form: FormatOption = "jsonl"
) -> None:
    """Print all jobs that match, newest first, as JSON lines or CSV.

    Example: `queue-manager jobs export --state failure --format csv > failed.csv`
    """
    with report_errors():
        listed = _job_list(name, state, search, None, is_descending=True)
        export_rows(_exported(listed), form, columns=CSV_JOB_FIELDS)


@jobs.command()
def show(
    id: Annotated[str, typer.Argument(help="The job's id.", metavar="ID")], is_json: ApiJsonOption = False
) -> None:
    """Show all fields of one job and its history. Times are UTC.

    Example: `queue-manager jobs show 6b01475714001c3a87bb78b8`
    """
    with report_errors():
        job = job_queues.jobs.get(id)
    if is_json:
        _print(as_json(job))
    else:
        _print_job(console(), job)


@jobs.command()
def run(
    name: Annotated[str, typer.Argument(help="The job's name.", metavar="NAME", autocompletion=complete_job_name)],
    arguments: Annotated[
        list[str] | None, typer.Argument(help="JSON if it parses as JSON, else a text.", metavar="[ARG...]")
    ] = None,
    at: DueTime = None,
    delay: DueDelay = None,
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
    with report_errors(), audited("run", system=job_queues.system.name, detail=name) as action:
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

    Example: `queue-manager jobs cancel 6b01475714001c3a87bb78b8`
    """
    _each(
        "cancel",
        ids,
        job_queues.jobs.cancel,
        lambda job: "canceled" if job["state"] == JobState.CANCELED else "stopping",
    )


@jobs.command()
def retry(ids: JobIdArguments) -> None:
    """Make jobs due now unless they are executing; print an outcome for each.

    Example: `queue-manager jobs retry 6b01475714001c3a87bb78b8`
    """
    _each("retry", ids, job_queues.jobs.retry, lambda _: "due now")


@jobs.command()
def remove(ids: JobIdArguments) -> None:
    """Delete jobs unless they are executing; print an outcome for each, and how to undo it.

    Example: `queue-manager jobs remove 6b01475714001c3a87bb78b8`
    """
    _each("remove", ids, job_queues.jobs.remove, lambda _: "removed")


@jobs.command()
def reschedule(
    ids: JobIdArguments,
    at: DueTime = None,
    delay: DueDelay = None,
    priority: Annotated[int | None, typer.Option(help="-100 to 100, higher first.")] = None,
) -> None:
    """Change the due time or the priority of jobs that are pending, failed or canceled; print an outcome for each.

    Without `--at` and `--delay` the due time is kept.

    Example: `queue-manager jobs reschedule 6b01475714001c3a87bb78b8 --delay 3600 --priority 5`
    """
    if at is None and delay is None and priority is None:
        fail("give --at, --delay or --priority", code=2)
    change = partial(job_queues.jobs.reschedule, at=_moment(at), delay=_delay(delay, "--delay"), priority=priority)
    _each("reschedule", ids, change, lambda job: f"due {to_iso(job['due'])}, priority {job['priority']}")


@jobs.command()
def clear(
    states: Annotated[
        list[str],
        typer.Argument(
            help="pending, success, failure or canceled.", metavar="STATE...", autocompletion=complete_job_state
        ),
    ],
    name: OneJobName = None,
    yes: YesOption = False,
) -> None:
    """Delete the jobs in some states, of one name or of all, after confirmation.

    Above 1,000 jobs, the name (`all names` without `--name`) must be typed. Can be undone for 10 minutes.

    Example: `queue-manager jobs clear success canceled --name send_invoice`
    """
    from queue_manager.web.routes.jobs.endpoints import clear as clear_jobs
    from queue_manager.web.routes.jobs.schemas import JobsToDelete

    with report_errors():
        body = validated(JobsToDelete, {"states": states, "name": name})
        count = sum(job_queues.jobs.count(name=name, state=checked_state(state)) for state in dict.fromkeys(states))
        of = name or ALL_NAMES
        question = f"Delete {count:,} job{'' if count == 1 else 's'} of {of} in the state {' or '.join(states)}?"
        confirm_deletion(question, count=count, name=of, yes=yes)
        answer = clear_jobs(body, current_actor())
    typer.echo(f"{answer.deleted} deleted")
    echo_undo(answer.undo)


@jobs.command()
def pause(names: JobNames, reason: PauseReason = None) -> None:
    """Pause queues in the whole system: no job of these names is started; an executing one finishes.

    Example: `queue-manager jobs pause send_invoice --reason "the mail provider is down"`
    """
    why = checked_reason(reason)
    change = partial(job_queues.jobs.pause, reason=why, by=COMMAND_LINE)
    _switch("pause", names, change, "paused", reason=why)


@jobs.command()
def resume(names: JobNames) -> None:
    """Resume paused queues.

    Example: `queue-manager jobs resume send_invoice`
    """
    _switch("resume", names, job_queues.jobs.resume, "resumed")


@jobs.command()
def status(is_json: ApiJsonOption = False) -> None:
    """Show the leader, and the jobs of each name by state, executing and due.

    Includes names without jobs that are registered by JOBS_IMPORTS.

    Example: `queue-manager jobs status --json`
    """
    with report_errors():
        found = job_queues.jobs.status()
        now = server_now()
    if is_json:
        _print({**as_json(found), "server_time": to_iso(now)})
    else:
        _print_status(console(), found, now)


@jobs.command()
def latency(is_json: AnswerJsonOption = False) -> None:
    """Show how long the jobs of each name waited and ran in the last 24 hours, in milliseconds.

    Example: `queue-manager jobs latency --json`
    """
    from queue_manager.web.routes.jobs.endpoints import latency as read_latency

    with report_errors():
        found = read_latency()
    if is_json:
        print_answer(found)
        return
    rows = [
        SimpleNamespace(name=name, done=one.run.count, wait_p95=one.wait and one.wait.p95_ms, run_p95=one.run.p95_ms)
        for name, one in found.names.items()
        if one.run is not None
    ]
    print_table(rows, ("name", "done", "wait_p95", "run_p95"), nothing="no job was done in the last 24 hours")


# Lists


def _job_list(
    name: str | None, state: str | None, search: str | None, sort: str | None, *, is_descending: bool
) -> JobList:
    from queue_manager.web.routes.jobs.endpoints import JobList  # imported here, because it takes a second

    wanted = None if state is None else checked_state(state)
    return JobList(name=name, state=wanted, search=search, sort=sort or "created", is_descending=is_descending)


def _exported(listed: JobList) -> Iterator[str]:
    cursor: str | None = None
    while True:
        page = listed.page(cursor, EXPORT_PAGE_SIZE)
        yield from (_json_text(as_json(job)) for job in page.jobs)
        if (cursor := listed.next_cursor(page)) is None:
            return


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
        undo = None
        with report_errors():
            try:
                job, undo = _changed(action, id, change)
                text = outcome(job)
            except (job_queues.UnknownJob, job_queues.WrongState, job_queues.DuplicateJob) as error:
                text, is_done = str(error), False
        typer.echo(f"{printable(id)}  {printable(text)}")
        echo_undo(undo)
    sys.exit(0 if is_done else 1)


def _changed(action: ActionName, id: str, change: Callable[..., Document]) -> tuple[Document, str | None]:
    """Return the job as it is now, and the id by which the change can be undone, if it can be."""
    with audited(action, system=job_queues.system.name, ids=[id]) as done:
        if action == "remove" and done.archive is not None:
            change = partial(change, keep=done.archive.keep_jobs)
        before, job = job_queues.jobs.get(id), change(id)
        done.ids, done.count = [id_text(job["_id"])], 1
        if action != "remove":
            done.changed(job_queues.changeable(before), job_queues.changeable(job))
    return job, done.undo


def _switch(
    action: ActionName,
    names: Sequence[str],
    change: Callable[[Sequence[str]], None],
    what: str,
    reason: str | None = None,
) -> None:
    selected = {"names": ", ".join(names)} | ({"reason": reason} if reason else {})
    with report_errors(), audited(action, system=job_queues.system.name, filter=selected):
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
