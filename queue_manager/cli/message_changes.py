"""`queue-manager queue`: add, edit, replay, move and delete messages, and clear a state.

Guarantee: commands on several messages report an outcome for each; exit code 1 if one failed. Each is in the audit.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any, Literal
from uuid import uuid4

import typer

from models.audit import ActionName
from queue_manager.cli.changes import YesOption, audited, confirm, current_actor, echo_undo
from queue_manager.cli.errors import fail
from queue_manager.cli.message_filters import filtered
from queue_manager.cli.messages_render import STATE_HELP
from queue_manager.cli.terminal import print_json, print_line
from queue_manager.operations.messages import AUDITED_QUEUE, Change, change_messages, clear_messages, edit_message
from services import message_queue
from services.audit import OUTCOME_UNKNOWN, AuditedAction
from services.message_queue import Filter, InvalidMessage, MessageState, NewMessage, QueueUnavailable
from services.message_queue.admin import DEFAULT_MOVE_REASON, MessageOutcome
from services.message_queue.browser import MATCH_ALL, MESSAGE_STATES, KeptState
from services.message_queue.fields import decode_message, parse_object

DEFAULT = "default"
"""Stands for the queue's own timeout or number of attempts."""

MessageIdArguments = Annotated[list[str] | None, typer.Argument(help="Ids of messages.", metavar="ID")]
IsAll = Annotated[bool, typer.Option("--all", help="Instead of ids: all that are in --state and match the options.")]
PriorityOfMessage = Annotated[int | None, typer.Option(help="A higher one is delivered first.")]
AckTimeoutOption = Annotated[
    str | None, typer.Option(help="Seconds to acknowledge a delivery, or `default`.", metavar="SECONDS")
]
MaxAttemptsOption = Annotated[
    str | None, typer.Option(help="Deliveries before it is dead-lettered, or `default`.", metavar="NUMBER")
]
FromState = Annotated[MessageState | None, typer.Option("--state", help="Only messages in this state.")]


def add(
    type: Annotated[str, typer.Argument(help="The message's type.", metavar="TYPE")],
    payload: Annotated[str, typer.Argument(help="JSON, which consumers get byte for byte.", metavar="JSON")] = "null",
    priority: PriorityOfMessage = None,
    ack_timeout: AckTimeoutOption = None,
    max_attempts: MaxAttemptsOption = None,
    id: Annotated[str | None, typer.Option(help="An id; a message whose id exists is not added again.")] = None,
) -> None:
    """Add a message to the main queue, and print its id.

    If it is unknown whether it was added, the error has the id with which the command may be repeated.

    Example: `queue-manager queue add send_mail '{"to": "ada@example.org"}' --priority 5`
    """
    id = uuid4().hex if id is None else id
    members = {"type": type, "id": id, **_options(priority, ack_timeout, max_attempts)}
    message = NewMessage.from_members(_decoded(members, payload))
    try:
        message_queue.message_queue().enqueue_batch([message])
    except (QueueUnavailable, KeyboardInterrupt) as error:
        error.add_note(OUTCOME_UNKNOWN)
        error.add_note(f"to try again without adding it twice, repeat the command with --id {shlex.quote(id)}")
        raise
    typer.echo(id)


def edit(
    id: Annotated[str, typer.Argument(help="The message's id.", metavar="ID")],
    type: Annotated[str | None, typer.Option("--type", help="Its new type.")] = None,
    payload: Annotated[str | None, typer.Option(help="Its new payload.", metavar="JSON")] = None,
    priority: PriorityOfMessage = None,
    ack_timeout: AckTimeoutOption = None,
    max_attempts: MaxAttemptsOption = None,
    state: FromState = None,
) -> None:
    """Change a message, and print it as JSON.

    No consumer may hold it. A failed message stays where it is: replay it afterwards.

    Example: `queue-manager queue edit 3f2a… --payload '{"to": "ada@example.org"}' --max-attempts default`
    """
    members = {**({"type": type} if type is not None else {}), **_options(priority, ack_timeout, max_attempts)}
    if not members and payload is None:
        fail("give --type, --payload, --priority, --ack-timeout or --max-attempts", code=2)
    changed = edit_message(id, _decoded(members, payload), current_actor(), source=state)
    print_json(changed.to_json())


@filtered
def replay(
    where: Filter,
    ids: Annotated[list[str] | None, typer.Argument(help="Ids of dead letters.", metavar="ID")] = None,
    is_all: Annotated[
        bool, typer.Option("--all", help="Replay all dead letters, or all that match the options.")
    ] = False,
    yes: YesOption = False,
) -> None:
    """Move failed messages back to the main queue.

    Their attempts are reset, and their history is kept. Asks for confirmation with the number of messages. Prints an
    outcome for each; exit code 1 if one was not replayed.

    Examples: `queue-manager queue replay 3f2a…`, `queue-manager queue replay --all --type send_mail --yes`
    """

    def change(some: Sequence[str], _: AuditedAction) -> Mapping[str, MessageOutcome]:
        return message_queue.queue_admin().replay(some)

    _change(("replay", "replayed"), change, ids, is_all, "dead", where, yes=yes)


@filtered
def move(
    where: Filter,
    to: Annotated[Literal["main", "dead", "acknowledged", "archived"], typer.Option(help="The state to move them to.")],
    ids: MessageIdArguments = None,
    state: FromState = None,
    is_all: IsAll = False,
    reason: Annotated[str, typer.Option(help="Why; kept with dead letters, and in the history.")] = DEFAULT_MOVE_REASON,
    yes: YesOption = False,
) -> None:
    """Move messages to another state, after confirmation.

    In `main`, their attempts are reset, unless they come from `processing`. Prints an outcome for each; exit code 1 if
    one was not moved.

    Examples: `queue-manager queue move 3f2a… --to archived`, `queue-manager queue move --all --state dead --until
    2026-01-31 --to archived`
    """
    if to == state:
        fail(f"--to: must be another state than --state, which is {state}", code=2)

    def change(some: Sequence[str], _: AuditedAction) -> Mapping[str, MessageOutcome]:
        return message_queue.queue_admin().move(some, to=to, source=state, reason=reason)

    _change(("move", "moved"), change, ids, is_all, state, where, yes=yes, detail=f"to {to} ({reason})")


@filtered
def delete(
    where: Filter,
    ids: MessageIdArguments = None,
    state: FromState = None,
    is_all: IsAll = False,
    yes: YesOption = False,
) -> None:
    """Delete messages, after confirmation. Can be undone for 10 minutes.

    Prints an outcome for each; exit code 1 if one was not deleted.

    Examples: `queue-manager queue delete 3f2a…`, `queue-manager queue delete --all --state archived --until 2026-01-31`
    """

    def change(some: Sequence[str], action: AuditedAction) -> Mapping[str, MessageOutcome]:
        keep = action.keeper("message", expected=action.total or 0)
        return message_queue.queue_admin().delete(some, source=state, keep=keep)

    _change(("delete", "deleted"), change, ids, is_all, state, where, yes=yes)


def clear(
    state: Annotated[
        MessageState | None,
        typer.Argument(help=STATE_HELP, metavar="STATE"),
    ] = None,
    is_all: Annotated[bool, typer.Option("--all", help="The messages in all states.")] = False,
    yes: YesOption = False,
) -> None:
    """Delete all messages in a state, after confirmation. Above 1,000 messages, the name of the state must be typed.

    Messages that are added before you confirm are deleted, too; later ones are kept. Can be undone for 10 minutes,
    unless there are more than 100,000.

    Example: `queue-manager queue clear archived`
    """
    if (state is None) != is_all:
        fail("give a state, or --all", code=2)
    counts = message_queue.queue_admin().counts()
    count = sum(map(counts.of, MESSAGE_STATES if state is None else [state]))
    name = state or "all"
    confirm("delete", count, "message", f" in {name}", yes=yes, typed=name)
    answer = clear_messages(state, current_actor(), is_over=lambda: False)
    print_line(f"{answer.cleared} deleted")
    echo_undo(answer.undo)


# Arguments


def _options(priority: int | None, ack_timeout: str | None, max_attempts: str | None) -> dict[str, Any]:
    """Return the options of a message that were given, by their names in the HTTP API. Raises `InvalidMessage`."""
    texts = {"ackTimeout": ack_timeout, "maxAttempts": max_attempts}
    given = {name: text for name, text in texts.items() if text is not None}
    options = {name: None if text == DEFAULT else _number(text, name) for name, text in given.items()}
    return options | ({} if priority is None else {"priority": priority})


def _number(text: str, name: str) -> float:
    try:
        number = int(text) if text.isdecimal() else float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise InvalidMessage(name, f"a number, or `{DEFAULT}`")
    return number


def _decoded(members: Mapping[str, Any], payload: str | None) -> dict[str, Any]:
    """Return the members of a message as from a request, so that the payload stays as it was given."""
    if payload is None:
        return {**members}
    try:
        json.loads(payload)
    except (ValueError, RecursionError) as error:
        raise InvalidMessage("payload", f"JSON ({error})") from None
    body = f'{{"payload":{payload}}}'.encode("utf-8", "surrogatepass")
    return {**members, **decode_message(parse_object(body))}


def _chosen(ids: list[str] | None, is_all: bool, state: MessageState | None, where: Filter) -> list[str]:
    """Return the ids that were given, or those of all that match, oldest first."""
    if bool(ids) == is_all or (where != MATCH_ALL and not is_all):
        noun = "dead letters" if state == "dead" else "messages"
        fail(f"give ids of {noun}, or --all, optionally with filters", code=2)
    if ids:
        return list(dict.fromkeys(ids))
    if state is None or state == "processing":
        fail("--state: must be main, dead, acknowledged or archived together with --all", code=2)
    kept: KeptState = state
    return list(dict.fromkeys(id for some in message_queue.queue_admin().matching_ids(kept, where) for id in some))


# Changes


def _change(
    words: tuple[ActionName, str],
    change: Change,
    ids: list[str] | None,
    is_all: bool,
    state: MessageState | None,
    where: Filter,
    *,
    yes: bool,
    detail: str = "",
) -> None:
    """Change messages in batches, and print the outcomes of each at once, because the next one may fail."""
    action, past = words
    chosen = _chosen(ids, is_all, state, where)
    noun = "dead letter" if state == "dead" else "message"
    confirm(action, len(chosen), noun, yes=yes)
    selected = {"state": state, **asdict(where)} if is_all else None
    with audited(action, **AUDITED_QUEUE, filter=selected, ids=chosen, detail=detail) as done:
        for outcomes in change_messages(done, chosen, change):
            for id, outcome in outcomes.items():
                print_line(f"{id}  {_outcome_text(outcome, past, state)}")
    echo_undo(done.undo)
    print_line(f"{done.count} of {len(chosen)} {past}")
    if done.count != len(chosen):
        raise typer.Exit(1)


def _outcome_text(outcome: MessageOutcome, past: str, state: MessageState | None) -> str:
    noun = "dead letter" if state == "dead" else "message"
    place = f" in {state}" if state and state != "dead" else ""
    reasons = {
        "NOT_FOUND": f"there is no such {noun}{place}",
        "UNDECODABLE": "it cannot be decoded",
        "CHANGED": "it changed meanwhile",
    }
    return f"not {past}: {reasons[outcome]}" if outcome in reasons else past
