"""Messages, as producers give them and as consumers get them; payloads are kept byte for byte.

A payload is any JSON value. It travels as the text that its producer wrote (`Json`), and is read only by who wants to
look inside.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from uuid import uuid4

from services.message_queue.errors import InvalidMessage, MessageTooLarge

DEEPEST = 64
"""Levels of lists and objects in a payload."""
LONGEST_TYPE = LONGEST_CONSUMER = 256
LONGEST_ID = 256
LONGEST_TIMEOUT = 7 * 24 * 3600
"""Seconds that a message may be held without a touch."""
MOST_ATTEMPTS = 10_000
REASON_BYTES = 4_096  # of why a message failed; the rest is cut

_NEW_ID = re.compile(r"[A-Za-z0-9_.:@-]{1,128}")
_PRINTABLE = re.compile(r"[^\x00-\x1f\x7f\ud800-\udfff]+")
_SPACE = re.compile(r"[ \t\r\n]*")


class Json(str):
    """A text that is one JSON value."""


# Reading JSON strictly, without changing it


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


# Numbers stay as they are written: Python itself refuses to read an integer of more than 4,300 digits.
_strict = json.JSONDecoder(parse_constant=_no_constant, parse_int=str, parse_float=str)


def members(text: str) -> dict[str, Json]:
    """Return the members of a JSON object as they are written. Raises ValueError for anything else.

    Raises RecursionError for what is nested too deeply to be read at all.
    """
    at = _skip(text, 0)
    if text[at : at + 1] != "{":
        raise ValueError("not a JSON object")
    found: dict[str, Json] = {}
    at = _skip(text, at + 1)
    while text[at : at + 1] != "}":
        if found:
            at = _expect(text, at, ",")
        if text[at : at + 1] != '"':
            raise ValueError(f"no name of a member at {at}")
        name, at = _strict.raw_decode(text, at)
        at = _expect(text, _skip(text, at), ":")
        _, end = _strict.raw_decode(text, at)
        found[name] = Json(text[at:end])
        at = _skip(text, end)
    if _skip(text, at + 1) != len(text):
        raise ValueError(f"more than one value: it ends at {at + 1}")
    return found


def elements(text: str, *, most: int | None = None) -> list[Json]:
    """Return the elements of a JSON list as they are written. Raises like `members`, and when there are too many."""
    at = _skip(text, 0)
    if text[at : at + 1] != "[":
        raise ValueError("not a JSON list")
    found: list[Json] = []
    at = _skip(text, at + 1)
    while text[at : at + 1] != "]":
        if found:
            at = _expect(text, at, ",")
        if len(found) == most:
            raise InvalidMessage("body", f"a list of at most {most} messages")
        _, end = _strict.raw_decode(text, at)
        found.append(Json(text[at:end]))
        at = _skip(text, end)
    if _skip(text, at + 1) != len(text):
        raise ValueError(f"more than one value: it ends at {at + 1}")
    return found


def _skip(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at


def _expect(text: str, at: int, sign: str) -> int:
    if text[at : at + 1] != sign:
        raise ValueError(f"no {sign} at {at}")
    return _skip(text, at + 1)


def depth(text: str) -> int:
    """Return how many lists and objects are around the innermost value of a JSON text."""
    deepest = level = 0
    for sign in re.finditer(r'"(?:[^"\\]|\\.)*"|[\[{]|[\]}]', text):
        if sign[0] in "[{":
            level += 1
            deepest = max(deepest, level)
        elif sign[0] in "]}":
            level -= 1
    return deepest


def as_json(value: Any, *, field: str = "payload") -> Json:
    """Write a value as JSON; a `Json` stays as it is. Raises `InvalidMessage` for what JSON cannot say."""
    if isinstance(value, Json):
        return value
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        text.encode()
    except UnicodeEncodeError:  # half of a pair: JSON can only say it escaped
        text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidMessage(field, f"a value that JSON can say ({error})") from None
    return Json(text)


# Checks, each in one place


def checked_text(value: Any, field: str, *, longest: int) -> str:
    """Return `value` if it is a text of printable characters. Raises `InvalidMessage`."""
    if not isinstance(value, str) or not _is_printable(value, longest):
        raise InvalidMessage(field, f"a text of 1 to {longest} bytes without control characters")
    return value


def checked_id(value: Any, field: str = "id") -> str:
    """Return the id of a message that may exist. Raises `InvalidMessage`."""
    return checked_text(value, field, longest=LONGEST_ID)


def is_id(text: str) -> bool:
    """Tell whether it is an id that a message may have and people can name."""
    return _is_printable(text, LONGEST_ID)


def _is_printable(text: str, longest: int) -> bool:
    return _PRINTABLE.fullmatch(text) is not None and len(text.encode()) <= longest


def checked_number(value: Any, field: str, *, least: float, most: float) -> float:
    """Return `value` if it is a number in the range, bounds included. Raises `InvalidMessage`."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise InvalidMessage(field, f"a number from {least:g} to {most:g}")
    return value


def checked_whole(value: Any, field: str, *, least: int, most: int) -> int:
    """Return `value` if it is a whole number in the range, bounds included. Raises `InvalidMessage`."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InvalidMessage(field, f"a whole number from {least} to {most}")
    return value


def checked_timeout(value: Any, field: str) -> float:
    """Return seconds that a message may be held. Raises `InvalidMessage`."""
    return checked_number(value, field, least=0.001, most=LONGEST_TIMEOUT)


def cut(reason: str) -> bytes:
    """Return the beginning of a reason, as what can be kept of it."""
    return reason.encode("utf-8", "replace")[:REASON_BYTES].decode("utf-8", "ignore").encode()


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """What this queue accepts."""

    levels: int
    max_payload_bytes: int

    def checked_payload(self, value: Any) -> Json:
        """Return the payload as JSON. Raises `InvalidMessage`, `MessageTooLarge`."""
        text = as_json(value)
        if len(text) > self.max_payload_bytes or len(text.encode()) > self.max_payload_bytes:
            raise MessageTooLarge("payload", f"JSON of at most {self.max_payload_bytes} bytes")
        if depth(text) > DEEPEST:
            raise InvalidMessage("payload", f"JSON of at most {DEEPEST} levels")
        return text

    def checked_priority(self, value: Any) -> int:
        return checked_whole(value, "priority", least=0, most=self.levels - 1)


# What producers give

ALIASES = {"ackTimeout": "ack_timeout", "maxAttempts": "max_attempts"}
ALIASES |= {"custom_ack_timeout": "ack_timeout", "custom_max_attempts": "max_attempts"}


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
    """Makes repeated enqueueing harmless."""

    @classmethod
    def from_members(cls, given: Mapping[str, Any]) -> NewMessage:
        """Read what a client sent by the names of the HTTP API. Raises `InvalidMessage` for a name it does not know."""
        known: dict[str, Any] = {}
        for name, value in given.items():
            field = ALIASES.get(name, name)
            if field not in cls.__dataclass_fields__:
                names = "type, payload, priority, ackTimeout, maxAttempts, id"
                raise InvalidMessage(name[:64], f"no such field; the fields are {names}")
            if field != name and value is None:
                continue
            known[field] = value
        if "type" not in known:
            raise InvalidMessage("type", f"a text of 1 to {LONGEST_TYPE} bytes; it is missing")
        return cls(**known)

    def arguments(self, bounds: Bounds) -> tuple[str, list[str | int]]:
        """Return the id, and the arguments that `enqueue.lua` takes. Raises `InvalidMessage`."""
        id = uuid4().hex if self.id is None else self.id
        if not isinstance(id, str) or not _NEW_ID.fullmatch(id):
            raise InvalidMessage("id", "1 to 128 letters, digits or any of _ . : @ -")
        type = checked_text(self.type, "type", longest=LONGEST_TYPE)
        priority = bounds.checked_priority(self.priority)
        options = "".join(f'"{name}":{json.dumps(value)},' for name, value in self._options().items())
        payload = bounds.checked_payload(self.payload)
        return id, [id, type, as_json(type), priority, options, payload]

    def _options(self) -> dict[str, float]:
        return checked_options(ack_timeout=self.ack_timeout, max_attempts=self.max_attempts)


def checked_options(*, ack_timeout: Any, max_attempts: Any) -> dict[str, float]:
    """Return what a message says of itself, by the names of its record. Raises `InvalidMessage`."""
    options: dict[str, float] = {}
    if ack_timeout is not None:
        options["custom_ack_timeout"] = checked_timeout(ack_timeout, "ackTimeout")
    if max_attempts is not None:
        options["custom_max_attempts"] = checked_whole(max_attempts, "maxAttempts", least=1, most=MOST_ATTEMPTS)
    return options


# What consumers get


@dataclass(frozen=True, kw_only=True)
class Message:
    """A message of the queue. `fields` has all but the payload, by the names of the HTTP API; times are seconds."""

    fields: Mapping[str, Any]
    payload_json: Json
    """The payload as its producer wrote it."""

    @classmethod
    def read(cls, id: bytes, data: bytes, record: bytes) -> Message:
        """Put an entry and its record together. Never raises: what cannot be read is shown as it is."""
        about: dict[str, Any] = json.loads(record.decode("utf-8", "replace"))
        payload, is_message = _payload_of(data)
        if about.pop("undecodable", False):
            payload, is_message = as_json(data.decode("utf-8", "replace")), False
        about.pop("added", None)
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
        return cls(fields=fields, payload_json=payload)

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
        """How many times it was delivered, this time included."""
        return int(self.fields["attempt_count"])

    @property
    def lock_token(self) -> str | None:
        return self.fields.get("lock_token")

    @property
    def deadline_at(self) -> float | None:
        """When it must be acknowledged, in seconds by the server's clock."""
        return self.fields.get("deadline_at")

    @property
    def is_decodable(self) -> bool:
        return "undecodable" not in self.fields

    def to_json(self) -> Json:
        """Return it as the HTTP API shows it, with the payload as it was written."""
        about = json.dumps(dict(self.fields), ensure_ascii=False, separators=(",", ":"))
        return Json(f'{about[:-1]},"payload":{self.payload_json}}}')


def _payload_of(data: bytes) -> tuple[Json, bool]:
    """Return the payload inside an entry, and whether the entry is a message at all."""
    try:
        return members(data.decode()).get("payload", Json("null")), True
    except (ValueError, RecursionError):  # of bytes that are no UTF-8, too
        return as_json(data.decode("utf-8", "replace")), False
