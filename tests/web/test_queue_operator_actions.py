"""Operator actions on messages over HTTP: change, delete, move, replay, clear."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from models import audit
from models.audit import AuditQuery
from queue_manager.web.routes.messages import operator_actions
from queue_manager.web.routes.messages.requests import MessageFilter, MessagesToDelete, Move, Replay
from services.audit import Actor
from services.message_queue import NewMessage, QueueAdmin, message_queue, queue_admin
from services.message_queue.admin import ReplayResult
from services.message_queue.scripts import BULK_BATCH_SIZE
from tests.e2e.commands import interrupt_second_call
from tests.web.queue_client import Queue

ADA = Actor(who="ada", via="api", address="127.0.0.1")


def test_a_waiting_message_is_changed_and_its_new_payload_kept_byte_for_byte(queue: Queue) -> None:
    id = queue.add()
    body = '{"payload":[1.10,{}],"type":"sms","priority":4,"ackTimeout":9,"custom_max_attempts":2}'
    answer = queue.put(f"/queue/message/{id}?queueType=main", body)
    assert (answer.status, answer.body["message"], answer.body["id"]) == (200, "Message updated", id)
    assert answer.text.endswith('"payload":[1.10,{}]}}')
    taken = queue.get("/queue/message")
    assert taken.text.endswith('"payload":[1.10,{}]}')
    assert [taken.body[name] for name in ("type", "priority", "custom_ack_timeout", "custom_max_attempts")] == [
        "sms",
        4,
        9,
        2,
    ]


def test_a_held_message_is_not_changed(queue: Queue) -> None:
    id = queue.add()
    queue.take()
    answer = queue.put(f"/queue/message/{id}", {"priority": 1})
    assert (answer.status, answer.body["error"]) == (409, "message held")


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        ({}, 422, "body"),
        ({"id": "other"}, 422, "id"),
        ({"nonsense": 1}, 422, "nonsense"),
        ({"priority": 10}, 422, "priority"),
        ({"type": None}, 422, "type"),
        ({"maxAttempts": 0}, 422, "maxAttempts"),
        ({"payload": "x" * 1024 * 1024}, 413, "payload"),
        ([], 400, "body"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_bad_change_is_refused_with_its_field(body: Any, status: int, field: str, queue: Queue) -> None:
    id = queue.add()
    answer = queue.put(f"/queue/message/{id}", body)
    assert (answer.status, answer.body["field"]) == (status, field)


@pytest.mark.parametrize(
    ("path", "max_bytes"),
    [
        ("pause", 256 * 1024),
        ("resume", 256 * 1024),
        ("messages/delete", 4 * 1024 * 1024),
        ("move", 4 * 1024 * 1024),
        ("replay", 4 * 1024 * 1024),
        ("import", 16 * 1024 * 1024),
    ],
)
def test_a_body_that_is_longer_than_its_route_needs_is_413(path: str, max_bytes: int, queue: Queue) -> None:
    assert queue.post(f"/queue/{path}", b" " * max_bytes).status != 413
    refused = queue.post(f"/queue/{path}", b" " * (max_bytes + 1))
    assert (refused.status, refused.body["message"]) == (413, f"body: must have at most {max_bytes} bytes")


def test_a_message_is_changed_and_deleted_only_in_the_given_state(queue: Queue) -> None:
    id = queue.add()
    for query in ("?queueType=dead", "?queueType=archived"):
        assert queue.put(f"/queue/message/{id}{query}", {"priority": 1}).status == 404
        assert queue.delete(f"/queue/message/{id}{query}").status == 404
    deleted = queue.delete(f"/queue/message/{id}?queueType=main").body
    assert (deleted["message"], deleted["id"]) == ("Message deleted", id)
    answer = queue.delete(f"/queue/message/{id}")
    assert (answer.status, answer.body["error"]) == (404, "not found")


@pytest.mark.parametrize("method", ["PUT", "DELETE"])
def test_an_unknown_queue_in_the_query_is_422(method: str, queue: Queue) -> None:
    answer = queue.ask(method, "/queue/message/any?queueType=nonsense", {"priority": 1})
    assert (answer.status, answer.body["field"]) == (422, "queueType")
    assert "'main', 'processing', 'dead'" in answer.body["message"]


def test_a_date_range_is_not_deleted_from_all_queues_if_the_queue_is_empty(queue: Queue) -> None:
    id = queue.add()
    answer = queue.delete("/queue/messages?startTimestamp=0&endTimestamp=99999999999&queueType=")
    assert (answer.status, answer.body["field"]) == (422, "queueType")
    assert queue.ids("main") == [id]


def test_many_are_deleted_each_with_its_result(queue: Queue) -> None:
    first, second = queue.add(), queue.add()
    answer = queue.post("/queue/messages/delete?queueType=main", {"messageIds": [first, "nobody", first]})
    assert answer.status == 200
    assert (answer.body["deleted"], answer.body["failed"]) == (1, 1)
    assert answer.body["results"] == [{"id": first, "result": "DELETED"}, {"id": "nobody", "result": "NOT_FOUND"}]
    assert queue.ids("main") == [second]


def test_types_are_paused_and_resumed(queue: Queue) -> None:
    id, other = queue.add(type="mail"), queue.add(type="sms")
    paused = queue.post("/queue/pause", {"types": ["mail", "fax"], "reason": "spilling"})
    assert paused.status == 200
    made = paused.body["pauses"]["mail"]
    assert (made["by"], made["reason"], made["at"][:2]) == ("loopback", "spilling", "20")
    assert queue.get("/queue/status").body["pauses"] == paused.body["pauses"]
    assert queue.take()["id"] == other
    assert queue.get("/queue/message").status == 404
    assert queue.sizes() == (1, 1, 0, 0, 0)
    assert list(queue.post("/queue/resume", {"types": ["mail"]}).body["pauses"]) == ["fax"]
    assert queue.take()["id"] == id


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "types"),
        ({"types": []}, "types"),
        ({"types": ["a\n"]}, "types"),
        ({"types": ["a"], "reason": ""}, "reason"),
    ],
)
def test_invalid_pauses_are_422(body: dict[str, Any], field: str, queue: Queue) -> None:
    answer = queue.post("/queue/pause", body)
    assert (answer.status, answer.body["field"].partition("[")[0]) == (422, field)
    assert queue.get("/queue/status").body["pauses"] == {}


def test_messages_move_by_id_or_whole(queue: Queue) -> None:
    one, other = queue.add(payload={"a": 1}), queue.add()
    whole = next(message for message in queue.page("main")["messages"] if message["id"] == one)
    body = {"messages": [whole, other, "nobody"], "fromQueue": "main", "toQueue": "dead", "errorReason": "by me"}
    answer = queue.post("/queue/move", body)
    assert (answer.status, answer.body["moved"], answer.body["failed"]) == (200, 2, 1)
    assert answer.body["results"][2] == {"id": "nobody", "result": "NOT_FOUND"}
    assert {letter["last_error"] for letter in queue.page("dead")["messages"]} == {"by me"}
    assert queue.sizes() == (0, 0, 2, 0, 0)


@pytest.mark.parametrize("target", ["main", "dead", "acknowledged", "archived"])
@pytest.mark.parametrize("source", ["main", "processing", "dead"])
def test_messages_move_between_all_states(source: str, target: str, queue: Queue) -> None:
    id = queue.dead() if source == "dead" else queue.add()
    if source == "processing":
        queue.take()
    answer = queue.post("/queue/move", {"messages": [id], "fromQueue": source, "toQueue": target})
    if source == target:
        assert (answer.status, answer.body["field"]) == (422, "toQueue")
    else:
        assert answer.body["results"] == [{"id": id, "result": "MOVED"}]
        assert queue.ids(target) == [id]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"messages": ["a"]}, "toQueue"),
        ({"messages": ["a"], "toQueue": "processing"}, "toQueue"),
        ({"messages": ["a"], "toQueue": "nonsense"}, "toQueue"),
        ({"messages": ["a"], "toQueue": ["main"]}, "toQueue"),
        ({"messages": ["a"], "toQueue": "dead", "fromQueue": 5}, "fromQueue"),
        ({"toQueue": "dead"}, "messages"),
        ({"messages": "a", "toQueue": "dead"}, "messages"),
        ({"messages": [5], "toQueue": "dead"}, "messages[0]"),
        ({"messages": ["a", {"type": "b"}], "toQueue": "dead"}, "messages[1].id"),
        ({"messages": ["a"] * 1_001, "toQueue": "dead"}, "messages"),
        ({"messages": ["a"], "toQueue": "dead", "errorReason": 5}, "errorReason"),
        ({"messages": ["a"], "toQueue": "dead", "nonsense": 5}, "nonsense"),
    ],
    ids=lambda value: str(value)[:50],
)
def test_a_bad_move_is_422_with_its_field(body: Any, field: str, queue: Queue) -> None:
    answer = queue.post("/queue/move", body)
    assert (answer.status, answer.body["field"]) == (422, field)


def test_a_reason_with_unpaired_surrogates_is_stored_readably(queue: Queue) -> None:
    id = queue.add()
    body = {"messages": [id], "toQueue": "dead", "errorReason": "\ud800" + "x" * 10_000}
    assert queue.post("/queue/move", body).status == 200
    assert len(queue.page("dead")["messages"][0]["last_error"]) == 4_096


def test_a_dead_letter_is_replayed_with_all_its_attempts_and_its_history(queue: Queue) -> None:
    id = queue.dead()
    answer = queue.post("/queue/replay", {"messageIds": [id, "nobody"]})
    assert (answer.status, answer.body["moved"], answer.body["failed"]) == (200, 1, 1)
    taken = queue.take()
    assert (taken["attempt_count"], taken["history"][0]["last_error"]) == (1, "broken")


def test_messages_matching_a_filter_are_replayed(queue: Queue) -> None:
    mail, _sms = queue.dead(type="mail", payload="needle"), queue.dead(type="sms")
    body = {"type": "mail", "priority": 9, "attempts": 1, "search": "NEEDLE", "startDate": "2020-01-01"}
    answer = queue.post("/queue/replay", {"filter": body})
    assert answer.body["results"] == [{"id": mail, "result": "MOVED"}]
    assert queue.sizes() == (1, 0, 1, 0, 0)
    for number in (0, 2026, 1_767_225_600):
        assert queue.post("/queue/replay", {"filter": {"endDate": number}}).body["moved"] == 0
    assert queue.post("/queue/replay", {"filter": {"startDate": 2026}}).body["moved"] == 1


def test_all_matching_messages_are_replayed_and_only_few_results_are_listed(queue: Queue) -> None:
    for part in range(3):
        ids = [f"{part}-{number}" for number in range(500)]
        queue.post("/queue/batch", [{"type": "mail", "id": id} for id in ids])
        queue.post("/queue/move", {"messages": ids, "toQueue": "dead"})
    answer = queue.post("/queue/replay", {"filter": {"type": "mail"}})
    counts = {"moved": 1_500, "movedCount": 1_500, "failed": 0}
    message = "1,500 of 1,500 messages moved"
    assert answer.body == {"success": True, "message": message, **counts, "is_complete": True}
    queue.post("/queue/move", {"messages": ids, "toQueue": "dead"})
    few = queue.post("/queue/replay", {"filter": {"type": "mail"}}).body
    assert (few["moved"], few["is_complete"]) == (500, True)
    assert [result["id"] for result in few["results"]] == ids


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "messageIds"),
        ({"messageIds": [], "filter": {}}, "messageIds"),
        ({"messageIds": "a"}, "messageIds"),
        ({"messageIds": [None]}, "messageIds[0]"),
        ({"filter": []}, "filter"),
        ({"filter": {"nonsense": 1}}, "filter.nonsense"),
        ({"filter": {"priority": "9"}}, "filter.priority"),
        ({"filter": {"type": 5}}, "filter.type"),
        ({"filter": {"search": "\ud800"}}, "filter.search"),
        ({"filter": {"startDate": "soon"}}, "filter.startDate"),
        ({"filter": {"startDate": "2026"}}, "filter.startDate"),
        ({"filter": {"endDate": True}}, "filter.endDate"),
        ({"nonsense": 1}, "nonsense"),
    ],
    ids=str,
)
def test_a_bad_replay_is_422_with_its_field(body: Any, field: str, queue: Queue) -> None:
    answer = queue.post("/queue/replay", body)
    assert (answer.status, answer.body["field"]) == (422, field)


def test_one_queue_is_cleared(queue: Queue) -> None:
    queue.dead()
    queue.add()
    answer = queue.delete("/queue/dead/clear")
    assert (answer.status, answer.body["cleared"], answer.body["is_complete"]) == (200, 1, True)
    assert queue.sizes() == (1, 0, 0, 0, 0)


def test_all_queues_are_cleared(queue: Queue) -> None:
    queue.dead()
    queue.add()
    assert queue.delete("/queue/clear").body["cleared"] == 2
    assert queue.sizes() == (0, 0, 0, 0, 0)


@pytest.mark.parametrize(("method", "path"), [("DELETE", "/queue/mine/clear"), ("GET", "/queue/mine/messages")])
def test_an_unknown_queue_is_404_with_the_known_ones(method: str, path: str, queue: Queue) -> None:
    answer = queue.ask(method, path)
    assert (answer.status, answer.body["field"]) == (404, "queueType")
    assert "main, processing, dead, acknowledged, archived" in answer.body["message"]


# In the process of the test


@pytest.mark.usefixtures("clean")
@pytest.mark.parametrize(
    ("method", "act"),
    [
        ("delete", lambda ids: operator_actions.delete_many(MessagesToDelete(messageIds=ids), ADA)),
        ("delete", lambda ids: operator_actions.delete_date_range(0.0, 1e10, ADA)),
        ("move", lambda ids: operator_actions.move(Move(messages=ids, toQueue="archived"), ADA)),
        ("replay", lambda ids: operator_actions.replay(Replay(messageIds=ids), ADA)),
        ("replay", lambda ids: operator_actions.replay(Replay(filter=MessageFilter()), ADA)),
    ],
    ids=["delete", "delete a range", "move", "replay", "replay all"],
)
def test_an_interrupted_action_records_what_it_has_changed(
    method: str, act: Callable[[list[str]], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    added = message_queue().enqueue_batch([NewMessage(type="mail") for _ in range(BULK_BATCH_SIZE + 1)])
    ids = [one.id for one in added]
    queue_admin().move(ids, to="dead")
    interrupt_second_call(monkeypatch, QueueAdmin, method)

    with pytest.raises(KeyboardInterrupt) as interrupted:
        act(ids)

    assert f"{BULK_BATCH_SIZE} changed before" in interrupted.value.__notes__
    entries, _ = audit.page(AuditQuery(), after=None, limit=1)
    assert (entries[0].outcome, entries[0].count) == ("unknown", BULK_BATCH_SIZE)


@pytest.mark.usefixtures("clean")
def test_a_replay_that_stopped_at_its_time_limit_reports_that_more_remain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(QueueAdmin, "replay_matching", lambda *_: [ReplayResult(moved=2, is_complete=False)])
    answer = operator_actions.replay(Replay(filter=MessageFilter()), ADA)
    assert answer.message == "2 of 2 messages moved; more remain, repeat to continue"
