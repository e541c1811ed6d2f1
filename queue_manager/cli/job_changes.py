"""`queue-manager jobs`: run, reschedule, cancel, retry, remove and clear jobs; pause and resume queues.

Guarantee: commands on several jobs report an outcome for each; exit code 1 if one failed. Each is in the audit.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Annotated, Any

import typer

from models.archive import MAX_ARCHIVED
from models.database import Document
from models.job import JobState
from models.job import names as stored_names
from queue_manager.cli.changes import (
    PauseReason,
    YesOption,
    checked_reason,
    confirm,
    current_actor,
    echo_undo,
    resumed,
)
from queue_manager.cli.completion import complete_job_name, complete_job_state
from queue_manager.cli.errors import fail, moment
from queue_manager.cli.terminal import print_document, print_line
from queue_manager.core.errors import Contended, Unavailable
from queue_manager.core.json_types import finite
from queue_manager.core.wording import did_you_mean, many
from queue_manager.operations import switches
from queue_manager.operations.job_schemas import JobsToDelete
from queue_manager.operations.jobs import JobAction, change_job, clear_jobs, retry_unless_successful, run_job
from queue_manager.operations.schemas import validated
from services import job_queues
from services.job_queues import as_json
from services.job_queues.fields import MAX_DELAY, checked_state

ALL_NAMES = "all names"

OneJobName = Annotated[
    str | None, typer.Option("--name", help="Only jobs of this name.", autocompletion=complete_job_name)
]
JobIdArguments = Annotated[list[str], typer.Argument(help="Ids of jobs.", metavar="ID")]
JobNames = Annotated[list[str], typer.Argument(help="Names of jobs.", metavar="NAME", autocompletion=complete_job_name)]
DueTime = Annotated[str | None, typer.Option(help="Due time, such as 2026-01-31T09:30:00Z.")]
DueDelay = Annotated[float | None, typer.Option(help="Seconds until it is due.", metavar="SECONDS")]


def run(
    name: Annotated[str, typer.Argument(help="The job's name.", metavar="NAME", autocompletion=complete_job_name)],
    arguments: Annotated[
        list[str] | None, typer.Argument(help="JSON, or a string if it is not JSON.", metavar="ARG")
    ] = None,
    at: DueTime = None,
    delay: DueDelay = None,
    priority: Annotated[int, typer.Option(help="-100 to 100, higher first.")] = 0,
    every: Annotated[float | None, typer.Option(help="Repeat it at this interval.", metavar="SECONDS")] = None,
    cron: Annotated[str | None, typer.Option(help="Repeat it by a cron expression (UTC), such as '0 3 * * *'.")] = None,
    unique: Annotated[
        bool, typer.Option("--unique", help="Only if no job with this name and arguments exists, in any state.")
    ] = False,
    singular: Annotated[
        bool, typer.Option("--singular", help="Only if no such job is pending, failed or executing.")
    ] = False,
) -> None:
    """Store a job, to be run by workers, and print it as JSON.

    Exit code 1 if a unique or singular job already exists. Put negative numbers after `--`.

    Examples: `queue-manager jobs run send_invoice 42`, `queue-manager jobs run report '{"year": 2026}' --delay 60`
    """
    due_at, wait, period = moment(at, "--at"), _delay(delay, "--delay"), _delay(every, "--every", least=1)
    try:
        job = run_job(
            current_actor(),
            name,
            [*map(_value, arguments or [])],
            at=due_at,
            delay=wait,
            every=period,
            cron=cron,
            priority=priority,
            unique=unique,
            singular=singular,
        )
    except job_queues.DuplicateJob:
        fail(f"blocked: a job {name} with these arguments already exists", code=1)
    print_document(as_json(job))


def cancel(ids: JobIdArguments) -> None:
    """Cancel jobs, and ask executing ones to stop.

    Prints an outcome for each. The process of a job that does not stop is ended after JOBS_GRACE_SECONDS.

    Example: `queue-manager jobs cancel 6b01475714001c3a87bb78b8`
    """
    _each(
        "cancel",
        ids,
        job_queues.jobs.cancel,
        lambda job: "canceled" if job["state"] == JobState.CANCELED else "stopping",
    )


def retry(ids: JobIdArguments) -> None:
    """Make jobs due now, unless they are executing.

    Prints an outcome for each. A job that succeeded is run again only if it is the only one.

    Example: `queue-manager jobs retry 6b01475714001c3a87bb78b8`
    """
    change = job_queues.jobs.retry if len(ids) == 1 else retry_unless_successful
    _each("retry", ids, change, lambda _: "due now")


def remove(ids: JobIdArguments) -> None:
    """Delete jobs, unless they are executing.

    Prints an outcome for each, and how to undo it.

    Example: `queue-manager jobs remove 6b01475714001c3a87bb78b8`
    """
    _each("remove", ids, job_queues.jobs.remove, lambda _: "removed")


def reschedule(
    ids: JobIdArguments,
    at: DueTime = None,
    delay: DueDelay = None,
    priority: Annotated[int | None, typer.Option(help="-100 to 100, higher first.")] = None,
) -> None:
    """Change the due time or the priority of jobs.

    They must be pending, failed or canceled. Prints an outcome for each. Without `--at` and `--delay`, only the
    priority changes.

    Example: `queue-manager jobs reschedule 6b01475714001c3a87bb78b8 --delay 3600 --priority 5`
    """
    if at is None and delay is None and priority is None:
        fail("give --at, --delay or --priority", code=2)
    due_at, wait = moment(at, "--at"), _delay(delay, "--delay")
    change = partial(job_queues.jobs.reschedule, at=due_at, delay=wait, priority=priority)
    _each("reschedule", ids, change, _rescheduled)


def clear(
    states: Annotated[
        list[str],
        typer.Argument(
            help="pending, success, failure or canceled.", metavar="STATE", autocompletion=complete_job_state
        ),
    ],
    name: OneJobName = None,
    yes: YesOption = False,
) -> None:
    """Delete jobs by their state, except declared ones.

    Asks for confirmation; above 1,000 jobs, the name (`all names` without `--name`) must be typed. Jobs that enter the
    state meanwhile are deleted, too. Can be undone for 10 minutes, unless there are more than 100,000. After Ctrl-C,
    the remaining jobs are kept.

    Example: `queue-manager jobs clear success canceled --name send_invoice`
    """
    wanted = _states(states)
    body = validated(JobsToDelete, {"states": states, "name": name})
    count = job_queues.jobs.count_up_to(MAX_ARCHIVED + 1, wanted, name)
    of = name or ALL_NAMES
    which = f" of {of} in the state {' or '.join(states)}"
    number = f"more than {many(MAX_ARCHIVED, 'job')}" if count > MAX_ARCHIVED else many(count, "job")
    confirm("delete", count, "job", which, number=number, yes=yes, typed=of)
    answer = clear_jobs(body, current_actor(), is_over=lambda: False)
    print_line(f"{answer.deleted} deleted")
    echo_undo(answer.undo)


def pause(names: JobNames, reason: PauseReason = None) -> None:
    """Start no jobs of these names until they are resumed.

    A job that is executing finishes. A name without jobs is paused, too; the command says so if no function is
    registered for it either.

    Example: `queue-manager jobs pause send_invoice --reason "the mail provider is down"`
    """
    why = checked_reason(reason)
    stored = stored_names()
    # The functions are not imported for names that have jobs, so that those can be paused while an import fails.
    known = stored if {*names} <= {*stored} else [*stored, *job_queues.registry.names()]
    switches.pause_jobs(current_actor(), names, why)
    for name in names:
        unknown = f", but there is no job and no function of this name{did_you_mean(name, known)}"
        print_line(f"{name}  paused{unknown if name not in known else ''}")


def resume(names: JobNames) -> None:
    """Resume paused queues.

    Example: `queue-manager jobs resume send_invoice`
    """
    paused = switches.resume_jobs(current_actor(), names)
    for name in names:
        print_line(f"{name}  {resumed(name in paused)}")


# Arguments


def _value(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=finite, parse_float=finite)
    except (ValueError, RecursionError):  # NaN and 1e400 are texts
        return text


def _states(texts: Sequence[str]) -> set[JobState]:
    """Return the states. Raises `InvalidJob`, which names the argument, for a text that is not a state."""
    try:
        return {checked_state(text) for text in texts}
    except job_queues.InvalidJob as error:
        raise job_queues.InvalidJob("STATE", error.problem) from None


def _delay(amount: float | None, option: str, *, least: int = 0) -> timedelta | None:
    if amount is None:
        return None
    maximum = int(MAX_DELAY.total_seconds())
    if not least <= amount <= maximum:
        fail(f"{option}: must be {least} to {maximum} seconds", code=2)
    return timedelta(seconds=amount)


# Actions


def _rescheduled(job: Document) -> str:
    """Return the outcome of a change; of a job that is not pending, only the priority has changed."""
    shown = {"due": "unknown", "priority": "unknown", **as_json(job)}  # another program may have left them out
    state = f"due {shown['due']}" if shown["state"] == JobState.PENDING else shown["state"]
    return f"{state}, priority {shown['priority']}"


def _each(
    action: JobAction, ids: Sequence[str], change: Callable[..., Document], outcome: Callable[[Document], str]
) -> None:
    """Change jobs one by one and print each outcome immediately, because the next change may fail."""
    for id in ids:
        with suppress(job_queues.UnknownJob):
            job_queues.jobs.get(id)  # an invalid id ends the command before any job is changed
    is_done = True
    for id in ids:
        undo = None
        try:
            job, undo = change_job(current_actor(), action, id, change)
            text = outcome(job)
        except (job_queues.UnknownJob, job_queues.WrongState, job_queues.DuplicateJob) as error:
            text, is_done = str(error), False
        except Unavailable as error:
            if not isinstance(error.__cause__, Contended):
                raise
            text, is_done = str(error), False
        print_line(f"{id}  {text}")
        echo_undo(undo)
    if not is_done:
        raise typer.Exit(1)
