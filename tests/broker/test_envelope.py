"""Message bodies are decoded as kombu decodes them, on the fast path too."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest
from kombu.exceptions import ContentDisallowed, DecodeError
from kombu.message import Message
from kombu.serialization import dumps
from kombu.transport import virtual

from queue_manager.broker.envelope import BrokerMessage

BODIES: list[Any] = [
    [["a", 1, 2**80, 0.1, None, True], {"ключ": "\ud800"}, {}],
    [[datetime(2026, 1, 1, tzinfo=UTC), uuid4(), b"\x00\xff"], {}, {}],
    ["a text that says __type__", {"__type__": "unknown"}],
    "text",
    {"is": "an object"},
    None,
]


class Channel:
    def decode_body(self, body: Any, encoding: str | None) -> Any:
        return body


CHANNEL = Channel()


def message(kind: type[virtual.Message], body: Any, content_type: str, encoding: str, accept: set[str] | None) -> Any:
    properties: dict[str, Any] = {"delivery_tag": "1", "delivery_info": {}, "body_encoding": None}
    raw = {"body": body, "content-type": content_type, "content-encoding": encoding, "properties": properties}
    one = kind({**raw, "headers": {}}, channel=Channel())
    one.accept = accept
    return one


@pytest.mark.parametrize("accept", [None, {"application/json"}])
@pytest.mark.parametrize("body", BODIES)
def test_json_is_decoded_as_by_kombu(body: Any, accept: set[str] | None) -> None:
    content_type, encoding, written = dumps(body, "json")
    raw = written.encode() if isinstance(written, str) else written
    ours, theirs = (
        message(kind, raw, content_type, encoding, accept).payload for kind in (BrokerMessage, virtual.Message)
    )
    assert ours == theirs


NO_MAPPINGS: list[Any] = [None, [], ""]
PLAIN: dict[str, Any] = {
    "body": '[["é"], {}, {}]',
    "content-type": "application/json",
    "content-encoding": "utf-8",
    "headers": {"task": "t", "id": "1"},
    "properties": {"delivery_tag": "1", "delivery_info": {"exchange": "", "routing_key": "q"}, "body_encoding": None},
}


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"body": ""},
        {"body": "half a pair: \ud800"},
        {"body": "W10=", "properties": {**PLAIN["properties"], "body_encoding": "base64"}},
        {"headers": {"compression": "application/x-gzip"}},
        {"headers": {}},
        *({"headers": wrong} for wrong in [*NO_MAPPINGS, ["x"], "x"]),
        *({"properties": {"delivery_tag": "1", "delivery_info": wrong}} for wrong in NO_MAPPINGS),
        {"content-type": None},
        {"properties": {"delivery_tag": "1"}},
    ],
    ids=str,
)
@pytest.mark.parametrize("lacking", [None, "body", "content-type", "content-encoding", "headers"])
def test_a_message_equals_that_of_kombu(changed: dict[str, Any], lacking: str | None) -> None:
    raw = {name: value for name, value in {**PLAIN, **changed}.items() if name != lacking}
    assert made(BrokerMessage, raw) == made(virtual.Message, raw)


def made(kind: type[virtual.Message], raw: dict[str, Any]) -> Any:
    """Return what a message of this kind has, or the type of the error that it raises."""
    try:
        one = kind(raw, channel=CHANNEL)
    except Exception as error:
        return type(error)
    names = {*Message.__slots__, "_raw"} - {"__dict__", "errors"}
    return {name: getattr(one, name, None) for name in names}, [error for error, *_ in one.errors]


def test_unaccepted_content_type_is_refused() -> None:
    with pytest.raises(ContentDisallowed):
        _ = message(BrokerMessage, b"[]", "application/json", "utf-8", {"application/x-yaml"}).payload


@pytest.mark.parametrize("raw", [b"[", b"\xff", b"[" * 100_000])
def test_invalid_json_raises_the_same_error_as_kombu(raw: bytes) -> None:
    errors = []
    for kind in (BrokerMessage, virtual.Message):
        with pytest.raises(Exception) as raised:
            _ = message(kind, raw, "application/json", "utf-8", None).payload
        errors.append((type(raised.value), str(raised.value)))
    assert errors[0] == errors[1]
    assert issubclass(errors[0][0], DecodeError | RecursionError)
