"""`queue-manager queue`: list, export and import messages, replay dead letters, requeue overdue messages, pause types.

Guarantee: commands on several messages report an outcome for each; exit code 1 if one failed.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Annotated

import redis
import typer

from models.audit import ActionName
from queue_manager.cli.audited import audited
from queue_manager.cli.errors import fail
from queue_manager.cli.messages_render import (
    console,
    counts_line,
    page_json,
    print_json,
    print_message,
    printable,
    table_of,
)
from queue_manager.cli.pauses import PauseReason, checked_reason
from queue_manager.core.clock import minutes
from queue_manager.core.errors import AppError, reason
from queue_manager.core.pause import COMMAND_LINE
from services import message_queue
from services.message_queue import Filter, InvalidMessage, MessageState, SweepResult
from services.message_queue.admin import MessageOutcome
from services.message_queue.browser import BULK_BATCH_SIZE, MAX_MESSAGES_PER_PAGE, MESSAGE_STATES
from services.message_queue.messages import MAX_TYPE_BYTES, checked_text
from services.message_queue.transfer import import_messages, parse_lines

TRIGGERED_BY = "command line"
SWEEP_BUDGET = minutes(5)
SWEEP_PROGRESS_INTERVAL = 2.0  # seconds between two progress lines of a long sweep
OUTCOME_TEXTS: dict[MessageOutcome, str] = {
    "MOVED": "replayed",
    "NOT_FOUND": "is not a dead letter",
    "UNDECODABLE": "cannot be decoded, so it is not replayed",
}

queue = typer.Typer(
    help="List messages, replay dead letters, requeue overdue messages.\n\n"
    "A message waits in `main`, is locked by a consumer in `processing`, and ends in `acknowledged` (the last 100) or, "
    "after its last attempt, in `dead`. Operators move messages to `archived`. A `replay` resets the attempts.",
    no_args_is_help=True,
)

TypeOption = Annotated[str | None, typer.Option("--type", help="Only messages of this type.")]
PriorityOption = Annotated[int | None, typer.Option(min=0, help="Only messages of this priority; 0 is the lowest.")]
AttemptsOption = Annotated[int | None, typer.Option(min=0, help="Only messages with this number of deliveries.")]
SearchOption = Annotated[
    str | None, typer.Option(help="Only messages with this text in payload, id, type or last error; case-insensitive.")
]
MessageTypes = Annotated[list[str], typer.Argument(help="Types of messages.", metavar="TYPE...")]
JsonMessagesOption = Annotated[bool, typer.Option("--json", help="Print JSON, with payloads byte for byte.")]


@queue.command("list")
def list_messages(
    state: Annotated[
        MessageState, typer.Argument(help=f"State of the messages: {', '.join(MESSAGE_STATES)}.", metavar="STATE")
    ] = "main",
    type: TypeOption = None,
    priority: PriorityOption = None,
    attempts: AttemptsOption = None,
    search: SearchOption = None,
    limit: Annotated[int, typer.Option(min=1, max=MAX_MESSAGES_PER_PAGE, help="Maximum number of messages.")] = 20,
    cursor: Annotated[str | None, typer.Option(help="Cursor printed by the previous page.")] = None,
    as_json: JsonMessagesOption = False,
) -> None:
    """List the messages in a state, newest first, and count the messages by state.

    A filtered search stops after a short time and prints the cursor to continue.

    Examples: `queue-manager queue list dead --type send_mail`, `queue-manager queue list processing --json`
    """
    with _report_errors():
        wanted = _filter(type, priority, attempts, search)
        page = message_queue.queue_admin().list(state, limit=limit, cursor=cursor, where=wanted)
        if as_json:
            print_json(page_json(page))
            return
        counts = message_queue.queue_admin().counts()
        pauses = message_queue.queue_admin().pauses()
    screen = console()
    if page.messages:
        screen.print(table_of(state, page.messages, counts.now))
    else:
        screen.print("no such message on this page" if page.cursor else "no such message")
    if page.cursor:
        why = "the search stopped at its limit" if page.is_partial else "there may be more"
        screen.print(f"{why}: --cursor {printable(page.cursor)}", soft_wrap=True)
    screen.print(counts_line(counts), soft_wrap=True)
    for paused, made in pauses.items():
        screen.print(printable(f"Paused: {paused} {made}"), soft_wrap=True)


@queue.command()
def show(
    id: Annotated[str, typer.Argument(help="The message's id.", metavar="ID")], as_json: JsonMessagesOption = False
) -> None:
    """Show all fields of one message, in any state.

    Times are UTC. `--json` prints it as in the HTTP API, with the payload unchanged.
    """
    with _report_errors():
        message = message_queue.queue_admin().find(id)
    if message is None:
        fail(f"there is no message {printable(id)}", code=1)
    if as_json:
        print_json(message.to_json())
    else:
        print_message(console(), message)


@queue.command()
def replay(
    ids: Annotated[list[str] | None, typer.Argument(help="Ids of dead letters.", metavar="ID")] = None,
    is_all: Annotated[
        bool, typer.Option("--all", help="Replay all dead letters, or all that match the options.")
    ] = False,
    type: TypeOption = None,
    priority: PriorityOption = None,
    attempts: AttemptsOption = None,
    search: SearchOption = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
) -> None:
    """Move dead letters back to the main queue; their attempts are reset and their history is kept.

    Asks for confirmation with the number of messages. Prints an outcome for each; exit code 1 if one was not replayed.

    Examples: `queue-manager queue replay 3f2a…`, `queue-manager queue replay --all --type send_mail --yes`
    """
    is_filtered = any(value is not None for value in (type, priority, attempts, search))
    if bool(ids) == is_all or (is_filtered and not is_all):
        fail("give ids of dead letters, or --all, optionally with filters", code=2)
    with _report_errors():
        chosen = list(ids or _dead_letters(_filter(type, priority, attempts, search)))
        if not chosen:
            typer.echo("no dead letter to replay")
            return
        if not yes:
            typer.confirm(f"Replay {len(chosen)} dead letter{'s'[: len(chosen) > 1]}?", abort=True)
        replayed: list[str] = []
        selected = {"type": type, "priority": priority, "attempts": attempts, "search": search} if is_all else None
        with audited(
            "replay", system=message_queue.system.name, is_in_redis=True, filter=selected, ids=chosen
        ) as action:
            for begin in range(0, len(chosen), BULK_BATCH_SIZE):
                outcomes = _replay(chosen[begin : begin + BULK_BATCH_SIZE])
                replayed += [id for id, outcome in outcomes.items() if outcome == "MOVED"]
                action.succeeded(replayed)
    failed = len(set(chosen)) - len(replayed)
    typer.echo(f"{len(replayed)} replayed, {failed} not")
    sys.exit(1 if failed else 0)


@queue.command("export")
def export_messages(
    state: Annotated[
        MessageState, typer.Argument(help=f"State of the messages: {', '.join(MESSAGE_STATES)}.", metavar="STATE")
    ],
    type: TypeOption = None,
    priority: PriorityOption = None,
    attempts: AttemptsOption = None,
    search: SearchOption = None,
) -> None:
    """Print the messages in a state as JSON lines, oldest first.

    Example: `queue-manager queue export dead --type send_mail > dead.jsonl`
    """
    with _report_errors():
        for page in message_queue.queue_admin().export(state, _filter(type, priority, attempts, search)):
            for message in page:
                print_json(message.to_json())


@queue.command("import")
def import_lines(
    file: Annotated[typer.FileBinaryRead, typer.Argument(help="JSON lines or a JSON list; - is the standard input.")],
) -> None:
    """Add the messages of an export to the main queue, with no attempts used.

    A message whose id exists is not added, so the command may be repeated. It stops at the first invalid message;
    those before it may have been added.

    Example: `queue-manager queue import dead.jsonl`
    """
    with _report_errors():
        target = message_queue.message_queue()
        with audited("import", system=message_queue.system.name, is_in_redis=True, detail=file.name) as action:
            result = import_messages(target, parse_lines(file, target.options))
            action.count = result.added
    typer.echo(f"{result.added} imported, {result.known} known, {result.undecodable} undecodable")


@queue.command()
def requeue() -> None:
    """Requeue every message whose deadline has passed, and print the result as JSON.

    Messages without attempts left are dead-lettered. Workers and `web` do this automatically.
    """
    with _report_errors():
        with audited("requeue", system=message_queue.system.name, is_in_redis=True) as action:
            swept = message_queue.sweeper().sweep(triggered_by=TRIGGERED_BY, budget=SWEEP_BUDGET, progress=_Progress())
            action.count = len(swept.requeued) + len(swept.dead_lettered)
    if swept.is_locked:
        fail("another sweeper holds the lock, for at most 30 s", code=1)
    typer.echo(json.dumps(swept.as_dict()))


@queue.command()
def pause(types: MessageTypes, reason: PauseReason = None) -> None:
    """Deliver no messages of these types: they wait, and those in processing go on. `queue list` shows the reason."""
    why = checked_reason(reason)
    change = partial(message_queue.queue_admin().pause, by=COMMAND_LINE, reason=why)
    _switch("pause", types, change, "paused", reason=why)


@queue.command()
def resume(types: MessageTypes) -> None:
    """Deliver messages of these types again, in the order in which they were added."""
    _switch("resume", types, message_queue.queue_admin().resume, "resumed")


def _switch(
    action: ActionName,
    types: Sequence[str],
    change: Callable[[Sequence[str]], None],
    what: str,
    reason: str | None = None,
) -> None:
    selected = {"types": ", ".join(types)} | ({"reason": reason} if reason else {})
    with _report_errors(), audited(action, system=message_queue.system.name, is_in_redis=True, filter=selected):
        change(types)
    for type in types:
        typer.echo(f"{printable(type)}  {what}")


# Arguments


def _filter(type: str | None, priority: int | None, attempts: int | None, search: str | None) -> Filter:
    for name, text in (("--type", type), ("--search", search)):
        if text is not None:
            checked_text(text, name, max_bytes=MAX_TYPE_BYTES)
    return Filter(type=type, priority=priority, attempts=attempts, search=search)


def _dead_letters(wanted: Filter) -> list[str]:
    """Return the ids of the matching dead letters, oldest first, which is the order of their redelivery."""
    return list(dict.fromkeys(id for some in message_queue.queue_admin().dead_letters(wanted) for id in some))


def _replay(ids: Sequence[str]) -> dict[str, MessageOutcome]:
    """Replay a batch and print its outcomes immediately, because the next batch may fail."""
    outcomes = message_queue.queue_admin().replay(ids)
    for id, outcome in outcomes.items():
        typer.echo(f"{printable(id)}  {OUTCOME_TEXTS.get(outcome, outcome)}")
    return outcomes


class _Progress:
    """Prints the progress of a long sweep to stderr every few seconds."""

    def __init__(self) -> None:
        self._logged_at = time.monotonic()

    def __call__(self, swept: SweepResult) -> None:
        if time.monotonic() - self._logged_at >= SWEEP_PROGRESS_INTERVAL:
            self._logged_at = time.monotonic()
            typer.echo(
                f"{len(swept.requeued) + len(swept.dead_lettered)} messages requeued or dead-lettered so far", err=True
            )


# Errors


@contextmanager
def _report_errors() -> Iterator[None]:
    """Report errors of the queue in one line; exit code 2 for invalid arguments, 1 for other errors."""
    try:
        yield
    except InvalidMessage as error:
        fail(str(error), code=2)
    except (AppError, redis.RedisError) as error:
        fail(reason(error), code=1)
