"""Rendering of messages on a terminal and as JSON.

Guarantee: text of producers reaches a terminal without control characters or markup. JSON that is not printed to a
terminal is unchanged byte for byte.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from queue_manager.core.clock import truncate
from queue_manager.explanation import rounded
from services.message_queue import Message, MessageListing, MessageState, QueueCounts
from services.message_queue.browser import MESSAGE_STATES
from services.message_queue.explanation import reason_text
from services.message_queue.history import parse_events

MAX_ERROR_LENGTH = 60  # characters of an error in a table
MAX_PAYLOAD_LENGTH = 200  # characters of a payload in a table
DEFAULT_WIDTH = 160  # columns if there is no terminal
TIMESTAMP_FIELDS = (
    *("created_at", "dequeued_at", "processing_started_at", "deadline_at"),
    *("failed_at", "acknowledged_at", "archived_at", "at"),
)


def printable(text: str) -> str:
    """Return `text` with control characters escaped."""
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in text)


def console() -> Console:
    """Return a console without markup; colours only on a terminal, and a fixed width if there is none."""
    has_width = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(width=None if has_width else DEFAULT_WIDTH, markup=False, emoji=False, highlight=False)


def table(
    titles: Sequence[str], *, numbers: Sequence[str] = (), whole: Sequence[str] = (), rest: str | None = None
) -> Table:
    """Return an empty table. `numbers` and `whole` are not wrapped; the last column, `rest`, fills the width."""
    made = Table(box=None, pad_edge=False, header_style="bold", expand=rest is not None)
    for title in titles:
        if title in whole:
            made.add_column(title, no_wrap=True)
        else:
            is_number = title in numbers
            made.add_column(title, overflow="fold", justify="right" if is_number else "left", no_wrap=is_number)
    if rest is not None:
        made.add_column(rest, overflow="ellipsis", no_wrap=True, ratio=1, style="dim")
    return made


def add_row(table: Table, cells: Iterable[object]) -> None:
    """Add a row of texts, with control characters escaped."""
    table.add_row(*(Text(printable(str(cell))) for cell in cells))


def table_of(state: MessageState, messages: Sequence[Message], now: float) -> Table:
    """Return a table of messages in `state`, with ages at `now`."""
    # The payload gets the remaining width, so that ids are not truncated and can be copied.
    titles = ("id", "type", *(numbers := ("priority", "attempts", "age")), *_titles(state))
    made = table(titles, numbers=numbers, whole=("id",), rest="payload")
    for message in messages:
        add_row(made, _row(state, message, now))
    return made


def _titles(state: MessageState) -> list[str]:
    own = {"processing": ["deadline", "consumer"], "dead": ["last error"], "acknowledged": ["acknowledged"]}
    return own.get(state, [])


def _row(state: MessageState, message: Message, now: float) -> list[str]:
    own = {
        "processing": [_deadline(message, now), message.fields.get("consumer_id") or ""],
        "dead": [reason_text(str(message.fields.get("last_error", "")))[:MAX_ERROR_LENGTH]],
        "acknowledged": [field_text("acknowledged_at", message.fields.get("acknowledged_at", ""))],
    }.get(state, [])
    age = rounded(now - message.fields["created_at"], least=1)
    known = [message.id, message.type, str(message.priority), str(message.attempt), age]
    return [*known, *own, message.payload_json[:MAX_PAYLOAD_LENGTH]]


def _deadline(message: Message, now: float) -> str:
    if message.deadline_at is None:
        return ""
    left = message.deadline_at - now
    return f"in {rounded(left, least=1)}" if left > 0 else f"{rounded(-left, least=1)} overdue"


def counts_line(counts: QueueCounts) -> str:
    """Format the number of messages by state in one line."""
    numbers = {state: str(counts.of(state)) for state in MESSAGE_STATES}
    if counts.overdue:
        numbers["processing"] += f" ({counts.overdue} overdue)"
    numbers["acknowledged"] += f" of {counts.total_acknowledged}"
    return "  ".join(f"{state} {number}" for state, number in numbers.items())


def print_message(console: Console, message: Message) -> None:
    """Print a message, one field per line, with its payload indented."""
    for name, value in message.fields.items():
        console.print(
            Text.assemble((f"{printable(name):<22}", "bold"), printable(field_text(name, value))), soft_wrap=True
        )
    for event in parse_events(message.packed_events):
        parts = (f"attempt {event.attempt}" if event.attempt else "", event.consumer_id or "", event.reason or "")
        count = f"{event.touches} times" if event.touches else ""
        line = f"  {field_text('at', event.at)}  {event.event}  {'  '.join(filter(None, [*parts, count]))}"
        console.print(Text(printable(line.rstrip())), soft_wrap=True)
    console.print(Text("payload", "bold"))
    for line in indent_json(message.payload_json).split("\n"):
        console.print(Text(f"  {printable(line)}"), soft_wrap=True)


def field_text(name: str, value: Any) -> str:
    """Return the value of a field as text, a timestamp as a time in UTC."""
    if name in TIMESTAMP_FIELDS and isinstance(value, int | float):
        try:
            moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=value)
        except (OverflowError, ValueError):  # an invalid time of another producer
            return str(value)
        return f"{truncate(moment).isoformat(sep=' ', timespec='milliseconds')[:-6]} UTC"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def indent_json(text: str) -> str:
    """Return a JSON text with one member per line; keys and values are unchanged."""
    try:
        return msgspec.json.format(str(text), indent=2)
    except msgspec.DecodeError:  # an unpaired surrogate
        return text


def page_json(page: MessageListing) -> str:
    """Return a page as JSON: the messages as in the HTTP API, and the cursor."""
    messages = ",".join(message.to_json() for message in page.messages)
    about = {"cursor": page.cursor, "matched": page.matched, "is_partial": page.is_partial}
    return f'{{"messages":[{messages}],{json.dumps(about, separators=(",", ":"))[1:]}'


def print_json(text: str) -> None:
    """Print JSON unchanged; on a terminal, control characters are escaped as in JSON."""
    if sys.stdout.isatty():
        text = "".join(character if character.isprintable() else _escaped(character) for character in text)
    typer.echo(text.encode(errors="backslashreplace"))


def _escaped(character: str) -> str:
    return " " if character in "\t\r\n" else json.dumps(character)[1:-1].replace("\x7f", "\\u007f")
