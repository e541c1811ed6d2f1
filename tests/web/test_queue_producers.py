"""Adding messages over HTTP: payloads byte for byte, once per id, all or none of a batch."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis
from hypothesis import strategies as st

from tests.web.queue_client import Queue

KIB = 1024


def payload_of(answer: str) -> str:
    """Return the payload as it is written in a message, of which it is the last member."""
    return answer.partition('"payload":')[2].removesuffix("}")


def test_a_message_is_created_with_an_id(queue: Queue) -> None:
    answer = queue.post("/queue/message", {"type": "mail", "payload": {"to": "ada"}, "priority": 2})
    assert answer.status == 201
    assert answer.body == {"message": "Message added successfully", "id": answer.body["id"]}
    assert answer.headers["content-type"] == "application/json"
    taken = queue.take()
    assert (taken["id"], taken["payload"], taken["priority"]) == (answer.body["id"], {"to": "ada"}, 2)


@pytest.mark.parametrize(
    "payload",
    [
        "[]",
        "{}",
        "null",
        '""',
        "1.10",
        "1e400",
        "-0",
        "12345678901234567",
        "9" * 5_000,
        '{"a" :  [ 1,2 ] , "b":{} }',
        '{"a":1,"a":2}',
        r'"\ud800"',
        r'"\u00e9\/\u0000"',
        '"é 漢 🦊 \u2028"',
        '{"payload":"}"}',
        "[" * 64 + "]" * 64,
    ],
    ids=lambda payload: payload[:20],
)
def test_a_payload_is_returned_byte_for_byte(payload: str, queue: Queue) -> None:
    assert queue.post("/queue/message", f'{{"payload": {payload} , "type":"any"}}').status == 201
    assert payload_of(queue.get("/queue/main/messages").text.split("}],")[0] + "}") == payload
    assert payload_of(queue.get("/queue/message").text) == payload


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


@pytest.mark.slow
@hypothesis(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(json_values, st.booleans(), st.sampled_from([None, 1]))
def test_any_json_is_returned_byte_for_byte(queue: Queue, value: Any, is_ascii: bool, indent: int | None) -> None:
    payload = json.dumps(value, ensure_ascii=is_ascii, indent=indent)
    assert queue.post("/queue/message", f'{{"type":"any","payload":{payload}}}').status == 201
    assert payload_of(queue.get("/queue/message").text) == payload


def test_a_repeated_id_is_201_both_times_and_one_message(queue: Queue) -> None:
    for _ in range(2):
        answer = queue.post("/queue/message", {"type": "mail", "id": "order-1"})
        assert (answer.status, answer.body["id"]) == (201, "order-1")
    assert queue.sizes() == (1, 0, 0, 0, 0)


@pytest.mark.parametrize("names", [("ackTimeout", "maxAttempts"), ("custom_ack_timeout", "custom_max_attempts")])
def test_overrides_have_two_spellings(names: tuple[str, str], queue: Queue) -> None:
    overrides: dict[str, Any] = dict(zip(names, (7.5, 9), strict=True))
    queue.add(**overrides)
    taken = queue.take()
    assert (taken["custom_ack_timeout"], taken["custom_max_attempts"]) == (7.5, 9)
    assert taken["deadline_at"] - taken["dequeued_at"] == pytest.approx(7.5, abs=0.002)


def test_any_content_type_is_accepted(queue: Queue) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", "nonsense"):
        assert queue.post("/queue/message", {"type": "mail"}, Content_Type=kind).status == 201


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ("{}", "type"),
        ('{"type":""}', "type"),
        ('{"type":5}', "type"),
        ('{"type":"\\ud800"}', "type"),
        ('{"type":"a\\u0000b"}', "type"),
        (json.dumps({"type": "t" * 257}), "type"),
        ('{"type":"a","priority":10}', "priority"),
        ('{"type":"a","priority":-1}', "priority"),
        ('{"type":"a","priority":1.5}', "priority"),
        ('{"type":"a","priority":true}', "priority"),
        ('{"type":"a","priority":null}', "priority"),
        (f'{{"type":"a","priority":{"9" * 5_000}}}', "priority"),
        ('{"type":"a","ackTimeout":0}', "ackTimeout"),
        ('{"type":"a","ackTimeout":1e400}', "ackTimeout"),
        ('{"type":"a","ackTimeout":"5"}', "ackTimeout"),
        ('{"type":"a","maxAttempts":0}', "maxAttempts"),
        ('{"type":"a","maxAttempts":2.5}', "maxAttempts"),
        ('{"type":"a","id":"with space"}', "id"),
        ('{"type":"a","id":7}', "id"),
        ('{"type":"a","id":".."}', "id"),
        ('{"type":"a","nonsense":1}', "nonsense"),
        ('{"type":"a","\\ud800":1}', "?"),
        (f'{{"type":"a","payload":{"[" * 65 + "]" * 65}}}', "payload"),
        (f'{{"type":"a","payload":{"[" * 99_999 + "]" * 99_999}}}', "payload"),
    ],
    ids=lambda text: text[:40],
)
def test_invalid_message_is_422_with_its_field(body: str, field: str, queue: Queue) -> None:
    answer = queue.post("/queue/message", body)
    assert (answer.status, answer.body["field"]) == (422, field)
    assert answer.body.keys() == {"error", "message", "field"}
    assert queue.sizes() == (0, 0, 0, 0, 0)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" ",
        b"null",
        b"[]",
        b'"text"',
        b'{"type":"a"',
        b'{"type":"a"}}',
        b'{"type":"a",}',
        b"{'type':'a'}",
        b'{"type":"a","payload":NaN}',
        b'{"type":"a","payload":-Infinity}',
        b'{"type":"\xff"}',
        b'\xef\xbb\xbf{"type":"a"}',
        '{"type":"a"}'.encode("utf-16"),
        b"\x00",
    ],
)
@pytest.mark.parametrize("path", ["/queue/message", "/queue/ack", "/queue/move", "/queue/replay"])
def test_a_body_that_is_not_a_json_object_is_400(path: str, body: bytes, queue: Queue) -> None:
    answer = queue.post(path, body)
    assert (answer.status, answer.body["error"], answer.body["field"]) == (400, "bad request", "body")


def test_a_payload_of_maximum_size_is_accepted_and_one_more_byte_is_413(queue: Queue) -> None:
    assert queue.post("/queue/message", {"type": "a", "payload": "x" * (KIB * KIB - 2)}).status == 201
    for more in (1, 200 * KIB, 3 * KIB * KIB):
        answer = queue.post("/queue/message", {"type": "a", "payload": "x" * (KIB * KIB - 2 + more)})
        assert (answer.status, answer.body["error"], answer.body["field"]) == (413, "too large", "payload")


def test_the_size_of_a_payload_is_counted_in_bytes(queue: Queue) -> None:
    payload = json.dumps("é" * (KIB * KIB // 2), ensure_ascii=False)
    assert queue.post("/queue/message", f'{{"type":"a","payload":{payload}}}').status == 413


def test_a_batch_is_added_as_a_whole(queue: Queue) -> None:
    messages = [{"type": "a", "priority": n % 10, "ackTimeout": 5, "payload": [n]} for n in range(500)]
    answer = queue.post("/queue/batch", messages)
    assert (answer.status, answer.body["message"]) == (201, "Batch processed: 500/500 messages enqueued")
    assert queue.get(f"/queue/message/{answer.body['ids'][7]}").body["payload"] == [7]
    assert queue.sizes() == (500, 0, 0, 0, 0)


def test_a_repeated_batch_is_accepted_and_adds_nothing(queue: Queue) -> None:
    batch = [{"type": "a", "id": "one"}, {"type": "a", "id": "two"}, {"type": "a", "id": "one"}]
    for _ in range(2):
        answer = queue.post("/queue/batch", batch)
        assert answer.body == {"message": "Batch processed: 3/3 messages enqueued", "ids": ["one", "two", "one"]}
    assert queue.sizes() == (2, 0, 0, 0, 0)


def test_an_empty_batch_adds_nothing(queue: Queue) -> None:
    answer = queue.post("/queue/batch", [])
    assert (answer.status, answer.body["message"]) == (201, "Batch processed: 0/0 messages enqueued")


def test_payloads_of_a_batch_are_kept_byte_for_byte(queue: Queue) -> None:
    assert (
        queue.post("/queue/batch", '[{"type":"a","payload":[1.10, 1e400]} , {"type":"a","payload":{}}]').status == 201
    )
    assert [payload_of(queue.get("/queue/message").text) for _ in range(2)] == ["[1.10, 1e400]", "{}"]


@pytest.mark.parametrize(
    ("bad", "status", "field"),
    [
        ('{"type":"a","priority":11}', 422, "[2].priority"),
        ('{"type":"a","nonsense":11}', 422, "[2].nonsense"),
        ('{"priority":1}', 422, "[2].type"),
        ("5", 422, "[2].type"),
        (f'{{"type":"a","payload":{"[" * 65 + "]" * 65}}}', 422, "[2].payload"),
        (f'{{"type":"a","payload":"{"x" * KIB * KIB}"}}', 413, "[2].payload"),
        (f'{{"type":"a","payload":{"[" * 99_999}', 422, "payload"),
        ("NaN", 400, "body"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_one_bad_message_refuses_the_whole_batch(bad: str, status: int, field: str, queue: Queue) -> None:
    answer = queue.post("/queue/batch", f'[{{"type":"a"}},{{"type":"b"}},{bad}]')
    assert (answer.status, answer.body["field"]) == (status, field)
    assert queue.sizes() == (0, 0, 0, 0, 0)


def test_a_batch_has_at_most_500_messages_and_512_kib_of_payloads(queue: Queue) -> None:
    too_many = queue.post("/queue/batch", "[" + ",".join(['{"type":"a"}'] * 501) + "]")
    assert (too_many.status, too_many.body["field"]) == (422, "body")
    too_large = queue.post("/queue/batch", [{"type": "a", "payload": "x" * 2 * KIB}] * 500)
    assert (too_large.status, too_large.body["field"]) == (413, "body")
    too_long = queue.post("/queue/batch", b" " * (2 * KIB * KIB + 1))
    assert (too_long.status, too_long.body["message"]) == (413, "body: must have at most 2097152 bytes")
    assert queue.sizes() == (0, 0, 0, 0, 0)


def test_a_batch_must_be_a_list(queue: Queue) -> None:
    assert queue.post("/queue/batch", {"type": "a"}).status == 400
