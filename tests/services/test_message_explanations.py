"""Why a message is in its state: the explanation of each state, and its timeline."""

from __future__ import annotations

import json
from typing import Any

import pytest

from models.database import server_now
from queue_manager.core.redis_client import connect
from queue_manager.core.settings import settings
from queue_manager.explanation import Explanation
from services.message_queue import MessageQueue, message_queue, queue_admin, server_url, sweeper, system
from tests.eventually import eventually
from tests.services.test_explanations import dispatch

pytestmark = pytest.mark.usefixtures("clean")


@pytest.fixture
def queue() -> MessageQueue:
    return message_queue()


def why(id: str, **fields: Any) -> Explanation:
    (found,) = system.explain(id, dispatch(server_now(), system=system, **fields))
    return found


def test_waiting_message(queue: MessageQueue) -> None:
    queue.enqueue("mail", id="low")
    queue.enqueue("mail", id="high", priority=5)
    queue.enqueue("mail", id="higher", priority=6)
    low, high, higher = map(why, ("low", "high", "higher"))
    assert (low.label, low.title, low.kind) == ("waiting", "mail", "message")
    assert (low.page, low.document, low.retry) == ("/messages/low", "/api/queue/message/low", None)
    assert low.answer.endswith("; 2 other messages of this or a higher priority wait, too.")
    assert high.answer.endswith("; 1 other message of this or a higher priority waits, too.")
    assert higher.answer.endswith("; the next consumer gets it.")
    assert [(one.event, one.detail) for one in high.timeline] == [("Added", "priority 5")]


def test_message_in_processing(queue: MessageQueue) -> None:
    queue.enqueue("mail", id="m")
    first = queue.dequeue(consumer_id="c1")
    assert first is not None
    queue.nack(first.id, first.lock_token, reason="the mail server is unavailable")
    assert "; its 1st attempt failed. Reason: the mail server is unavailable" in why("m").answer
    queue.dequeue(consumer_id="c2")
    found = why("m")
    assert (found.label, found.tone) == ("processing", "good")
    assert found.answer.startswith("Being processed by consumer c2 until ")
    assert found.answer.endswith("; attempt 2 of 3.")
    assert [one.event for one in found.timeline] == ["Delivered", "Requeued", "Delivered", "Added"]
    requeued = found.timeline[1]
    assert (requeued.error, requeued.duration_ms is not None) == ("the mail server is unavailable", True)
    assert found.timeline[2].detail == "to c1, attempt 1"


def test_the_timeline_has_the_whole_reason_of_the_last_failure(queue: MessageQueue) -> None:
    queue.enqueue("mail", id="m")
    for reason in ("first\n" + "x" * 300, "second\n" + "y" * 300):
        taken = queue.dequeue()
        assert taken is not None
        queue.nack(taken.id, taken.lock_token, reason=reason)
    errors = [one.error for one in why("m").timeline if one.error]
    assert errors == ["second\n" + "y" * 300, "first " + "x" * 194]
    assert why("m").answer.endswith("; its 2nd attempt failed. Reason: second " + "y" * 193 + ".")


def test_message_of_a_paused_type(queue: MessageQueue) -> None:
    queue.enqueue("mail", id="m")
    queue_admin().pause(["mail"], by="ada", reason="spilling")
    assert queue.dequeue() is None
    found = why("m")
    assert found.label == "waiting"
    assert "; messages of its type are paused since " in found.answer
    assert found.answer.endswith(" by ada: spilling.")


def test_message_whose_deadline_passed(queue: MessageQueue) -> None:
    queue.enqueue("mail", id="m", ack_timeout=0.001)
    queue.dequeue()
    eventually(lambda: "its deadline passed" in why("m").answer)
    assert "the next scan runs at " in why("m").answer


def test_dead_letter_that_is_replayed(queue: MessageQueue) -> None:
    queue.enqueue("mail", id="m", ack_timeout=0.001, max_attempts=1)
    queue.dequeue()
    eventually(lambda: len(sweeper().sweep().dead_lettered) == 1)
    found = why("m")
    assert (found.label, found.tone) == ("failed", "bad")
    reason = "Max attempts exceeded (Stream): not acknowledged in time"
    assert found.answer.endswith(f", after 1 attempt; no consumer gets it until it is replayed. Reason: {reason}.")
    assert found.timeline[0].error == reason
    assert (found.retry, found.retry_body) == ("/api/queue/replay", {"messageIds": ["m"]})
    queue_admin().replay(["m"])
    replayed = why("m")
    newest = replayed.timeline[0]
    assert (replayed.label, newest.event, newest.detail, newest.error) == ("waiting", "Replayed", "", None)
    assert "failed" not in replayed.answer


def test_dead_letter_of_another_program_without_a_reason(queue: MessageQueue) -> None:
    data = json.dumps({"id": "m", "type": "mail", "created_at": 1704067200, "payload": 1})
    with connect(server_url()) as client:
        client.xadd(f"{settings().queue_name}_dlq", {"data": data})
    assert [one.id for one in queue_admin().list("dead").messages] == ["m"]
    assert why("m").answer.endswith("; no consumer gets it until it is replayed. No reason was recorded.")


def test_dead_letter_that_cannot_be_decoded_is_not_to_be_replayed(queue: MessageQueue) -> None:
    with connect(server_url()) as client:
        client.xadd(settings().queue_name, {"data": "garbage"})
    assert queue.dequeue() is None
    (letter,) = queue_admin().list("dead").messages
    found = why(letter.id)
    assert found.answer.startswith("It cannot be decoded; failed at ")
    assert found.answer.endswith("; it cannot be replayed: delete or archive it. Reason: Undecodable message.")
    assert (found.retry, found.retry_body) == (None, {})


def test_completed_or_archived_message(queue: MessageQueue) -> None:
    queue.enqueue("mail", id="m")
    taken = queue.dequeue()
    assert taken is not None
    queue.ack(taken.id, taken.lock_token)
    found = why("m")
    assert found.answer.startswith("Acknowledged at ")
    assert found.answer.endswith("; at attempt 1.")
    queue.enqueue("mail", id="n")
    queue_admin().move(["n"], to="archived", source="main")
    assert why("n").answer.endswith(", so no consumer gets it.")


def test_unknown_id_has_no_explanation(queue: MessageQueue) -> None:
    state = dispatch(server_now(), system=system)
    for id in ("nothing", "", "x" * 300, "\n"):
        assert list(system.explain(id, state)) == []
