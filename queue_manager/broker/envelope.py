"""What a broker message must look like, so that kombu and Celery can at least refuse it in order."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

from kombu.transport import virtual
from kombu.utils.json import loads

DEEPEST = 100  # levels of lists and objects: what is read must also be written again
TEXTS = ("body", "content-type", "content-encoding")
PLAIN_JSON = ("application/json", "utf-8")
OBJECTS = ("headers", "properties")


class NotAMessage(ValueError):
    """Says why."""


def read(raw: bytes) -> dict[str, Any]:
    """Return a message from the wire. Raises `NotAMessage`."""
    try:
        message = _loads(raw)
    except (ValueError, RecursionError) as error:
        raise NotAMessage(f"It is no JSON in UTF-8: {error!s:.200}") from None
    except Exception as error:  # of an object that kombu's reader was to make
        raise NotAMessage(f"It cannot be decoded: {error!r:.200}") from None
    if not isinstance(message, dict):
        raise NotAMessage("It is no object")
    for name, kind in (*((name, str) for name in TEXTS), *((name, dict) for name in OBJECTS)):
        if not isinstance(message.get(name), kind):
            raise NotAMessage(f"{name}: must be {'a text' if kind is str else 'an object'}")
    about = message["properties"].get("delivery_info")
    if not isinstance(about, dict) or not all(isinstance(about.get(one), str) for one in ("exchange", "routing_key")):
        raise NotAMessage("properties.delivery_info: must be an object with the texts exchange and routing_key")
    if raw.count(b"[") + raw.count(b"{") > DEEPEST and _depth(message) > DEEPEST:
        raise NotAMessage(f"It is deeper than {DEEPEST} levels")
    return message


class Message(virtual.Message):
    """A message whose body, where it is plain JSON, is read without kombu's detours."""

    def _decode(self) -> Any:
        kind = (self.content_type, self.content_encoding)
        if kind == PLAIN_JSON and (self.accept is None or self.content_type in self.accept):
            with suppress(ValueError, RecursionError, AttributeError):  # kombu says what is wrong
                return _loads(self.body)
        return super()._decode()


def _loads(raw: bytes) -> Any:
    """Decode JSON as kombu does, whose reader makes objects of what says that it is one."""
    text = raw.decode()
    return loads(text) if "__type__" in text else json.loads(text)


def _depth(value: Any) -> int:
    """Return the levels of lists and objects, counted no further than one too many."""
    level, depth = [value], 0
    while level and depth <= DEEPEST:
        inner = [one.values() if isinstance(one, dict) else one for one in level if isinstance(one, dict | list)]
        level, depth = [item for items in inner for item in items], depth + bool(inner)
    return depth
