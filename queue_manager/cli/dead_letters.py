"""`queue-manager dead-letters`: list, replay and delete malformed or failing broker messages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Annotated

import redis
import typer

from queue_manager.broker import dead_letters
from queue_manager.broker.dead_letters import DeadLetter
from queue_manager.cli.changes import YesOption, audited, confirm, echo_undo
from queue_manager.cli.errors import fail, with_outcome
from queue_manager.cli.terminal import MAX_PAYLOAD_LENGTH, print_document, print_line, print_rows, printable
from queue_manager.core.clock import from_unix_seconds, to_iso
from queue_manager.core.redis_client import connect, describe_outage
from queue_manager.core.settings import redact_url, settings

AUDITED_BROKER = "broker"
"""The name of the broker in the audit log, as in health."""

dead_letters_cli = typer.Typer(
    help="List, replay and delete the broker's dead letters.\n\n"
    "These are Celery messages that no worker could decode or dispatch. For the message queue, see "
    "`queue-manager queue list dead`.",
    invoke_without_command=True,
)


@dead_letters_cli.callback()
def list_dead_letters(
    context: typer.Context,
    limit: Annotated[
        int,
        typer.Option(min=1, max=dead_letters.MAX_DEAD_LETTERS, help="Maximum number of dead letters, newest first."),
    ] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with full messages.")] = False,
) -> None:
    """List dead letters, newest first."""
    if context.invoked_subcommand is not None:
        return
    with _redis() as client:
        count, letters = dead_letters.count(client), dead_letters.latest(client, limit=limit)
    if as_json:
        shown = [{**asdict(letter), "at": _at(letter)} for letter in letters]
        print_document({"count": count, "dead_letters": shown})
        return
    print_rows([_row(letter) for letter in letters], nothing="no dead letters", rest="message")
    if count > len(letters):
        print_line(f"there are {count}: --limit {count}")


@dead_letters_cli.command()
def clear(yes: YesOption = False) -> None:
    """Delete all dead letters, after confirmation. Can be undone for 10 minutes.

    Those that are added before you confirm are deleted, too; later ones are kept.

    Example: `queue-manager dead-letters clear --yes`
    """
    count = 0
    with _redis() as client:
        confirm("delete", dead_letters.count(client), "dead letter", yes=yes)
        with audited("clear", system=AUDITED_BROKER, is_in_redis=True) as action:
            for deleted in dead_letters.clear(client, keep=action.keeper("dead-letter")):
                action.count = count = count + deleted
        print_line(f"{count} deleted")
        echo_undo(action.undo)


@dead_letters_cli.command()
def replay(
    ids: Annotated[list[str] | None, typer.Argument(help="Ids of dead letters.", metavar="ID")] = None,
    all_letters: Annotated[bool, typer.Option("--all", help="Replay all dead letters.")] = False,
    yes: YesOption = False,
) -> None:
    """Put messages back into their queues. Undecodable messages are refused, with the reason.

    `--all` asks for confirmation with the number of dead letters. Exit code 1 if a message was not replayed.

    Example: `queue-manager dead-letters replay --all`
    """
    if bool(ids) == all_letters:
        raise typer.BadParameter("give the ids of dead letters, or --all")
    replayed, failed = list[str](), list[str]()
    missing = dict.fromkeys(ids or [])
    with _redis() as client:
        if all_letters:
            confirm("replay", dead_letters.count(client), "dead letter", yes=yes)
        with audited("replay", system=AUDITED_BROKER, is_in_redis=True, ids=[*missing]) as action:
            action.count = 0
            for letter, refused in dead_letters.replay(client, None if all_letters else missing.copy()):
                missing.pop(letter.id, None)
                if refused:
                    failed.append(f"{letter.id}: {refused}")
                else:
                    replayed.append(letter.id)
                    action.succeeded(replayed)  # before the next one, which may fail
            action.succeeded(replayed)
    print_line(f"{len(replayed)} replayed")
    for line in (*failed, *(f"{id}: there is no such dead letter" for id in missing)):
        typer.echo(printable(line), err=True)
    if failed or missing:
        raise typer.Exit(1)


def _row(letter: DeadLetter) -> dict[str, str]:
    message = letter.message[:MAX_PAYLOAD_LENGTH]
    return {"at": _at(letter), "id": letter.id, "queue": letter.queue, "reason": letter.reason, "message": message}


def _at(letter: DeadLetter) -> str:
    return to_iso(from_unix_seconds(letter.at))


@contextmanager
def _redis() -> Iterator[redis.Redis]:
    """Connect to the broker's Redis; exit with code 1 if it does not answer, or if the broker is not a Redis."""
    url = settings().broker_redis_url
    if url is None:
        fail(f"the broker at {redact_url(settings().broker)} keeps no dead letters", code=1)
    try:
        with connect(url) as client:
            yield client
    except redis.RedisError as error:
        fail(with_outcome(describe_outage(url, error), error), code=1)
