"""Messages that were never delivered are delivered, acked and requeued as text, with the outcome of all others."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import pytest

from services.message_queue import NewMessage
from tests.services.message_queue.message_lab import Lab

MESSAGES: Mapping[str, NewMessage] = {
    "plain": NewMessage(type="mail", payload={"a": [1, {}]}, id="a"),
    "with a priority": NewMessage(type="mail", priority=3, id="a"),
    "with options": NewMessage(type="mail", payload="é", ack_timeout=12.5, max_attempts=2, id="a"),
    "that looks like a record": NewMessage(type="mail", payload={"payload": ',"lock_token":"'}, max_attempts=2, id="a"),
}
LAST_ATTEMPT = NewMessage(type="mail", max_attempts=1, id="a")
CONSUMERS: Mapping[str, dict[str, Any]] = {
    "without a name": {},
    "with a name": {"consumer_id": 'x" \\n"lock_token":"é'},
    "with a timeout": {"ack_timeout": 77.5, "consumer_id": "c" * 256},
}
TEXT = b'{"v":1, '
"""How a record begins that was written as text."""


def timeless(value: Any) -> Any:
    """Replace times, tokens and entry ids, which differ from run to run; the timeout stays."""
    if isinstance(value, Mapping):
        about = {name: timeless(one) for name, one in value.items()}
        if "deadline_at" in value:
            about["deadline_at"] = round(value["deadline_at"] - value["dequeued_at"], 3)
        return about | dict.fromkeys(
            {"lock_token", "_stream_id", "sid", "deadline", "age_ms", "added"} & set(value), ""
        )
    if isinstance(value, list):
        return [timeless(one) for one in value]
    if isinstance(value, str):
        return re.sub(r"\b\d{13}\b", "", value)
    return "a time" if isinstance(value, int | float) and value > 1e9 else value


def stored(lab: Lab) -> Any:
    """Return what is stored of the message: its record, its entries, its deadline, and what happened to it."""
    entries = {
        stream: [json.loads(fields[b"data"]) for _, fields in lab.client.xrange(stream)]
        for stream in (*lab.streams, "q_acknowledged", "q_dlq")
    }
    happened = [json.loads(event) for event in lab.events()]
    (record,) = lab.client.hvals("q_metadata")
    indexed = lab.client.zcard("q:type:mail")
    held = lab.client.exists("q:deadlines", "q:pending_ids"), lab.client.get("q:stats:total_acknowledged")
    return [timeless(json.loads(record)), timeless(entries), timeless(happened), held, indexed]


@pytest.mark.parametrize("consumer", CONSUMERS.values(), ids=CONSUMERS)
@pytest.mark.parametrize("message", MESSAGES.values(), ids=MESSAGES)
def test_text_substitution_and_json_encoder_write_the_same(
    lab: Lab, message: NewMessage, consumer: dict[str, Any]
) -> None:
    outcomes = []
    # One message is delivered and acknowledged by code of its own, and with a pause every message is decoded.
    for limit, is_text in ((1, True), (2, True), (1, False)):
        lab.client.flushall()
        lab.queue.enqueue_batch([message])
        if not is_text:
            lab.client.hset("q:pauses", "another", "{}")
        (received,) = lab.queue.receive_many(limit, **consumer)
        (record,) = lab.client.hvals("q_metadata")
        assert record.startswith(TEXT) == is_text
        delivered = timeless(json.loads(received.to_json())), stored(lab)
        answers = lab.queue.ack_many([(received.id, received.lock_token)] * limit)
        assert answers == [True, False][:limit]
        outcomes.append((delivered, stored(lab)))

    assert outcomes[0] == outcomes[1] == outcomes[2]


@pytest.mark.parametrize("is_indexed", [False, True], ids=["", "with type indexes"])
@pytest.mark.parametrize("consumer", CONSUMERS.values(), ids=CONSUMERS)
@pytest.mark.parametrize("message", [*MESSAGES.values(), LAST_ATTEMPT], ids=[*MESSAGES, "at its last attempt"])
def test_sweep_of_text_and_of_decoded_records_is_the_same(
    lab: Lab, message: NewMessage, consumer: dict[str, Any], is_indexed: bool
) -> None:
    outcomes = []
    for is_text in (True, False):
        lab.client.flushall()
        if is_indexed:
            lab.queue.receive_many(1, type="mail")
        lab.queue.enqueue_batch([message])
        if not is_text:
            lab.client.hset("q:pauses", "another", "{}")
        lab.queue.receive_many(1, **consumer)
        lab.lapse("a")
        swept = lab.sweeper.sweep()
        assert swept.requeued + swept.dead_lettered == ["a"]
        outcomes.append((swept.requeued, stored(lab)))

    assert outcomes[0] == outcomes[1]


def test_message_delivered_as_text_is_processed_like_any_other(lab: Lab) -> None:
    lab.queue.enqueue_batch([NewMessage(type="mail", id="a", max_attempts=3), NewMessage(type='"m\\"', id="escapes")])
    message, escapes = lab.queue.receive_many(2)
    assert (message.id, message.attempt, escapes.type) == ("a", 1, '"m\\"')
    lab.queue.touch("a", message.lock_token)
    lab.queue.nack("a", message.lock_token, "first")
    lab.queue.ack("escapes", escapes.lock_token)

    message = lab.take()
    assert (message.id, message.attempt, message.fields["last_error"]) == ("a", 2, "first")
    lab.queue.ack("a", message.lock_token)
    assert lab.ids("acknowledged") == ["a", "escapes"]
