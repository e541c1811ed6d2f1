"""A payload is kept byte for byte wherever its message goes."""

from __future__ import annotations

import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dev.servers import Valkey
from services.message_queue import Json, Message
from services.message_queue.fields import as_json, members
from tests.services.message_queue.message_lab import Lab

THREADS, ROUNDS = 8, 200
EXACT = [
    "[]",
    "{}",
    '{"a":[],"b":{}}',
    "12345678901234567",
    "123456789012345678901234567890",
    "9" * 5000,
    "1.10",
    "1E5",
    "-0.0",
    "-0",
    "1e-7",
    '"\\ud800"',
    '"\\udc00\\ud800"',
    '"\\u0000\\u001f\\/"',
    '"\U0001f600 \u2028 \x7f"',
    '{ "a" : [ 1 ,\n\t2 ] }',
    '{"a":1,"a":2}',
    '{"payload":"}","id":"other"}',
    "null",
    "true",
    '""',
    "[" * 64 + "]" * 64,
]

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)


def pass_through_everything(lab: Lab, payload: Any) -> set[str]:
    """Send a message to every place, and return the texts that its payload had on the way."""
    seen = set()

    def see(message: Message | None) -> Message:
        assert message is not None
        assert message.is_decodable
        seen.add(str(message.payload_json))
        assert str(message.to_json()).endswith(f',"payload":{message.payload_json}}}')
        return message

    id = lab.queue.enqueue("job", payload, max_attempts=2)
    see(lab.contents.find(id))
    see(lab.take())
    lab.lapse(id)
    assert lab.sweeper.sweep().requeued == [id]
    see(lab.contents.find(id))
    see(lab.take(type="job"))
    lab.lapse(id)
    assert lab.sweeper.sweep().dead_lettered == [id]
    see(lab.contents.find(id))
    lab.contents.update(id, {"priority": 1})
    assert lab.contents.replay([id]) == {id: "MOVED"}
    see(lab.contents.list("main").messages[0])
    held = see(lab.take())
    lab.queue.nack(id, held.lock_token, "boom")
    held = see(lab.take())
    lab.queue.ack(id, held.lock_token)
    see(lab.contents.list("acknowledged").messages[0])
    assert lab.contents.move([id], to="archived") == {id: "MOVED"}
    see(lab.contents.list("archived").messages[0])
    return seen


@pytest.mark.parametrize("text", EXACT, ids=lambda text: text[:20].encode("unicode_escape").decode())
def test_payload_stays_as_its_producer_wrote_it(lab: Lab, text: str) -> None:
    assert pass_through_everything(lab, Json(text)) == {text}


@pytest.mark.parametrize("change", [{}, {"payload": Json("{ }")}], ids=["moved", "new payload"])
def test_entry_of_a_changed_message_equals_one_written_by_a_producer(lab: Lab, change: dict[str, Any]) -> None:
    """Other programs read only entries."""
    id = lab.queue.enqueue("old", Json("{ }"), 2, ack_timeout=77, max_attempts=9)
    lab.contents.update(id, {"type": "new/type"})
    lab.contents.update(id, {"ack_timeout": 5, **change})
    [(_, entry)] = lab.client.xrange("q_p2")
    data = entry[b"data"].decode()
    changed = {"type": "new/type", "priority": 2, "custom_ack_timeout": 5, "custom_max_attempts": 9, "payload": {}}
    assert json.loads(data) == {"id": id, "created_at": lab.everything("main")[0].fields["created_at"], **changed}
    assert '"type":"new/type"' in data
    assert data.endswith(',"payload":{ }}')


def test_concurrent_changes_are_returned_in_sequence(lab: Lab) -> None:
    id = lab.queue.enqueue("job")
    with ThreadPoolExecutor(THREADS) as threads:
        changes = threads.map(lambda number: lab.contents.update(id, {"priority": number % lab.levels}), range(ROUNDS))
        steps = Counter((before.priority, after.priority) for before, after in changes)
    # A path from the first to the last priority: each is left as often as it is reached, but for the ends.
    left, reached = Counter[int](), Counter[int]()
    for (before, after), times in steps.items():
        left[before] += times
        reached[after] += times
    reached[0] += 1
    left[lab.everything("main")[0].priority] += 1
    assert left == reached


def test_any_payload_is_returned_equal(server: Valkey) -> None:
    with Lab(server.url) as lab:

        @settings(max_examples=25, deadline=None, database=None, suppress_health_check=list(HealthCheck))
        @given(value=values)
        def check(value: Any) -> None:
            [text] = pass_through_everything(lab, value)
            assert repr(json.loads(text)) == repr(value)

        check()


@given(text=st.text(max_size=40))
@settings(max_examples=100, deadline=None, database=None)
def test_text_with_unpaired_surrogates_can_be_encoded(text: str) -> None:
    assert json.loads(as_json(text)) == text
    assert json.loads(members(f'{{"payload" : {as_json(text)} }}')["payload"]) == text


def test_payload_of_another_producer_stays_as_it_was_written(lab: Lab) -> None:
    payload = '{ "n" : 123456789012345678901234567890 , "e" : [ ] , "x" : 1.10 }'
    data = f' {{ "payload" : {payload} , "type":"job", "id" : "theirs" }} '
    lab.client.xadd("q", {"data": data})

    message = lab.take()
    assert message.payload_json == payload
    lab.lapse("theirs")
    lab.sweeper.sweep()
    message = lab.take()
    assert message.payload_json == payload
    lab.queue.ack("theirs", message.lock_token)

    [(_, fields)] = lab.client.xrange("q_acknowledged")
    assert fields[b"data"] == data.encode()


def test_payload_that_was_changed_after_the_failure_is_replayed_as_a_whole(lab: Lab) -> None:
    payload = "," * 500  # the outcome that the entry had was appended after such a character
    lab.queue.enqueue("job", max_attempts=1, id="m")
    lab.queue.nack("m", lab.take().lock_token, "broken")
    lab.contents.update("m", {"payload": as_json(payload)})
    lab.contents.replay(["m"])
    assert lab.take().payload == payload


def test_entry_of_a_dead_letter_has_its_outcome_which_a_replay_removes(lab: Lab) -> None:
    """Readers of the streams alone, such as those of an older service, find the reason where they look for it."""
    lab.queue.enqueue("job", Json("[1, 2.50]"), max_attempts=1, id="m")
    [(_, fresh)] = lab.client.xrange("q")
    message = lab.take()
    lab.queue.nack("m", message.lock_token, 'no "way"')
    [(_, dead)] = lab.client.xrange("q_dlq")
    said = json.loads(dead[b"data"])
    assert (said["last_error"], said["attempt_count"], said["payload"]) == ('no "way"', 1, [1, 2.5])
    assert said["failed_at"] == pytest.approx(lab.now_ms() / 1000, abs=60)
    assert lab.contents.replay(["m"]) == {"m": "MOVED"}
    [(_, again)] = lab.client.xrange("q")
    assert again == fresh
    lab.queue.ack("m", lab.take().lock_token)
    [(_, done)] = lab.client.xrange("q_acknowledged")
    assert "acknowledged_at" in json.loads(done[b"data"])
    lab.contents.move(["m"], to="archived")
    [(_, archived)] = lab.client.xrange("q_archived")
    assert "acknowledged_at" not in json.loads(archived[b"data"])
    assert "archived_at" in json.loads(archived[b"data"])
    lab.contents.move(["m"], to="main")
    [(_, again)] = lab.client.xrange("q")
    assert again == fresh
