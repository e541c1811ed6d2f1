"""How `queue-manager queue` shows messages: tables, one message, counts, pages as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from queue_manager.cli.terminal import MAX_ERROR_LENGTH, MAX_PAYLOAD_LENGTH, print_line, print_rows
from queue_manager.core.clock import truncate
from queue_manager.core.wording import rounded, without_traceback
from services.message_queue import Message, MessageListing, MessageState, QueueCounts
from services.message_queue.browser import MESSAGE_STATES
from services.message_queue.explanation import reason_text

TIMESTAMP_FIELDS = (
    *("created_at", "dequeued_at", "processing_started_at", "deadline_at"),
    *("failed_at", "acknowledged_at", "archived_at", "at"),
)
MESSAGE_NUMBERS = ("priority", "attempts", "age")
HIDDEN_MESSAGE_COLUMNS = (
    *("priority", "attempts", "payload", "age", "acknowledged"),
    *("consumer", "deadline", "last error", "type"),
)
"""Columns that a narrow terminal does not show, the least important first."""


STATE_TITLES: dict[MessageState, str] = {"main": "waiting (main)", "dead": "failed (dead)"}
"""The words of the pages for states, with the names that commands take, where these differ."""
STATE_HELP = "State of the messages: main (waiting), processing, dead (failed), acknowledged, archived."


def print_messages(state: MessageState, messages: Sequence[Message], now: float, *, nothing: str) -> None:
    """Print a table of messages in `state`, with ages at `now`; `nothing` if there are none."""
    rows = [_row(state, message, now) for message in messages]
    print_rows(rows, nothing=nothing, numbers=MESSAGE_NUMBERS, rest="payload", hidden_first=HIDDEN_MESSAGE_COLUMNS)


def _row(state: MessageState, message: Message, now: float) -> dict[str, str]:
    fields = message.fields
    known = {
        "id": message.id,
        "type": message.type,
        "priority": str(message.priority),
        "attempts": str(message.attempt),
        "age": rounded(now - fields["created_at"], least=1),
    }
    own: dict[str, str] = {}
    if state == "processing":
        own = {"deadline": _deadline(message, now), "consumer": fields.get("consumer_id") or ""}
    elif state == "dead":
        own = {"last error": reason_text(without_traceback(str(fields.get("last_error", ""))))[:MAX_ERROR_LENGTH]}
    elif state == "acknowledged":
        own = {"acknowledged": field_text("acknowledged_at", fields.get("acknowledged_at", ""))}
    return {**known, **own, "payload": message.payload_json[:MAX_PAYLOAD_LENGTH]}


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
    numbers["acknowledged"] = f"{counts.total_acknowledged} ({counts.of('acknowledged')} kept)"
    return "  ".join(f"{STATE_TITLES.get(state, state)} {number}" for state, number in numbers.items())


def print_message(state: MessageState, message: Message) -> None:
    """Print a message, one field per line, with its payload indented."""
    for name, value in {"state": STATE_TITLES.get(state, state), **message.fields}.items():
        print_line((f"{name:<22}", "bold"), field_text(name, value))
    for event in message.events():
        parts = (f"attempt {event.attempt}" if event.attempt else "", event.consumer_id or "", event.reason or "")
        count = f"{event.touches} times" if event.touches else ""
        about = "  ".join(filter(None, [*parts, count]))
        print_line(f"  {field_text('at', event.at)}  {event.event}  {about}".rstrip())
    print_line(("payload", "bold"))
    for line in indent_json(message.payload_json).split("\n"):
        print_line(f"  {line}")


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
    """Return a page as JSON: the messages as in the HTTP API, and the cursor of the next page."""
    messages = ",".join(message.to_json() for message in page.messages)
    about = {"cursor": page.cursor, "matched": page.matched, "is_partial": page.is_partial}
    return f'{{"messages":[{messages}],{json.dumps(about, separators=(",", ":"))[1:]}'
