"""Messages as producers enqueue them and as consumers receive them.

Guarantee: a payload is any JSON value and is kept byte for byte as its producer wrote it (`Json`). It is decoded only
on access.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import Any
from uuid import uuid4

import msgspec

from services.message_queue.errors import InvalidMessage, MessageTooLarge

MAX_PAYLOAD_DEPTH = 64
"""Levels of nested lists and objects in a payload."""
MAX_TYPE_BYTES = MAX_CONSUMER_ID_BYTES = 256
MAX_ID_BYTES = 256
MAX_ACK_TIMEOUT = 7 * 24 * 3600
"""Seconds."""
MAX_ATTEMPTS = 10_000
MAX_REASON_BYTES = 4_096  # longer failure reasons are truncated

_NEW_ID = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9_.:@-]{1,128}")  # URLs cannot contain `.` and `..`
_PRINTABLE = re.compile(r"[^\x00-\x1f\x7f\ud800-\udfff]+")
_LINE_OR_C1_CONTROL = re.compile(r"[\x80-\x9f\u2028\u2029]")
_SPACE = re.compile(r"[ \t\r\n]*")
_STRING_OR_BRACKET = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[\[{]|[\]}]')


class Json(str):
    """A text that is one JSON value."""


# Reading JSON strictly, without changing it


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not valid JSON")


# Numbers stay as text: Python refuses to parse an integer of more than 4,300 digits. Objects are checked, and not kept:
# those of a payload would take ten times its memory.
_strict = json.JSONDecoder(parse_constant=_no_constant, parse_int=str, parse_float=str, object_pairs_hook=len)
_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode  # a tenth of the time
# `json.dumps` would make an encoder for each call.
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_encode_strictly = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def members(text: str) -> dict[str, Json]:
    """Return the members of a JSON object without decoding them. Raises ValueError for anything else.

    Raises RecursionError if the nesting is too deep to parse.
    """
    # msgspec rejects unpaired surrogates, which are read below, and accepts no subclass of `str` such as `Json`.
    with suppress(msgspec.MsgspecError, UnicodeError):
        return {name: Json(bytes(value).decode()) for name, value in _members(str(text)).items()}
    at = _skip(text, 0)
    if text[at : at + 1] != "{":
        raise ValueError("not a JSON object")
    found: dict[str, Json] = {}
    at = _skip(text, at + 1)
    while text[at : at + 1] != "}":
        if found:
            at = _expect(text, at, ",")
        if text[at : at + 1] != '"':
            raise ValueError(f"expected a member name at {at}")
        name, at = _strict.raw_decode(text, at)
        at = _expect(text, _skip(text, at), ":")
        _, end = _strict.raw_decode(text, at)
        found[name] = Json(text[at:end])
        at = _skip(text, end)
    if _skip(text, at + 1) != len(text):
        raise ValueError(f"unexpected data after the value at {at + 1}")
    return found


def elements(text: str, *, maximum: int | None = None) -> list[Json]:
    """Return the elements of a JSON list without decoding them. Raises like `members`.

    Raises InvalidMessage if there are more than `maximum`.
    """
    at = _skip(text, 0)
    if text[at : at + 1] != "[":
        raise ValueError("not a JSON list")
    found: list[Json] = []
    at = _skip(text, at + 1)
    while text[at : at + 1] != "]":
        if found:
            at = _expect(text, at, ",")
        if len(found) == maximum:
            raise InvalidMessage("body", f"a list of at most {maximum} messages")
        _, end = _strict.raw_decode(text, at)
        found.append(Json(text[at:end]))
        at = _skip(text, end)
    if _skip(text, at + 1) != len(text):
        raise ValueError(f"unexpected data after the value at {at + 1}")
    return found


def _skip(text: str, at: int) -> int:
    if text[at : at + 1] > " ":  # most texts have few spaces, and this is faster than the pattern
        return at
    match = _SPACE.match(text, at)
    return match.end() if match else at


def _expect(text: str, at: int, sign: str) -> int:
    if text[at : at + 1] != sign:
        raise ValueError(f"expected {sign} at {at}")
    return _skip(text, at + 1)


def is_too_deep(text: str) -> bool:
    """Return True if lists and objects are nested deeper than `MAX_PAYLOAD_DEPTH` in a JSON text."""
    if text.count("[") + text.count("{") <= MAX_PAYLOAD_DEPTH:
        return False
    level = 0
    for sign in _STRING_OR_BRACKET.finditer(text):
        if sign[0] in "[{":
            level += 1
            if level > MAX_PAYLOAD_DEPTH:
                return True
        elif sign[0] in "]}":
            level -= 1
    return False


def as_json(value: Any) -> Json:
    """Encode a value as JSON; return a `Json` unchanged. Raises `InvalidMessage` if it is not JSON serializable."""
    if isinstance(value, Json):
        return value
    try:
        text = _encode_strictly(value)
        text.encode()
    except UnicodeEncodeError:  # an unpaired surrogate can only be written escaped
        text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidMessage("payload", f"a JSON value ({error})") from None
    return Json(text)


# Validation


def checked_text(value: Any, field: str, *, max_bytes: int) -> str:
    """Return `value` if it is a non-empty text without control characters. Raises `InvalidMessage`."""
    if not isinstance(value, str) or not _is_printable(value, max_bytes):
        raise InvalidMessage(field, f"a text of 1 to {max_bytes} bytes without control characters")
    return value


def checked_new_type(value: Any) -> str:
    """Return `value` if a producer may choose it as a type. Raises `InvalidMessage`.

    The types of other programs may contain what is refused here: `checked_text` accepts it, to find their messages.
    """
    type = checked_text(value, "type", max_bytes=MAX_TYPE_BYTES)
    if _LINE_OR_C1_CONTROL.search(type):
        raise InvalidMessage("type", "a text without control characters and line separators (U+2028, U+2029)")
    return type


def checked_id(value: Any, field: str = "id") -> str:
    """Return `value` if it is a valid message id. Raises `InvalidMessage`."""
    return checked_text(value, field, max_bytes=MAX_ID_BYTES)


def is_id(text: str) -> bool:
    """Return True if `text` is a valid message id."""
    return _is_printable(text, MAX_ID_BYTES)


def _is_printable(text: str, max_bytes: int) -> bool:
    return _PRINTABLE.fullmatch(text) is not None and len(text.encode()) <= max_bytes


def checked_number(value: Any, field: str, *, minimum: float, maximum: float) -> float:
    """Return `value` if it is a number from `minimum` to `maximum`. Raises `InvalidMessage`."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not minimum <= value <= maximum:
        raise InvalidMessage(field, f"a number from {minimum:g} to {maximum:g}")
    return value


def checked_integer(value: Any, field: str, *, minimum: int, maximum: int) -> int:
    """Return `value` if it is an integer from `minimum` to `maximum`. Raises `InvalidMessage`."""
    if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
        raise InvalidMessage(field, f"a whole number from {minimum} to {maximum}")
    return value


def checked_timeout(value: Any, field: str) -> float:
    """Return `value` if it is a valid ack timeout in seconds. Raises `InvalidMessage`."""
    return checked_number(value, field, minimum=0.001, maximum=MAX_ACK_TIMEOUT)


def truncate_reason(reason: str) -> bytes:
    """Return a failure reason as UTF-8, truncated to `MAX_REASON_BYTES`."""
    return reason.encode("utf-8", "replace")[:MAX_REASON_BYTES].decode("utf-8", "ignore").encode()


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
    """Idempotency key: a message whose id exists is not enqueued again."""

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
            raise InvalidMessage("type", f"a text of 1 to {MAX_TYPE_BYTES} bytes; it is missing")
        return cls(**known)

    def arguments(self, queue: QueueOptions) -> tuple[str, tuple[str, str, str, int, str, str]]:
        """Return the id, and the arguments of `enqueue.lua`, the payload last. Raises `InvalidMessage`."""
        id = uuid4().hex if self.id is None else self.id
        if not isinstance(id, str) or not _NEW_ID.fullmatch(id):
            raise InvalidMessage("id", "1 to 128 letters, digits or any of _ . : @ -, but not . or ..")
        type = checked_new_type(self.type)
        priority = queue.checked_priority(self.priority)
        options = "".join(f'"{name}":{json.dumps(value)},' for name, value in self._options().items())
        payload = queue.checked_payload(self.payload)
        return id, (id, type, as_json(type), priority, options, payload)

    def _options(self) -> dict[str, float]:
        return checked_options(ack_timeout=self.ack_timeout, max_attempts=self.max_attempts)


def checked_options(*, ack_timeout: Any, max_attempts: Any) -> dict[str, float]:
    """Return the options of a message by their names in its record. Raises `InvalidMessage`."""
    options: dict[str, float] = {}
    if ack_timeout is not None:
        options["custom_ack_timeout"] = checked_timeout(ack_timeout, "ackTimeout")
    if max_attempts is not None:
        options["custom_max_attempts"] = checked_integer(max_attempts, "maxAttempts", minimum=1, maximum=MAX_ATTEMPTS)
    return options


# For consumers


@dataclass(frozen=True, kw_only=True)
class Message:
    """A message. `fields` has everything but the payload, by the names of the HTTP API; times are Unix seconds."""

    fields: Mapping[str, Any]
    payload_json: Json
    """The payload as its producer wrote it."""
    packed_events: str = ""
    """What happened to it since its first delivery; `history.parse_events` reads it."""

    @classmethod
    def read(cls, id: bytes, data: bytes, record: bytes) -> Message:
        """Build a message from its entry and its record. Never raises: an undecodable entry becomes the payload."""
        about: dict[str, Any] = json.loads(record.decode("utf-8", "replace"))
        payload, is_message = _payload_of(data)
        if about.pop("undecodable", False):
            payload, is_message = as_json(data.decode("utf-8", "replace")), False
        for internal in ("v", "added", "unindexed"):
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

    def to_json(self) -> Json:
        """Return the message as in the HTTP API, with the payload unchanged."""
        about = _encode(dict(self.fields))
        return Json(f'{about[:-1]},"payload":{self.payload_json}}}')


def _payload_of(data: bytes) -> tuple[Json, bool]:
    """Return the payload of an entry, and whether the entry is a valid message."""
    try:
        return members(data.decode()).get("payload", Json("null")), True
    except (ValueError, RecursionError):  # UnicodeDecodeError is a ValueError
        return as_json(data.decode("utf-8", "replace")), False
