"""How messages look on a terminal, and as JSON.

Guarantee: nothing that a producer wrote reaches a terminal as a control character or as markup; JSON that goes
elsewhere is byte for byte.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from queue_manager.core.clock import truncate
from services.message_queue import Counts, Message, MessagePage, MessageState
from services.message_queue.admin import MESSAGE_STATES

PREVIEW = 60  # characters of an error in a table
LONGEST_LINE = 200  # characters of a payload in a table
WIDE = 160  # columns where there is no terminal
TIMES = ("created_at", "dequeued_at", "processing_started_at", "deadline_at", "failed_at", "acknowledged_at")
_SIGNS = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{},:]|[^\s\[\]{},:"]+')
_OPENING, _CLOSING = ("{", "["), ("}", "]")


def printable(text: str) -> str:
    """Return `text` with everything that a terminal could obey written as Python would write it."""
    return "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in text)


def console() -> Console:
    """Return what prints texts as they are; colours only on a terminal, and wide where there is none."""
    has_width = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(width=None if has_width else WIDE, markup=False, emoji=False, highlight=False)


def table_of(place: MessageState, messages: Sequence[Message], now: float) -> Table:
    """Return the messages of a place, one a row, with ages at `now`."""
    # What is left of the line is the payload's, so that ids can be copied.
    table = Table(box=None, pad_edge=False, header_style="bold", expand=True)
    for title in ("id", "type", "priority", "attempts", "age", *_titles(place)):
        is_number = title in ("priority", "attempts", "age")
        table.add_column(title, overflow="fold", justify="right" if is_number else "left", no_wrap=is_number)
    table.add_column("payload", overflow="ellipsis", no_wrap=True, ratio=1, style="dim")
    for message in messages:
        table.add_row(*(Text(printable(cell)) for cell in _row(place, message, now)))
    return table


def _titles(place: MessageState) -> list[str]:
    own = {"processing": ["deadline", "consumer"], "dead": ["last error"], "acknowledged": ["acknowledged"]}
    return own.get(place, [])


def _row(place: MessageState, message: Message, now: float) -> list[str]:
    own = {
        "processing": [_deadline(message, now), str(message.fields.get("consumer_id", ""))],
        "dead": [str(message.fields.get("last_error", ""))[:PREVIEW]],
        "acknowledged": [_said("acknowledged_at", message.fields.get("acknowledged_at", ""))],
    }.get(place, [])
    age = span(now - message.fields["created_at"])
    known = [message.id, message.type, str(message.priority), str(message.attempt), age]
    return [*known, *own, message.payload_json[:LONGEST_LINE]]


def _deadline(message: Message, now: float) -> str:
    if message.deadline_at is None:
        return ""
    left = message.deadline_at - now
    return f"in {span(left)}" if left > 0 else f"{span(-left)} overdue"


def span(seconds: float) -> str:
    """Say how long that is, by its largest unit: `12 s`, `3 min`, `2 h`, `4 d`."""
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def counts_line(counts: Counts) -> str:
    """Say in one line how many messages are where."""
    numbers = {place: str(counts.of(place)) for place in MESSAGE_STATES}
    if counts.overdue:
        numbers["processing"] += f" ({counts.overdue} overdue)"
    numbers["acknowledged"] += f" of {counts.total_acknowledged}"
    return "  ".join(f"{place} {number}" for place, number in numbers.items())


def print_message(console: Console, message: Message) -> None:
    """Print everything of one message, a field a line, and its payload indented."""
    for name, value in message.fields.items():
        console.print(Text.assemble((f"{printable(name):<22}", "bold"), printable(_said(name, value))), soft_wrap=True)
    console.print(Text("payload", "bold"))
    for line in indented(message.payload_json).split("\n"):
        console.print(Text(f"  {printable(line)}"), soft_wrap=True)


def _said(name: str, value: Any) -> str:
    if name in TIMES and isinstance(value, int | float):
        try:
            moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=value)
        except (OverflowError, ValueError):  # another producer's idea of a time
            return str(value)
        return f"{truncate(moment).isoformat(sep=' ', timespec='milliseconds')[:-6]} UTC"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def indented(text: str) -> str:
    """Return a JSON text with each member on a line of its own; what is written in it stays as it is."""
    parts: list[str] = []
    level, last = 0, None
    for sign in _SIGNS.findall(text):
        if sign in _CLOSING:
            level -= 1
        is_empty = sign in _CLOSING and last in _OPENING
        if not is_empty and (sign in _CLOSING or last in _OPENING or last == ","):
            parts.append("\n" + "  " * level)
        parts.append(": " if sign == ":" else sign)
        level += sign in _OPENING
        last = sign
    return "".join(parts)


def page_json(page: MessagePage) -> str:
    """Return a page as JSON: the messages as the HTTP API shows them, and where to go on."""
    messages = ",".join(message.to_json() for message in page.messages)
    about = {"cursor": page.cursor, "matched": page.matched, "is_partial": page.is_partial}
    return f'{{"messages":[{messages}],{json.dumps(about, separators=(",", ":"))[1:]}'


def print_json(text: str) -> None:
    """Print JSON byte for byte; on a terminal what it could obey is escaped as JSON does, which is the same value."""
    if sys.stdout.isatty():
        text = "".join(sign if sign.isprintable() else _escaped(sign) for sign in text)
    typer.echo(text.encode(errors="backslashreplace"))


def _escaped(sign: str) -> str:
    return " " if sign in "\t\r\n" else json.dumps(sign)[1:-1].replace("\x7f", "\\u007f")
