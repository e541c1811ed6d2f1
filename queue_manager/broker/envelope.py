"""Reading, validating and writing broker messages, so that kombu and Celery can dispatch or refuse each of them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec
from kombu.transport import virtual
from kombu.utils.json import dumps, loads

from queue_manager.core.json_types import is_within_depth

MAX_DEPTH = 300  # levels of lists and objects: pickling fails at about 490, and a chain needs two for each group in it
_MEMBERS = {"body": str, "content-type": str, "content-encoding": str, "headers": dict, "properties": dict}
_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode
_PLAIN_JSON = ("application/json", "utf-8")


class NotAMessage(ValueError):
    """The message is malformed; the text is the reason."""


def read(raw: bytes) -> dict[str, Any]:
    """Return a message from the wire. Raises `NotAMessage`."""
    try:
        message = _loads(raw)
    except (ValueError, RecursionError) as error:
        raise NotAMessage(f"It is not JSON in UTF-8: {error!s:.200}") from None
    except Exception as error:  # from an object that kombu's decoder constructs
        raise NotAMessage(f"It cannot be decoded: {error!r:.200}") from None
    if not isinstance(message, dict):
        raise NotAMessage("It is not a JSON object")
    for name, kind in _MEMBERS.items():
        if not isinstance(message.get(name), kind):
            raise NotAMessage(f"{name}: must be {'a string' if kind is str else 'an object'}")
    info = message["properties"].get("delivery_info")
    if not (
        isinstance(info, dict) and isinstance(info.get("exchange"), str) and isinstance(info.get("routing_key"), str)
    ):
        raise NotAMessage("properties.delivery_info: must be an object with the strings exchange and routing_key")
    if not is_shallow(raw, message):
        raise NotAMessage(f"It is nested deeper than {MAX_DEPTH} levels")
    return message


def is_shallow(text: str | bytes, value: Any) -> bool:
    """Return True if `value`, which was decoded from `text`, is nested at most `MAX_DEPTH` levels deep."""
    opened = text.count("[") + text.count("{") if isinstance(text, str) else text.count(b"[") + text.count(b"{")
    return opened <= MAX_DEPTH or is_within_depth(value, MAX_DEPTH)


def write(value: dict[str, Any]) -> bytes:
    """Encode an object as JSON. Kombu's encoder is slow, but needed for unpaired surrogates and other types."""
    try:
        return _encode(value)
    except (TypeError, UnicodeError):
        return str(dumps(value)).encode()


class BrokerMessage(virtual.Message):
    """Kombu's message, with fast paths: for a message that is plain text, and for a body that is plain JSON."""

    def __init__(self, payload: dict[str, Any], channel: Any = None) -> None:
        try:
            self._read_plain(payload, channel)
        except (KeyError, TypeError, ValueError, AttributeError):
            super().__init__(payload, channel=channel)

    def _read_plain(self, payload: dict[str, Any], channel: Any) -> None:
        """Do what kombu does, in a third of the time; raise for a message that is compressed, encoded or incomplete."""
        headers, properties = payload["headers"], payload["properties"]
        if "compression" in headers or properties.get("body_encoding") is not None:
            raise ValueError("not plain")
        self.delivery_tag, self.delivery_info = properties["delivery_tag"], properties["delivery_info"]
        if not isinstance(headers, dict) or not isinstance(self.delivery_info, dict):
            raise TypeError("incomplete")
        self.body = payload["body"].encode()
        self.content_type, self.content_encoding = payload["content-type"], payload["content-encoding"]
        self.headers, self.properties = headers, properties
        self._raw, self.channel = payload, channel
        self.errors: list[Any] = []
        self._decoded_cache, self._state = None, "RECEIVED"
        self.accept: Collection[str] | None = None

    def _decode(self) -> Any:
        form = (self.content_type, self.content_encoding)
        if form == _PLAIN_JSON and (self.accept is None or self.content_type in self.accept):
            try:
                return _loads(self.body)
            except (ValueError, RecursionError, AttributeError):
                pass  # kombu then raises its own error
        return super()._decode()


def _loads(raw: bytes) -> Any:
    """Decode JSON as kombu does, whose decoder constructs objects where it finds `__type__`."""
    if b"__type__" not in raw:
        try:
            return _decode(raw)
        except msgspec.MsgspecError:
            pass  # it is stricter: NaN, numbers that overflow
    return loads(raw.decode())
