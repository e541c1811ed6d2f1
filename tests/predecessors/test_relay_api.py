"""Relay's HTTP API: requests as its clients send them get the members that they read."""

from __future__ import annotations

import pytest

from tests.real_servers import Servers
from tests.web.queue_client import Queue, empty_queue


@pytest.fixture
def queue(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Queue:
    return empty_queue(servers, tmp_path_factory, QUEUE_REQUIRE_LOCK_TOKEN="false")


def test_consumer_without_a_name_is_null(queue: Queue) -> None:
    queue.add()
    assert queue.take()["consumer_id"] is None
    queue.add()
    assert queue.take("consumerId=worker-1")["consumer_id"] == "worker-1"
    [unnamed, _] = queue.page("processing", "sortBy=deadlineAt&sortOrder=asc")["messages"]
    assert unnamed["consumer_id"] is None


def test_touch_response_has_a_message(queue: Queue) -> None:
    id = queue.add()
    queue.take()
    touched = queue.put(f"/queue/message/{id}/touch", {})
    assert touched.body["message"] == "Lock extended successfully"


def test_whole_message_is_acknowledged_as_it_was_received(queue: Queue) -> None:
    queue.add()
    message = queue.take()
    assert queue.post("/queue/ack", message).body["message"] == "Message acknowledged"
    assert queue.sizes() == (0, 0, 0, 1, 0)


def test_moved_and_deleted_messages_are_counted(queue: Queue) -> None:
    ids = [queue.add() for _ in range(3)]
    whole = queue.page("main")["messages"]
    moved = queue.post("/queue/move", {"messages": whole, "fromQueue": "main", "toQueue": "archived"}).body
    assert (moved["success"], moved["movedCount"]) == (True, 3)
    deleted = queue.post("/queue/messages/delete?queueType=archived", {"messageIds": [*ids, "unknown"]}).body
    assert (deleted["success"], deleted["deletedCount"]) == (True, 3)


def test_archived_messages_are_sorted_by_the_time_of_archiving(queue: Queue) -> None:
    ids = [queue.add() for _ in range(3)]
    for id in ids:
        queue.post("/queue/move", {"messages": [id], "fromQueue": "main", "toQueue": "archived"})
    for name in ("archived_at", "archivedAt"):
        assert queue.ids("archived", f"sortBy={name}&sortOrder=asc") == ids
        assert queue.ids("archived", f"sortBy={name}&sortOrder=desc") == ids[::-1]
    messages = queue.page("archived", "sortBy=archived_at&sortOrder=asc")["messages"]
    times = [message["archived_at"] for message in messages]
    assert times == sorted(times)


def test_status_has_the_queue_lengths_under_their_old_names(queue: Queue) -> None:
    queue.dead()
    for _ in range(3):
        queue.add()
    message = queue.take()
    queue.post("/queue/ack", {"id": message["id"]})
    queue.take()
    queue.post("/queue/move", {"messages": queue.ids("main"), "toQueue": "archived"})
    queue.add()

    status = queue.get("/queue/status?include_messages=false").body

    names = ("mainQueue", "processingQueue", "deadLetterQueue", "acknowledgedQueue", "archivedQueue")
    assert [status[name]["length"] for name in names] == [1, 1, 1, 1, 1]
    assert [status[name]["messages"] for name in names] == [[]] * 5
    assert status["acknowledgedQueue"]["total"] == status["metadata"]["totalAcknowledged"] == 1


def test_list_has_the_number_of_pages(queue: Queue) -> None:
    for _ in range(3):
        queue.add()
    assert queue.page("main", "limit=2")["pagination"]["totalPages"] == 2


def test_one_message_is_read_with_its_history(queue: Queue) -> None:
    id = queue.add(payload={"n": 1.50})
    waiting = queue.get(f"/queue/message/{id}").body
    assert (waiting["state"], waiting["events"], waiting["payload"]) == ("main", [], {"n": 1.5})
    queue.take("consumerId=worker-1")
    queue.post(f"/queue/message/{id}/nack", {"errorReason": "broken"})
    queue.take()

    message = queue.get(f"/queue/message/{id}").body

    assert (message["state"], message["attempt_count"]) == ("processing", 2)
    for event in message["events"]:
        assert event.pop("at") <= message["server_time"]
    assert message["events"] == [
        {"event": "delivered", "attempt": 1, "consumer_id": "worker-1"},
        {"event": "requeued", "reason": "broken"},
        {"event": "delivered", "attempt": 2},
    ]
    assert queue.sizes() == (0, 1, 0, 0, 0)  # nobody received it


def test_message_of_any_id_is_read(queue: Queue) -> None:
    for id in ("messages", "count", "a:b@c.d"):
        queue.add(id=id)
        assert queue.get(f"/queue/message/{id}").body["id"] == id
    answer = queue.get("/queue/message/unknown")
    assert (answer.status, answer.body["error"]) == (404, "not found")


def test_history_also_has_the_event_names_of_relay(queue: Queue) -> None:
    id = queue.add(priority=4)
    queue.take("consumerId=worker-1")
    queue.put(f"/queue/message/{id}/touch", {})
    queue.post(f"/queue/message/{id}/nack", {"errorReason": "broken"})
    queue.take()
    queue.post("/queue/ack", {"id": id})

    answer = queue.get(f"/queue/activity/message/{id}").body

    assert answer["message_id"] == id
    history = answer["history"]
    assert [entry["action"] for entry in history] == ["enqueue", "dequeue", "touch", "requeue", "dequeue", "ack"]
    assert [entry["attempt_count"] for entry in history] == [None, 1, None, None, 2, None]
    assert (history[1]["consumer_id"], history[3]["error_reason"]) == ("worker-1", "broken")
    assert {(entry["message_id"], entry["message_type"], entry["priority"]) for entry in history} == {(id, "mail", 4)}
    times = [entry["timestamp"] for entry in history]
    assert times == sorted(times)


def test_unknown_message_has_no_history(queue: Queue) -> None:
    assert queue.get("/queue/activity/message/unknown").body == {"message_id": "unknown", "history": []}


def test_an_unknown_action_is_refused_and_the_accepted_ones_are_named(queue: Queue) -> None:
    assert queue.get("/queue/activity?action=ack,nack").status == 200
    answer = queue.get("/queue/activity?action=ack,zz")
    assert (answer.status, answer.body["field"]) == (422, "action")
    assert "must be a comma-separated list of: enqueue, dequeue, touch, ack" in answer.body["message"]
