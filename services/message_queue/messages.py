"""Messages as producers enqueue them and as consumers receive them.

Guarantee: a payload is any JSON value and is kept byte for byte as its producer wrote it (`Json`). It is decoded only
on access. Of the events since a message's first delivery, the newest are kept, at most 2,000 bytes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import Annotated, Any, Literal, cast, get_args
from uuid import uuid4

from pydantic import with_config

from queue_manager.core.json_types import ALWAYS_PRESENT, optional
from services.message_queue.errors import InvalidMessage, MessageTooLarge
from services.message_queue.fields import (
    MAX_NAME_BYTES,
    MAX_PAYLOAD_DEPTH,
    Json,
    as_json,
    checked_integer,
    checked_new_type,
    checked_options,
    is_too_deep,
    members,
)

EventKind = Literal["delivered", "touched", "requeued", "dead-lettered", "acknowledged", "replayed", "archived"]

_NEW_ID = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9_.:@-]{1,128}")  # URLs cannot contain `.` and `..`
_LINE = re.compile(rf"({'|'.join(get_args(EventKind))}) (\d{{1,15}}) (.*)")
_DELIVERY = re.compile(r"(\d{1,10}) (.*)")
# `json.dumps` would make an encoder for each call.
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


@dataclass(frozen=True, kw_only=True)
class QueueOptions:
    """Limits of a queue, and defaults for messages without their own options."""

    levels: int
    """Number of priorities."""
    max_payload_bytes: int
    ack_timeout: timedelta
    max_attempts: int
    sweep_period: timedelta
    """Time between two periodic sweeps; an earlier deadline needs an additional sweep."""
    is_token_required: bool = True
    is_shared: bool = True
    """Whether other programs produce to or consume from the same streams."""

    def checked_payload(self, value: Any) -> Json:
        """Return the payload as JSON. Raises `InvalidMessage`, `MessageTooLarge`."""
        text = as_json(value)
        if len(text) > self.max_payload_bytes or len(text.encode()) > self.max_payload_bytes:
            raise MessageTooLarge("payload", f"JSON of at most {self.max_payload_bytes} bytes")
        if is_too_deep(text):
            raise InvalidMessage("payload", f"JSON of at most {MAX_PAYLOAD_DEPTH} levels")
        return text

    def checked_priority(self, value: Any) -> int:
        return checked_integer(value, "priority", minimum=0, maximum=self.levels - 1)


# For producers

FIELD_ALIASES = {"ackTimeout": "ack_timeout", "maxAttempts": "max_attempts"}
FIELD_ALIASES |= {"custom_ack_timeout": "ack_timeout", "custom_max_attempts": "max_attempts"}


@dataclass(frozen=True, kw_only=True)
class NewMessage:
    """A message to be enqueued. `None` stands for the queue's default."""

    type: str
    payload: Any = None
    priority: int = 0
    ack_timeout: float | None = None
    """Seconds."""
    max_attempts: int | None = None
    id: str | None = None
    """Idempotency key: a message whose id exists, also among the last 100 acknowledged ones, is not enqueued again."""

    @classmethod
    def from_members(cls, given: Mapping[str, Any]) -> NewMessage:
        """Read the members of a request by their names in the HTTP API. Raises `InvalidMessage` for an unknown name."""
        if not isinstance(given, Mapping):
            raise InvalidMessage("messages", 'a list of messages such as {"type": "send_mail", "payload": {}}')
        known: dict[str, Any] = {}
        for name, value in given.items():
            field = FIELD_ALIASES.get(name, name)
            if field not in cls.__dataclass_fields__:
                names = "type, payload, priority, ackTimeout, maxAttempts, id"
                raise InvalidMessage(name[:64], f"one of the fields {names}")
            if field != name and value is None:
                continue
            known[field] = value
        if "type" not in known:
            raise InvalidMessage("type", f"a string of 1 to {MAX_NAME_BYTES} bytes; it is missing")
        return cls(**known)

    def arguments(self, queue: QueueOptions) -> tuple[str, str, str, int, str, str]:
        """Return the arguments of `enqueue.lua`, the id first and the payload last. Raises `InvalidMessage`."""
        id = uuid4().hex if self.id is None else self.id
        if not isinstance(id, str) or not _NEW_ID.fullmatch(id):
            raise InvalidMessage("id", "1 to 128 letters, digits or any of _ . : @ -, but not . or ..")
        type = checked_new_type(self.type)
        priority = queue.checked_priority(self.priority)
        own = checked_options(ack_timeout=self.ack_timeout, max_attempts=self.max_attempts)
        options = "".join(f'"{name}":{json.dumps(value)},' for name, value in own.items())
        return id, type, as_json(type), priority, options, queue.checked_payload(self.payload)


# For consumers


@with_config(ALWAYS_PRESENT)
@dataclass(frozen=True, kw_only=True)
class HistoryEvent:
    """What happened to a message. Members that do not apply are left out."""

    event: EventKind
    at: float
    """Unix seconds by the server's clock."""
    attempt: Annotated[int | None, optional("Of a delivery, counted from 1.")] = None
    consumer_id: Annotated[str | None, optional("To whom it was delivered, as the consumer named itself.")] = None
    touches: Annotated[
        int | None,
        optional("How many touches in a row this event stands for; `at` is the last."),
    ] = None
    reason: Annotated[str | None, optional("Why it was requeued or dead-lettered; its first 200 bytes.")] = None


@dataclass(frozen=True, kw_only=True)
class Message:
    """A message. `fields` has everything but the payload, by the names of the HTTP API; times are Unix seconds."""

    fields: Mapping[str, Any]
    payload_json: Json
    """The payload as its producer wrote it."""
    packed_events: str = ""
    """What happened to it since its first delivery, as the scripts pack it."""

    @classmethod
    def read(cls, id: bytes, data: bytes, record: bytes) -> Message:
        """Build a message from its entry and its record. Never raises: an undecodable entry becomes the payload."""
        about: dict[str, Any] = json.loads(record.decode("utf-8", "replace"))
        payload, is_message = _payload_of(data)
        if about.pop("undecodable", False):
            payload, is_message = as_json(data.decode("utf-8", "replace")), False
        for internal in ("v", "added", "unindexed", "passed_over"):
            about.pop(internal, None)
        packed_events = about.pop("events", "")
        if "lock_token" in about:
            about.setdefault("consumer_id", None)
        stream, sid = about.pop("stream"), about.pop("sid")
        created_at, priority, attempts = about.pop("created_at"), about.pop("priority"), about.pop("attempt_count")
        fields = {
            "id": id.decode("utf-8", "replace"),
            "type": about.pop("type"),
            "priority": int(priority),
            "created_at": created_at,
            "attempt_count": int(attempts),
            **about,
            "_stream_id": sid,
            "_stream_name": stream,
        }
        if not is_message:
            fields["undecodable"] = True
        return cls(fields=fields, payload_json=payload, packed_events=packed_events)

    @cached_property
    def payload(self) -> Any:
        """The payload as a Python value."""
        return json.loads(self.payload_json)

    @property
    def id(self) -> str:
        return str(self.fields["id"])

    @property
    def type(self) -> str:
        return str(self.fields["type"])

    @property
    def priority(self) -> int:
        return int(self.fields["priority"])

    @property
    def attempt(self) -> int:
        """Number of deliveries, including this one."""
        return int(self.fields["attempt_count"])

    @property
    def lock_token(self) -> str | None:
        return self.fields.get("lock_token")

    @property
    def deadline_at(self) -> float | None:
        """Ack deadline in Unix seconds, by the server's clock."""
        return self.fields.get("deadline_at")

    @property
    def is_decodable(self) -> bool:
        return "undecodable" not in self.fields

    def events(self) -> Iterator[HistoryEvent]:
        """Yield what happened to it since its first delivery, oldest first, without lines of other programs."""
        for line in self.packed_events.split("\n"):
            if not (found := _LINE.fullmatch(line)):
                continue
            kind, at, text = cast(EventKind, found[1]), int(found[2]) / 1000, found[3]
            if kind == "delivered" and (delivery := _DELIVERY.fullmatch(text)):
                yield HistoryEvent(event=kind, at=at, attempt=int(delivery[1]), consumer_id=delivery[2] or None)
            elif kind == "touched" and text.isdecimal():
                yield HistoryEvent(event=kind, at=at, touches=int(text[:10]))
            else:
                yield HistoryEvent(event=kind, at=at, reason=text or None)

    def to_json(self) -> Json:
        """Return the message as in the HTTP API, with the payload unchanged."""
        about = _encode(dict(self.fields))
        return Json(f'{about[:-1]},"payload":{self.payload_json}}}')

    def to_json_line(self) -> Json:
        """Return `to_json` as one line: line breaks between the tokens of the payload become spaces."""
        return Json(self.to_json().replace("\n", " ").replace("\r", " "))


def _payload_of(data: bytes) -> tuple[Json, bool]:
    """Return the payload of an entry, and whether the entry is a valid message."""
    try:
        return members(data.decode()).get("payload", Json("null")), True
    except (ValueError, RecursionError):  # UnicodeDecodeError is a ValueError
        return as_json(data.decode("utf-8", "replace")), False
