"""Fields of messages: JSON texts that are read without changing them, and validation, which raises `InvalidMessage`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import msgspec

from queue_manager.core.errors import MalformedBody
from services.message_queue.errors import InvalidMessage

MAX_PAYLOAD_DEPTH = 64
"""Levels of nested lists and objects in a payload."""
MAX_NAME_BYTES = 256
"""Bytes of an id, a type, a consumer id or a lock token."""
MAX_ACK_TIMEOUT = 7 * 24 * 3600
"""Seconds."""
MAX_ATTEMPTS = 10_000
MAX_REASON_BYTES = 4_096  # longer failure reasons are truncated
MAX_ENQUEUED_MESSAGES = 500
Parsed = TypeVar("Parsed")

_PRINTABLE = re.compile(r"[^\x00-\x1f\x7f\ud800-\udfff]+")
_LINE_OR_C1_CONTROL = re.compile(r"[\x80-\x9f\u2028\u2029]")
_SPACE = re.compile(r"[ \t\r\n]*")
_STRING_OR_BRACKET = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[\[{]|[\]}]')


# JSON


class Json(str):
    """A text that is one JSON value."""


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not valid JSON")


# Numbers stay as text: Python refuses to parse an integer of more than 4,300 digits. Objects are checked, and not kept:
# those of a payload would take ten times its memory.
_strict = json.JSONDecoder(parse_constant=_no_constant, parse_int=str, parse_float=str, object_pairs_hook=len)
_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode  # a tenth of the time
# `json.dumps` would make an encoder for each call.
_encode_strictly = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def members(text: str) -> dict[str, Json]:
    """Return the members of a JSON object without decoding them. Raises ValueError for anything else.

    Raises RecursionError if the nesting is too deep to parse.
    """
    # msgspec rejects unpaired surrogates, which are read below, and accepts no subclass of `str` such as `Json`.
    with suppress(msgspec.MsgspecError, UnicodeError):
        return {name: Json(bytes(value).decode()) for name, value in _members(str(text)).items()}
    return dict(_parts(text, "{", "}"))


def elements(text: str, *, maximum: int | None = None) -> list[Json]:
    """Return the elements of a JSON list without decoding them. Raises like `members`.

    Raises InvalidMessage if there are more than `maximum`.
    """
    found: list[Json] = []
    for _, element in _parts(text, "[", "]"):
        if len(found) == maximum:
            raise InvalidMessage("body", f"a list of at most {maximum} messages")
        found.append(element)
    return found


def _parts(text: str, opening: str, closing: str) -> Iterator[tuple[str, Json]]:
    """Yield the members of a JSON object by name, or the elements of a list, whose names are empty."""
    at = _skip(text, 0)
    if text[at : at + 1] != opening:
        raise ValueError(f"not a JSON {'object' if opening == '{' else 'list'}")
    at = _skip(text, at + 1)
    is_first, name = True, ""
    while text[at : at + 1] != closing:
        if not is_first:
            at = _expect(text, at, ",")
        is_first = False
        if opening == "{":
            if text[at : at + 1] != '"':
                raise ValueError(f"expected a member name at {at}")
            name, at = _strict.raw_decode(text, at)
            at = _expect(text, _skip(text, at), ":")
        _, end = _strict.raw_decode(text, at)
        yield name, Json(text[at:end])
        at = _skip(text, end)
    if _skip(text, at + 1) != len(text):
        raise ValueError(f"unexpected data after the value at {at + 1}")


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


def parse_object(body: bytes) -> dict[str, Json]:
    """Return the members of a JSON object without decoding them. Raises `MalformedBody`, `InvalidMessage`."""
    return _parsed(members, body)


def parse_list(body: bytes) -> list[Json]:
    """Return the elements of a JSON list without decoding them. Raises `MalformedBody`, `InvalidMessage`."""
    return _parsed(partial(elements, maximum=MAX_ENQUEUED_MESSAGES), body)


def _parsed(parse: Callable[[str], Parsed], body: bytes) -> Parsed:
    try:
        return parse(body.decode())
    except RecursionError:
        raise InvalidMessage("payload", f"JSON of at most {MAX_PAYLOAD_DEPTH} levels") from None
    except ValueError as error:
        raise MalformedBody(str(error)) from None


def decode_message(given: Mapping[str, Json]) -> dict[str, Any]:
    """Decode the members of a message except the payload. Raises `InvalidMessage`."""
    return {name: text if name == "payload" else decode_member(given, name) for name, text in given.items()}


def decode_member(given: Mapping[str, Json], name: str) -> Any:
    """Return the value of a member, `None` if it is missing. Raises `InvalidMessage`."""
    try:
        return json.loads(given.get(name, "null"))
    except (ValueError, RecursionError):  # Python refuses to read an integer of thousands of digits
        raise InvalidMessage(name[:64], "a shorter value") from None


# Validation


def checked_text(value: Any, field: str, *, max_bytes: int = MAX_NAME_BYTES) -> str:
    """Return `value` if it is a non-empty text without control characters. Raises `InvalidMessage`."""
    if not isinstance(value, str) or not _is_printable(value, max_bytes):
        raise InvalidMessage(field, f"a string of 1 to {max_bytes} bytes without control characters")
    return value


def checked_new_type(value: Any) -> str:
    """Return `value` if a producer may choose it as a type. Raises `InvalidMessage`.

    The types of other programs may contain what is refused here: `checked_text` accepts it, to find their messages.
    """
    type = checked_text(value, "type")
    if _LINE_OR_C1_CONTROL.search(type):
        raise InvalidMessage("type", "a string without control characters and line separators (U+2028, U+2029)")
    return type


def is_id(text: str) -> bool:
    """Return True if `text` is a valid message id."""
    return _is_printable(text, MAX_NAME_BYTES)


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


def checked_options(*, ack_timeout: Any, max_attempts: Any) -> dict[str, float]:
    """Return the options of a message by their names in its record. Raises `InvalidMessage`."""
    options: dict[str, float] = {}
    if ack_timeout is not None:
        options["custom_ack_timeout"] = checked_timeout(ack_timeout, "ackTimeout")
    if max_attempts is not None:
        options["custom_max_attempts"] = checked_integer(max_attempts, "maxAttempts", minimum=1, maximum=MAX_ATTEMPTS)
    return options
