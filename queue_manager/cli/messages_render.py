"""How `queue-manager queue` shows messages: tables, one message, counts, pages as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from queue_manager.cli.terminal import MAX_ERROR_LENGTH, MAX_PAYLOAD_LENGTH, add_row, printable, table
from queue_manager.core.clock import truncate
from queue_manager.core.wording import rounded
from services.message_queue import Message, MessageListing, MessageState, QueueCounts
from services.message_queue.browser import MESSAGE_STATES
from services.message_queue.explanation import reason_text
from services.message_queue.history import parse_events

TIMESTAMP_FIELDS = (
    *("created_at", "dequeued_at", "processing_started_at", "deadline_at"),
    *("failed_at", "acknowledged_at", "archived_at", "at"),
)


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
