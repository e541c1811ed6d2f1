"""`queue-manager queue`: look into the message queue, replay what died, take back what is overdue.

Guarantee: what is said of many messages is said of each; exit code 1 when something was not done.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Annotated, NoReturn

import redis
import typer

from queue_manager.cli.messages_render import (
    console,
    counts_line,
    page_json,
    print_json,
    print_message,
    printable,
    table_of,
)
from queue_manager.core.clock import minutes
from queue_manager.core.errors import AppError, reason
from services import message_queue
from services.message_queue import Filter, InvalidMessage, MessageState, SweepResult
from services.message_queue.admin import MAX_PAGE_SIZE, MESSAGE_STATES, Outcome
from services.message_queue.messages import MAX_TYPE_BYTES, checked_text

BATCH = 100  # dead letters replayed by one call
TRIGGERED_BY = "command line"
SWEEP_BUDGET = minutes(5)
PROGRESS_INTERVAL = 2.0  # seconds between two lines about a long sweep
_CURSOR = re.compile(r"\d{1,20}(-\d{1,20}/\d{1,3})?")
SAID: dict[Outcome, str] = {
    "MOVED": "replayed",
    "NOT_FOUND": "is not among the dead letters",
    "UNDECODABLE": "no consumer could read it; it stays",
}

queue = typer.Typer(
    help="Look into the message queue, replay its dead letters, take back what is overdue.\n\n"
    "A message waits in `main`, is held by a consumer in `processing`, and ends in `acknowledged` (the last 100) or, "
    "out of attempts, in `dead`; `archived` is where people put it. A `replay` gives it all its attempts again.",
    no_args_is_help=True,
)

TypeOption = Annotated[str | None, typer.Option("--type", help="Only messages of this type.")]
PriorityOption = Annotated[int | None, typer.Option(min=0, help="Only messages of this priority; 0 is the lowest.")]
AttemptsOption = Annotated[int | None, typer.Option(min=0, help="Only those delivered so many times.")]
SearchOption = Annotated[
    str | None, typer.Option(help="Only those with this text in payload, id, type or last error, in any case.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON; payloads byte for byte.")]


@queue.command("list")
def list_messages(
    state: Annotated[
        MessageState, typer.Argument(help=f"State of the messages: {', '.join(MESSAGE_STATES)}.", metavar="STATE")
    ] = "main",
    type: TypeOption = None,
    priority: PriorityOption = None,
    attempts: AttemptsOption = None,
    search: SearchOption = None,
    limit: Annotated[int, typer.Option(min=1, max=MAX_PAGE_SIZE, help="Messages on the page.")] = 20,
    cursor: Annotated[str | None, typer.Option(help="Where an earlier page ended; it says so itself.")] = None,
    as_json: JsonOption = False,
) -> None:
    """List the messages in a state, newest first, and count the messages by state.

    With a filter one page looks for a moment and says where to go on.

    Examples: `queue-manager queue list dead --type send_mail`, `queue-manager queue list processing --json`
    """
    with _clear_errors():
        wanted = _filter(type, priority, attempts, search)
        if cursor is not None and not _CURSOR.fullmatch(cursor):
            raise InvalidMessage("--cursor", "what an earlier page gave")
        page = message_queue.queue_admin().list(state, limit=limit, cursor=cursor, where=wanted)
        if as_json:
            print_json(page_json(page))
            return
        counts = message_queue.queue_admin().counts()
    screen = console()
    if page.messages:
        screen.print(table_of(state, page.messages, counts.now))
    else:
        screen.print("no such message on this page" if page.cursor else "no such message")
    if page.cursor:
        why = "the search stopped at its limit" if page.is_partial else "there may be more"
        screen.print(f"{why}: --cursor {printable(page.cursor)}", soft_wrap=True)
    screen.print(counts_line(counts), soft_wrap=True)


@queue.command()
def show(
    id: Annotated[str, typer.Argument(help="The message's id.", metavar="ID")], as_json: JsonOption = False
) -> None:
    """Show everything of one message, wherever it is.

    Times are UTC. `--json` prints it as the HTTP API does, with the payload as its producer wrote it.
    """
    with _clear_errors():
        message = message_queue.queue_admin().find(id)
    if message is None:
        _fail(f"there is no message {printable(id)}", code=1)
    if as_json:
        print_json(message.to_json())
    else:
        print_message(console(), message)


@queue.command()
def replay(
    ids: Annotated[list[str] | None, typer.Argument(help="Ids of dead letters.", metavar="ID")] = None,
    is_all: Annotated[bool, typer.Option("--all", help="All dead letters, or all that the options choose.")] = False,
    type: TypeOption = None,
    priority: PriorityOption = None,
    attempts: AttemptsOption = None,
    search: SearchOption = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask first.")] = False,
) -> None:
    """Send dead letters to the main queue again, with all their attempts; their history is kept.

    Says how many there are and asks first. Prints what became of each; exit code 1 when one was not replayed.

    Examples: `queue-manager queue replay 3f2a…`, `queue-manager queue replay --all --type send_mail --yes`
    """
    is_filtered = any(value is not None for value in (type, priority, attempts, search))
    if bool(ids) == is_all or (is_filtered and not is_all):
        _fail("name the dead letters by their ids, or say --all, which the other options narrow", code=2)
    with _clear_errors():
        chosen = list(ids or _dead_letters(_filter(type, priority, attempts, search)))
        if not chosen:
            typer.echo("no dead letter to replay")
            return
        if not yes:
            typer.confirm(f"Replay {len(chosen)} dead letter{'s'[: len(chosen) > 1]}?", abort=True)
        outcomes = [outcome for batch in _batches(chosen) for outcome in _replay(batch)]
    failed = sum(outcome != "MOVED" for outcome in outcomes)
    typer.echo(f"{len(outcomes) - failed} replayed, {failed} not")
    sys.exit(1 if failed else 0)


@queue.command()
def requeue() -> None:
    """Take back every message whose deadline has passed, now, and print what was done.

    They go back to their queue or, out of attempts, to the dead letters. Workers and `web` do this by themselves.
    """
    with _clear_errors():
        swept = message_queue.sweeper().sweep(triggered_by=TRIGGERED_BY, budget=SWEEP_BUDGET, progress=_Progress())
    if swept.is_locked:
        _fail("another sweeper is at work and holds the lock, for 30 s at most", code=1)
    typer.echo(json.dumps(swept.as_dict()))


# What is asked for


def _filter(type: str | None, priority: int | None, attempts: int | None, search: str | None) -> Filter:
    for name, text in (("--type", type), ("--search", search)):
        if text is not None:
            checked_text(text, name, max_bytes=MAX_TYPE_BYTES)
    return Filter(type=type, priority=priority, attempts=attempts, search=search)


def _dead_letters(wanted: Filter) -> list[str]:
    """Return the ids of those that match, the oldest first: in the order in which they are to be delivered again."""
    return list(dict.fromkeys(id for some in message_queue.queue_admin().dead_letters(wanted) for id in some))


def _batches(ids: Sequence[str]) -> Iterator[list[str]]:
    rest = iter(ids)
    while batch := list(islice(rest, BATCH)):
        yield batch


def _replay(ids: Sequence[str]) -> list[Outcome]:
    """Replay and say at once what became of each, because the server may go away before the next batch."""
    outcomes = message_queue.queue_admin().replay(ids)
    for id, outcome in outcomes.items():
        typer.echo(f"{printable(id)}  {SAID.get(outcome, outcome)}")
    return list(outcomes.values())


class _Progress:
    """Says on the error output, every few seconds, how many messages a long sweep has taken back."""

    def __init__(self) -> None:
        self._said = time.monotonic()

    def __call__(self, swept: SweepResult) -> None:
        if time.monotonic() - self._said >= PROGRESS_INTERVAL:
            self._said = time.monotonic()
            typer.echo(f"{len(swept.requeued) + len(swept.dead_lettered)} messages taken back so far", err=True)


# What can go wrong


@contextmanager
def _clear_errors() -> Iterator[None]:
    """Turn what the queue raises into one line and an exit code: 2 for what was asked for, 1 for all else."""
    try:
        yield
    except InvalidMessage as error:
        _fail(str(error), code=2)
    except (AppError, redis.RedisError) as error:
        _fail(reason(error), code=1)


def _fail(message: str, *, code: int) -> NoReturn:
    typer.echo(f"queue-manager: {message}", err=True)
    sys.exit(code)
