"""Receiving messages over HTTP, and ack, nack and touch."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import Mock
from urllib.parse import quote

import pytest

from queue_manager.web.routes.messages import delivery
from queue_manager.web.routes.messages.delivery import _wait_for_message
from services.message_queue import Message, QueueUnavailable, async_message_queue, message_queue
from services.message_queue.operations import ReceiveOptions
from tests.real_servers import Servers
from tests.web.queue_client import Queue, empty_queue


def test_a_received_message_has_its_consumer_and_state(queue: Queue) -> None:
    id = queue.add("mail", {"a": 1}, priority=3)
    answer = queue.get("/queue/message?consumerId=worker-1&ackTimeout=12")
    taken = answer.body
    assert answer.status == 200
    assert answer.headers["content-type"] == "application/json"
    assert (taken["id"], taken["type"], taken["payload"], taken["attempt_count"]) == (id, "mail", {"a": 1}, 1)
    assert (taken["consumer_id"], taken["_stream_name"]) == ("worker-1", "tested_p3")
    assert taken["lock_token"]
    assert taken["_stream_id"]
    assert taken["deadline_at"] - taken["dequeued_at"] == pytest.approx(12, abs=0.002)


def test_an_empty_queue_is_404(queue: Queue) -> None:
    answer = queue.get("/queue/message")
    assert (answer.status, answer.body) == (404, {"error": "not found", "message": "Message not found"})


def test_the_highest_priority_is_delivered_first_then_the_oldest(queue: Queue) -> None:
    ids = [queue.add(priority=priority) for priority in (0, 5, 0, 9)]
    assert [queue.take()["id"] for _ in ids] == [ids[3], ids[1], ids[0], ids[2]]


def test_a_consumer_of_a_type_gets_that_type_alone(queue: Queue) -> None:
    queue.add("mail", priority=9)
    wanted = queue.add("sms")
    assert queue.take("type=sms")["id"] == wanted
    assert queue.get("/queue/message?type=sms").status == 404


def test_an_empty_parameter_counts_as_not_given(queue: Queue) -> None:
    queue.add()
    queue.take("timeout=&ackTimeout=&type=&consumerId=")


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("timeout=-1", "timeout"),
        ("timeout=61", "timeout"),
        ("timeout=nan", "timeout"),
        ("timeout=inf", "timeout"),
        ("timeout=soon", "timeout"),
        (f"timeout={'9' * 5_000}", "timeout"),
        ("ackTimeout=0", "ackTimeout"),
        ("ackTimeout=nan", "ackTimeout"),
        ("ackTimeout=1e9", "ackTimeout"),
        ("ackTimeout=x", "ackTimeout"),
        ("type=%00", "type"),
        (f"type={'t' * 257}", "type"),
        ("consumerId=%0a", "consumerId"),
        (f"timeout=1&consumerId={'c' * 257}", "consumerId"),
    ],
    ids=lambda text: text[:30],
)
def test_a_bad_parameter_is_422_with_its_name(query: str, field: str, queue: Queue) -> None:
    queue.add()
    answer = queue.get(f"/queue/message?{query}")
    assert (answer.status, answer.body["field"]) == (422, field)
    assert queue.sizes() == (1, 0, 0, 0, 0)


# ack


def test_the_holder_acknowledges_once(queue: Queue) -> None:
    id = queue.add()
    taken = queue.take()
    first, second = (queue.post("/queue/ack", {"id": id, "lock_token": taken["lock_token"]}) for _ in range(2))
    assert (first.status, first.body) == (200, {"message": "Message acknowledged", "id": id})
    assert (second.status, second.body["error"]) == (409, "LOCK_LOST")
    assert queue.sizes() == (0, 0, 0, 1, 0)


def test_the_whole_message_may_be_sent_to_acknowledge_it(queue: Queue) -> None:
    queue.add(payload={"deep": [1]})
    message = queue.get("/queue/message").text
    assert queue.post("/queue/ack", message).status == 200


@pytest.mark.parametrize(("id", "token"), [("of-nobody", "t"), (None, "wrong")])
def test_only_the_holder_acknowledges(id: str | None, token: str, queue: Queue) -> None:
    queue.add()
    taken = queue.take()
    answer = queue.post("/queue/ack", {"id": id or taken["id"], "lock_token": token})
    assert (answer.status, answer.body["error"]) == (409, "LOCK_LOST")
    assert queue.sizes() == (0, 1, 0, 0, 0)


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        ({"lock_token": "t"}, 400, "id"),
        ({"id": None, "lock_token": "t"}, 400, "id"),
        ({"id": "", "lock_token": "t"}, 400, "id"),
        ({"id": "a"}, 400, "lock_token"),
        ({"id": "a", "lock_token": ""}, 400, "lock_token"),
        ({"id": 5, "lock_token": "t"}, 422, "id"),
        ({"id": "a\x00b", "lock_token": "t"}, 422, "id"),
        ({"id": "\ud800", "lock_token": "t"}, 422, "id"),
        ({"id": "i" * 257, "lock_token": "t"}, 422, "id"),
        ({"id": "a", "lock_token": 5}, 422, "lock_token"),
        ({"id": "a", "lock_token": ["t"]}, 422, "lock_token"),
        ({"id": "a", "lock_token": "\ud800"}, 422, "lock_token"),
    ],
    ids=str,
)
def test_an_ack_without_id_or_token_is_refused(body: Any, status: int, field: str, queue: Queue) -> None:
    answer = queue.post("/queue/ack", body)
    assert (answer.status, answer.body["field"]) == (status, field)


# nack


def test_a_rejected_message_is_redelivered_with_its_reason(queue: Queue) -> None:
    id = queue.add()
    taken = queue.take()
    answer = queue.post(f"/queue/message/{id}/nack", {"lock_token": taken["lock_token"], "errorReason": "no paper"})
    assert (answer.status, answer.body["id"], answer.body["requeued"]) == (200, id, True)
    again = queue.take()
    assert (again["attempt_count"], again["last_error"]) == (2, "no paper")


def test_a_message_rejected_in_its_last_attempt_is_dead_lettered(queue: Queue) -> None:
    id = queue.dead()
    (letter,) = queue.page("dead")["messages"]
    assert (letter["id"], letter["last_error"]) == (id, "broken")
    assert letter["failed_at"]


@pytest.mark.parametrize("reason", ["\ud800 half", "a\x00b", "x" * 100_000, "é" * 5_000, ""])
def test_a_reason_may_be_any_text(reason: str, queue: Queue) -> None:
    id = queue.add()
    body = {"lock_token": queue.take()["lock_token"], "errorReason": reason}
    assert queue.post(f"/queue/message/{id}/nack", body).status == 200
    (message,) = queue.page("main")["messages"]
    assert 0 < len(message["last_error"].encode()) <= 4_096


def test_a_reason_must_be_text(queue: Queue) -> None:
    answer = queue.post("/queue/message/any/nack", {"lock_token": "t", "errorReason": {"a": 1}})
    assert (answer.status, answer.body["field"]) == (422, "errorReason")


@pytest.mark.parametrize(("method", "verb"), [("POST", "nack"), ("PUT", "touch")])
class TestNackAndTouchAlike:
    def test_an_id_that_exists_nowhere_is_404(self, method: str, verb: str, queue: Queue) -> None:
        answer = queue.ask(method, f"/queue/message/nobody/{verb}", {"lock_token": "t"})
        assert (answer.status, answer.body["error"]) == (404, "not found")

    def test_a_message_that_is_held_by_another_is_409(self, method: str, verb: str, queue: Queue) -> None:
        id = queue.add()
        for _ in range(2):  # waiting, then held
            answer = queue.ask(method, f"/queue/message/{id}/{verb}", {"lock_token": "t"})
            assert (answer.status, answer.body["error"]) == (409, "LOCK_LOST")
            queue.get("/queue/message")

    def test_without_a_token_it_is_400(self, method: str, verb: str, queue: Queue) -> None:
        for body in (None, {}, {"lock_token": None}):
            answer = queue.ask(method, f"/queue/message/any/{verb}", body)
            assert (answer.status, answer.body["field"]) == (400, "lock_token")

    @pytest.mark.parametrize("id", ["a\x00b", "\x7f", "i" * 257, "\u0001"])
    def test_an_odd_id_is_422(self, method: str, verb: str, id: str, queue: Queue) -> None:
        answer = queue.ask(method, f"/queue/message/{quote(id)}/{verb}", {"lock_token": "t"})
        assert (answer.status, answer.body["field"]) == (422, "id")

    def test_an_id_of_another_producer_may_have_any_letters(self, method: str, verb: str, queue: Queue) -> None:
        with queue.redis() as client:
            client.xadd("tested", {"data": '{"id":"a/b é%","type":"mail","payload":[]}'})
        token = queue.take()["lock_token"]
        path = f"/queue/message/{quote('a/b é%', safe='')}/{verb}"
        assert queue.ask(method, path, {"lock_token": token}).status == 200

    def test_the_whole_message_may_be_sent(self, method: str, verb: str, queue: Queue) -> None:
        id = queue.add(payload=[1])
        assert queue.ask(method, f"/queue/message/{id}/{verb}", queue.get("/queue/message").text).status == 200


# touch


def test_a_touch_moves_the_deadline_to_the_extension_from_now(queue: Queue) -> None:
    id = queue.add()
    taken = queue.take()
    token = taken["lock_token"]
    before = queue.page("processing")["server_time"]
    answer = queue.put(f"/queue/message/{id}/touch", {"lock_token": token, "extend_seconds": 100})
    after = queue.page("processing")["server_time"]
    assert answer.status == 200
    assert answer.body == {
        "message": "Lock extended successfully",
        "new_timeout_at": answer.body["new_timeout_at"],
        "extended_by": 100,
        "lock_token": token,
    }
    assert before <= answer.body["new_timeout_at"] - 100 <= after
    (held,) = queue.page("processing")["messages"]
    assert held["deadline_at"] == answer.body["new_timeout_at"]


def test_a_touch_without_an_extension_takes_the_messages_own(queue: Queue) -> None:
    id = queue.add(ackTimeout=45)
    body = {"lock_token": queue.take()["lock_token"], "extend_seconds": None}
    assert queue.put(f"/queue/message/{id}/touch", body).body["extended_by"] == 45


@pytest.mark.parametrize("extension", ["0", "-5", "1e400", '"5"', "true", "9" * 5_000], ids=lambda text: text[:9])
def test_a_bad_extension_is_422(extension: str, queue: Queue) -> None:
    answer = queue.put("/queue/message/any/touch", f'{{"lock_token":"t","extend_seconds":{extension}}}')
    assert (answer.status, answer.body["field"]) == (422, "extend_seconds")


# Clients of the old service


def test_without_required_tokens_a_held_message_is_acknowledged_by_its_id(
    servers: Servers, tmp_path_factory: pytest.TempPathFactory
) -> None:
    queue = empty_queue(servers, tmp_path_factory, QUEUE_REQUIRE_LOCK_TOKEN="false")
    id = queue.add()
    assert queue.post("/queue/ack", {"id": id}).status == 409
    queue.take()
    assert queue.put(f"/queue/message/{id}/touch").body["lock_token"] is None
    assert queue.post(f"/queue/message/{id}/nack").body["requeued"] is True
    queue.take()
    assert queue.post("/queue/ack", {"id": id}).status == 200
    assert queue.post("/queue/ack", {"id": id}).status == 409


@pytest.mark.usefixtures("clean")
def test_a_poll_that_fails_when_woken_passes_the_wake_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    own, options = async_message_queue(), ReceiveOptions(ack_timeout=None, type="mail", consumer_id=None)
    take, searches = own.take, list[Message | None]()

    async def take_unless_third(**given: Any) -> Message | None:
        if len(searches) == 2:
            searches.append(None)
            raise QueueUnavailable("its connection was lost")
        found = await take(**given)
        searches.append(found)
        return found

    async def poll_twice() -> list[Message | BaseException | None]:
        request: Any = Mock()
        request.app.state.ending = asyncio.Event()
        polls = [asyncio.create_task(_wait_for_message(options, 20, request)) for _ in range(2)]
        while len(searches) < 2:
            await asyncio.sleep(0.001)
        await asyncio.to_thread(message_queue().enqueue, "mail")
        return await asyncio.gather(*polls, return_exceptions=True)

    monkeypatch.setattr(own, "take", take_unless_third)
    monkeypatch.setattr(delivery, "access_check", lambda _: lambda: False)
    assert sorted(type(answer).__name__ for answer in asyncio.run(poll_twice())) == ["Message", "QueueUnavailable"]
