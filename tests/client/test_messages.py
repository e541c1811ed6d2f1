"""Messages by the clients: added once, received, acknowledged or rejected, listed."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import islice

import pytest

from queue_manager.client import Client, ClientError, OutgoingMessage, received_messages
from tests.client.clients import url_of
from tests.eventually import eventually
from tests.web.credentials import OPERATOR
from tests.web.queue_client import Queue

ODD_ID = "a:b@c.d_e-f"


def test_a_message_is_received_as_it_was_added(client: Client) -> None:
    payload = {"to": "ada@example.org", "text": "\u2028 é \ud800", "n": [1.5, None, 10**30]}
    id = client.messages.enqueue("mail", payload, priority=3, ack_timeout=90, max_attempts=4, id=ODD_ID)
    message = client.messages.dequeue(consumer_id="worker-1")
    assert message is not None
    assert (message.id, message.type, message.payload, message.attempt) == (id, "mail", payload, 1)
    assert (message.fields.priority, message.fields.consumer_id) == (3, "worker-1")
    assert message.fields.deadline_at is not None
    assert message.fields.dequeued_at is not None
    assert (message.fields.deadline_at - message.fields.dequeued_at).total_seconds() == pytest.approx(90, abs=0.01)


def test_a_payload_with_more_digits_than_python_reads_is_listed_and_received(client: Client, queue: Queue) -> None:
    digits = "9" * 4_301
    for payload in (f"[{digits}]", "7"):
        body = f'{{"type":"mail","payload":{payload}}}'
        assert queue.post("/queue/message", body, X_API_KEY=OPERATOR).status == 201
    assert [one.payload for one in client.messages.list("main")] == [7, [Decimal(digits)]]
    received = client.messages.dequeue()
    assert received is not None
    assert received.payload == [Decimal(digits)]


def test_an_id_is_added_once(client: Client) -> None:
    assert [client.messages.enqueue("mail", id="mail-1") for _ in range(2)] == ["mail-1"] * 2
    assert client.messages.status().main == 1


def test_an_empty_type_is_refused_instead_of_meaning_any(client: Client) -> None:
    client.messages.enqueue("mail")
    with pytest.raises(ValueError, match=r"^type: must be None or the type of messages"):
        client.messages.dequeue(type="")


def test_an_empty_id_is_refused(client: Client) -> None:
    with pytest.raises(ClientError) as caught:
        client.messages.enqueue("mail", id="")
    assert (caught.value.status, caught.value.field) == (422, "id")
    assert client.messages.status().main == 0


def test_a_batch_is_added_whole(client: Client) -> None:
    ids = client.messages.enqueue_batch(OutgoingMessage(type="mail", payload=number) for number in range(3))
    assert len(ids) == 3
    messages = [client.messages.dequeue() for _ in ids]
    assert [(message.id, message.payload) for message in messages if message] == list(zip(ids, range(3), strict=True))


def test_an_invalid_message_of_a_batch_is_named_and_nothing_is_added(client: Client) -> None:
    with pytest.raises(ClientError) as caught:
        client.messages.enqueue_batch([OutgoingMessage(type="mail"), OutgoingMessage(type="mail", priority=99)])
    assert (caught.value.status, caught.value.error, caught.value.field) == (422, "invalid", "[1].priority")
    assert client.messages.status().main == 0


def test_a_batch_of_something_else_is_refused(client: Client) -> None:
    with pytest.raises(TypeError, match="messages: must be instances of OutgoingMessage, not dict"):
        client.messages.enqueue_batch([{"type": "mail"}])  # type: ignore[list-item]


def test_dequeue_of_an_empty_queue_returns_none(client: Client) -> None:
    assert client.messages.dequeue() is None
    assert client.messages.dequeue(0.1, type="mail") is None


def test_a_waiting_consumer_receives_a_message_that_is_added_later(client: Client, queue: Queue) -> None:
    timer = threading.Timer(0.3, queue.post, ["/queue/message", {"type": "mail"}], {"X_API_KEY": OPERATOR})
    timer.start()
    message = client.messages.dequeue(30)
    timer.join()
    assert message is not None


def test_consumers_receive_messages_of_a_type_under_their_id(client: Client) -> None:
    _, first, second = (client.messages.enqueue(type) for type in ("mail", "sms", "sms"))
    message = client.messages.dequeue(type="sms", consumer_id="ada")
    assert message is not None
    assert (message.id, message.fields.consumer_id) == (first, "ada")
    message = next(client.messages.receive(type="sms", consumer_id="bob"))
    assert (message.id, message.fields.consumer_id) == (second, "bob")


def test_the_block_of_a_message_acknowledges_it(client: Client) -> None:
    ids = [client.messages.enqueue("mail", number) for number in range(3)]
    received = []
    for message in islice(client.messages.receive(type="mail"), 3):
        with message:
            received.append(message.id)
            assert client.messages.status().processing == 1
    assert received == ids
    assert client.messages.status().acknowledged == 3


def test_a_block_that_raises_rejects_the_message(client: Client) -> None:
    id = client.messages.enqueue("mail", max_attempts=2)
    for attempt in (1, 2):
        message = next(client.messages.receive())
        assert message.attempt == attempt
        with pytest.raises(ValueError), message:
            raise ValueError("no such address")
    found = client.messages.get(id)
    assert (found.state, found.last_error) == ("dead", "ValueError: no such address")
    assert [entry.event for entry in found.events] == ["delivered", "requeued", "delivered", "dead-lettered"]


def test_a_block_whose_error_is_long_rejects_the_message(client: Client) -> None:
    id = client.messages.enqueue("mail")
    message = client.messages.dequeue()
    assert message is not None
    with pytest.raises(ValueError), message:
        raise ValueError("x" * 2**21)
    found = client.messages.get(id)
    assert found.state == "main"
    assert found.last_error is not None
    assert found.last_error.startswith("ValueError: xxx")


def test_a_message_can_be_rejected_for_a_long_reason(client: Client) -> None:
    id = client.messages.enqueue("mail")
    message = client.messages.dequeue()
    assert message is not None
    assert message.nack("x" * 2**21) is True
    assert (client.messages.get(id).last_error or "").startswith("xxx")


def test_a_block_whose_error_has_no_text_rejects_the_message(client: Client) -> None:
    class UnreadableError(Exception):
        def __str__(self) -> str:
            return str(self.args[0])

    id = client.messages.enqueue("mail")
    message = client.messages.dequeue()
    assert message is not None
    with pytest.raises(UnreadableError), message:
        raise UnreadableError
    found = client.messages.get(id)
    assert (found.state, found.last_error) == ("main", "UnreadableError: its text raises IndexError")


def test_a_block_that_settled_its_message_is_not_warned_about_a_lost_lock(
    queue: Queue, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(received_messages, "TOUCHES_PER_DEADLINE", 12)
    with Client(url_of(queue.web.port), api_key=OPERATOR) as client:
        client.messages.enqueue("mail", ack_timeout=3)
        message = client.messages.dequeue()
        assert message is not None
        with message:
            message.ack()
            eventually(lambda: not message._heartbeat.is_alive())
    assert not caplog.records


def test_a_block_may_settle_the_message_itself(client: Client) -> None:
    client.messages.enqueue("mail", max_attempts=1)
    message = client.messages.dequeue()
    assert message is not None
    with message:
        assert message.nack("not now") is False
    assert client.messages.status().dead == 1


def test_the_deadline_is_extended_while_the_block_runs(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(received_messages, "TOUCHES_PER_DEADLINE", 12)
    id = client.messages.enqueue("mail")
    message = client.messages.dequeue(ack_timeout=6)
    assert message is not None
    with message:
        eventually(lambda: sum(entry.touches or 0 for entry in client.messages.get(id).events) >= 3)
    assert client.messages.get(id).state == "acknowledged"


def test_a_lost_lock_is_an_error(client: Client) -> None:
    client.messages.enqueue("mail")
    message = client.messages.dequeue()
    assert message is not None
    assert message.nack() is True
    for settle in (message.ack, message.nack, message.touch):
        with pytest.raises(ClientError) as caught:
            settle()
        assert (caught.value.status, caught.value.error) == (409, "LOCK_LOST")


def test_a_block_whose_lock_is_lost_ends_with_an_error(client: Client, queue: Queue) -> None:
    id = client.messages.enqueue("mail", ack_timeout=1)
    message = client.messages.dequeue()
    assert message is not None
    with pytest.raises(ClientError, match="LOCK_LOST"), message:
        queue.post("/queue/move", {"messages": [id], "toQueue": "main"}, X_API_KEY=OPERATOR)
    assert client.messages.get(id).state == "main"


@pytest.mark.parametrize("id", [".", "..", "no/such", "no such?"])
def test_an_id_that_does_not_exist_is_not_found_and_no_message_is_received(id: str, client: Client) -> None:
    client.messages.enqueue("mail")
    with pytest.raises(ClientError, match="There is no message") as caught:
        client.messages.get(id)
    assert caught.value.status == 404
    assert client.messages.status().main == 1


def test_touch_returns_the_new_deadline(client: Client) -> None:
    client.messages.enqueue("mail")
    message = client.messages.dequeue(ack_timeout=10)
    assert message is not None
    assert message.fields.deadline_at is not None
    assert (message.touch(100) - message.fields.deadline_at).total_seconds() == pytest.approx(90, abs=5)


def test_touch_by_zero_seconds_is_refused(client: Client) -> None:
    client.messages.enqueue("mail")
    message = client.messages.dequeue()
    assert message is not None
    with pytest.raises(ClientError, match="extend_seconds"):
        message.touch(0)


def test_a_list_follows_the_cursor(client: Client) -> None:
    ids = client.messages.enqueue_batch([OutgoingMessage(type="mail") for _ in range(7)])
    assert [message.id for message in client.messages.list("main", page_size=3, order="asc")] == ids
    assert [message.id for message in client.messages.list("main", page_size=3, type="sms")] == []


def test_a_list_is_filtered_by_priority_and_attempts(client: Client) -> None:
    low, high = (client.messages.enqueue("mail", priority=priority) for priority in (0, 5))
    assert [one.id for one in client.messages.list("main", priority=0)] == [low]
    message = client.messages.dequeue()
    assert message is not None
    message.nack()
    assert [one.id for one in client.messages.list("main", attempts=1)] == [high]


def test_a_list_is_limited_by_times_with_a_zone_only(client: Client) -> None:
    id, now = client.messages.enqueue("mail"), datetime.now(UTC)
    assert [one.id for one in client.messages.list("main", since=now - timedelta(hours=1))] == [id]
    assert list(client.messages.list("main", until=now - timedelta(hours=1))) == []
    with pytest.raises(ValueError, match=r"^since: must be a datetime with a time zone"):
        list(client.messages.list("main", since=now.replace(tzinfo=None)))
    with pytest.raises(ValueError, match=r"^until: must be a datetime with a time zone"):
        list(client.messages.list("main", until=now.replace(tzinfo=None)))


def test_types_are_paused_and_resumed(client: Client, queue: Queue) -> None:
    id = client.messages.enqueue("mail")
    client.messages.pause(["mail"], reason="spilling")
    assert client.messages.dequeue() is None
    assert queue.get("/queue/status", X_API_KEY=OPERATOR).body["pauses"]["mail"]["reason"] == "spilling"
    client.messages.resume(["mail"])
    received = client.messages.dequeue()
    assert received is not None
    assert received.id == id


def test_dead_letters_are_replayed(client: Client, queue: Queue) -> None:
    client.messages.enqueue("mail", max_attempts=1)
    message = client.messages.dequeue()
    assert message is not None
    message.nack("broken")
    (dead,) = client.messages.list("dead", search="broken")
    result = client.messages.replay([dead.id, "unknown"])
    assert (result.moved, result.failed) == (1, 1)
    assert client.messages.status().main == 1
