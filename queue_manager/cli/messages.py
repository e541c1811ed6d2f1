"""`queue-manager queue`: list, count, export and import messages, requeue overdue messages, pause types.

`message_changes` has the commands that change messages.
"""

from __future__ import annotations

import json
from typing import Annotated

import typer

from queue_manager.cli.changes import PauseReason, audited, checked_reason, current_actor, resumed
from queue_manager.cli.errors import fail
from queue_manager.cli.message_changes import add, clear, delete, edit, move, replay
from queue_manager.cli.message_filters import filtered
from queue_manager.cli.messages_render import (
    STATE_HELP,
    counts_line,
    field_text,
    page_json,
    print_message,
    print_messages,
)
from queue_manager.cli.terminal import (
    AnswerJsonOption,
    CursorOption,
    FormatOption,
    export_rows,
    print_answer,
    print_json,
    print_line,
    print_pauses,
    print_table,
)
from queue_manager.core.clock import Pace, minutes, seconds
from queue_manager.operations import switches
from queue_manager.operations.message_activity import activity_page, checked_actions, entries_of
from queue_manager.operations.message_fields import parse_time
from queue_manager.operations.messages import (
    AUDITED_QUEUE,
    MessagesInState,
    find_message,
    message_json,
    queue_config,
    queue_status,
)
from services import message_queue
from services.message_queue import Filter, MessageState, SweepResult
from services.message_queue.browser import MAX_MESSAGES_PER_PAGE
from services.message_queue.transfer import import_messages, parse_lines

TRIGGERED_BY = "command line"
ACTIVITY_COLUMNS = (
    *("message_id", "action", "timestamp", "message_type", "consumer_id", "attempt_count"),
    *("source_queue", "dest_queue", "triggered_by", "error_reason"),
)
CSV_COLUMNS = (
    *("id", "type", "payload", "priority", "attempt_count", "created_at", "custom_ack_timeout", "custom_max_attempts"),
    *("consumer_id", "deadline_at", "failed_at", "acknowledged_at", "archived_at", "last_error"),
)
SWEEP_BUDGET = minutes(5)
SWEEP_PROGRESS_INTERVAL = seconds(2)  # between two progress lines of a long sweep

queue = typer.Typer(
    help="List, add, edit, move, delete and replay messages.\n\n"
    "A message waits in `main`, is locked by a consumer in `processing`, and ends in `acknowledged` (the last 100). "
    "After its last attempt it is in `dead`, which the dashboard calls Failed, until it is replayed with new attempts. "
    "Operators move messages to `archived`.",
    no_args_is_help=True,
)

MessageStateArgument = Annotated[MessageState, typer.Argument(help=STATE_HELP, metavar="STATE")]
MessageTypes = Annotated[list[str], typer.Argument(help="Types of messages.", metavar="TYPE")]
JsonMessagesOption = Annotated[bool, typer.Option("--json", help="Print JSON, with payloads byte for byte.")]


@queue.command("list")
@filtered
def list_messages(
    where: Filter,
    state: MessageStateArgument = "main",
    limit: Annotated[int, typer.Option(min=1, max=MAX_MESSAGES_PER_PAGE, help="Maximum number of messages.")] = 20,
    cursor: CursorOption = None,
    sort_by: Annotated[
        str | None, typer.Option("--sort", help="By created_at or priority in main; else by the time of the state.")
    ] = None,
    is_ascending: Annotated[
        bool, typer.Option("--ascending", help="The oldest or lowest first instead of the newest or highest.")
    ] = False,
    as_json: JsonMessagesOption = False,
) -> None:
    """List the messages in a state, newest first.

    Also counts the messages in each state. A filtered search stops after a short time and prints the cursor to
    continue.

    Examples: `queue-manager queue list dead --type send_mail`, `queue-manager queue list processing --json`
    """
    selected = MessagesInState(state=state, where=where, sort_by=sort_by, is_descending=not is_ascending)
    page = selected.page(cursor, limit)
    if as_json:
        print_json(page_json(page))
        return
    admin = message_queue.queue_admin()
    counts, pauses = admin.counts(), admin.pauses()
    nothing = "no messages on this page" if page.cursor else "no messages"
    print_messages(state, page.messages, counts.now, nothing=nothing)
    if page.cursor:
        why = "the search stopped at its limit" if page.is_partial else "there may be more"
        print_line(f"{why}: --cursor {page.cursor}")
    print_line(counts_line(counts))
    print_pauses(pauses)


@queue.command()
@filtered
def count(where: Filter, state: MessageStateArgument = "main") -> None:
    """Count the messages in a state that match.

    Counts for about 2 s at most.

    Example: `queue-manager queue count dead --type send_mail`
    """
    typer.echo(str(message_queue.queue_admin().count(state, where)))


@queue.command()
def status(as_json: AnswerJsonOption = False) -> None:
    """Show how many messages are in each state.

    Also shows the priorities of those that wait.

    Example: `queue-manager queue status --json`
    """
    if as_json:
        print_answer(queue_status())
        return
    counts = message_queue.queue_admin().counts()
    print_line(counts_line(counts))
    waiting = [f"{number} of priority {priority}" for priority, number in enumerate(counts.waiting) if number]
    print_line(f"waiting: {', '.join(reversed(waiting)) or 'none'}")


@queue.command("config")
def show_config() -> None:
    """Print the settings of the queue as JSON."""
    print_answer(queue_config())


@queue.command("activity")
def list_activity(
    message_id: Annotated[str | None, typer.Option("--message", help="Only of this message.", metavar="ID")] = None,
    consumer_id: Annotated[str | None, typer.Option("--consumer", help="Only of this consumer.")] = None,
    action: Annotated[
        str | None, typer.Option(help="Only these actions, such as dlq,nack: separated by commas.")
    ] = None,
    is_anomaly: Annotated[bool, typer.Option("--anomalies", help="Only entries with an anomaly.")] = False,
    since: Annotated[str | None, typer.Option(help="From this time on, such as 2026-01-31T09:30Z.")] = None,
    until: Annotated[str | None, typer.Option(help="Up to this time.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1_000, help="Maximum number of entries.")] = 20,
    offset: Annotated[int, typer.Option(min=0, help="Number of entries to skip.")] = 0,
    as_json: AnswerJsonOption = False,
) -> None:
    """Show what happened in the queue, newest first.

    About 10,000 events are kept. Times are UTC.

    Example: `queue-manager queue activity --action dlq --since 2026-01-31T09:00Z`
    """
    if action is not None:
        try:
            checked_actions(action)
        except ValueError as error:
            fail(f"--action: {error}", code=2)
    entries = entries_of(action, parse_time(since, "--since"), parse_time(until, "--until"))
    page = activity_page(
        entries,
        message_id=message_id,
        consumer_id=consumer_id,
        has_anomaly=is_anomaly or None,
        limit=limit,
        offset=offset,
    )
    if as_json:
        print_answer(page)
        return
    shown = [{**dict(one), "timestamp": field_text("at", one.timestamp)} for one in page.logs]
    print_table(shown, ACTIVITY_COLUMNS, nothing="no entries")
    if page.pagination.has_more:
        print_line(f"there are {page.pagination.total}: --offset {offset + limit}")


@queue.command()
def show(
    id: Annotated[str, typer.Argument(help="The message's id.", metavar="ID")], as_json: JsonMessagesOption = False
) -> None:
    """Show all fields of one message, in any state.

    Also shows what happened to it since its first delivery. Times are UTC. `--json` prints it as in the HTTP API, with
    the payload unchanged.

    Example: `queue-manager queue show mail-1 --json`
    """
    state, message = find_message(id)
    if as_json:
        print_json(message_json(state, message))
        return
    print_message(state, message)


@queue.command("export")
@filtered
def export_messages(where: Filter, state: MessageStateArgument, form: FormatOption = "jsonl") -> None:
    """Print all messages in a state, as JSON lines or CSV.

    JSON lines are for `import`. The messages come oldest first; those in `processing`, latest deadline first.

    Example: `queue-manager queue export dead --type send_mail > dead.jsonl`
    """
    pages = message_queue.queue_admin().export(state, where)
    export_rows((message.to_json_line() for page in pages for message in page), form, columns=CSV_COLUMNS)


@queue.command("import")
def import_lines(
    file: Annotated[
        typer.FileBinaryRead, typer.Argument(help="JSON lines or a JSON list; - is the standard input.", metavar="FILE")
    ],
) -> None:
    """Add the messages of an export to the main queue.

    They have used no attempts. A message whose id exists, also among the last 100 acknowledged ones, is not added, so
    the command may be repeated after an error. Invalid messages are not added; standard error names their lines, and
    the exit code is 1.

    Example: `queue-manager queue import dead.jsonl`
    """
    target = message_queue.message_queue()
    with audited("import", **AUDITED_QUEUE, detail=file.name) as action:
        for result in import_messages(target, parse_lines(file, target.options)):
            action.count = result.added
    print_line(f"{result.added} imported, {result.known} already present, {result.undecodable} undecodable")
    if result.refused:
        fail("\n".join(result.refused), code=1)


@queue.command()
def requeue() -> None:
    """Requeue all messages whose ack deadline has passed.

    Prints the result as JSON. Messages without attempts left are dead-lettered. Workers and `web` do this
    automatically.
    """
    pace = Pace(SWEEP_PROGRESS_INTERVAL)
    pace.allows()  # the first line comes after an interval
    with audited("requeue", **AUDITED_QUEUE) as action:
        action.count = 0

        def progress(swept: SweepResult) -> None:
            action.count = len(swept.requeued) + len(swept.dead_lettered)
            if pace.allows():
                typer.echo(f"{action.count} messages requeued or dead-lettered so far", err=True)

        swept = message_queue.sweeper().sweep(triggered_by=TRIGGERED_BY, budget=SWEEP_BUDGET, progress=progress)
    if swept.is_locked:
        fail("another sweep is running; try again in at most 30 s", code=1)
    typer.echo(json.dumps(swept.as_dict()))


for _command in (add, edit, replay, move, delete, clear):
    queue.command()(_command)


@queue.command()
def pause(types: MessageTypes, reason: PauseReason = None) -> None:
    """Deliver no messages of these types until they are resumed.

    They wait; `queue list` shows the reason. Messages that a consumer already holds are not affected. A type without
    messages is paused, too.

    Example: `queue-manager queue pause send_mail --reason "the mail server is down"`
    """
    why = checked_reason(reason)
    switches.pause_types(current_actor(), types, why)
    for type in types:
        print_line(f"{type}  paused")


@queue.command()
def resume(types: MessageTypes) -> None:
    """Deliver messages of these types again.

    They are delivered in the order in which they were added.

    Example: `queue-manager queue resume send_mail`
    """
    paused = switches.resume_types(current_actor(), types)
    for type in types:
        print_line(f"{type}  {resumed(type in paused)}")
