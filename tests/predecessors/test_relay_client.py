"""A client of Relay, unchanged: the requests that it sends to a real web process, and what it reads of the answers.

The process requires no lock tokens, as the clients of Relay expect. Answers may have more members than Relay's.
"""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import pytest

from tests.real_servers import Servers
from tests.web.credentials import KEYS, OPERATOR
from tests.web.queue_client import Queue, Stream, empty_queue
from tests.web.web_process import Answer

Shape = dict[str, Any]
"""By member: its type, several types, or the shape of an object."""
NUMBER = (int, float)
ANY = object

MESSAGE: Shape = {"id": str, "type": str, "payload": ANY, "priority": int, "created_at": NUMBER, "attempt_count": int}
DELIVERED: Shape = MESSAGE | {
    "dequeued_at": NUMBER,
    "consumer_id": (str, type(None)),
    "lock_token": str,
    "_stream_id": str,
    "_stream_name": str,
}
LENGTH: Shape = {"name": str, "length": int, "messages": list}


class RelayClient:
    """Sends what the dashboard, the scripts and the documented examples of Relay send."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        sent = {"X_API_KEY": OPERATOR, **({"Content_Type": "application/json"} if body is not None else {}), **headers}
        return self.queue.ask(method, f"/queue{path}", body, **sent)

    def read(self, method: str, path: str, body: Any = None, *, status: int = 200, **headers: str) -> Any:
        answer = self.ask(method, path, body, **headers)
        assert answer.status == status, answer.text
        return answer.body

    def enqueue(self, type: str = "email_send", **members: Any) -> None:
        self.read("POST", "/message", {"type": type, "payload": {"to": "user@example.com"}, **members}, status=201)

    def dequeue(self, query: str = "timeout=1") -> Any:
        return self.read("GET", f"/message?{query}")

    def listed(self, queue_type: str, sort_by: str = "created_at", **filters: str) -> list[Any]:
        """Return a page as the dashboard requests it."""
        query = "".join(f"&{name}={quote(value)}" for name, value in filters.items())
        page = self.read("GET", f"/{queue_type}/messages?page=1&limit=100&sortBy={sort_by}&sortOrder=desc{query}")
        has(page["pagination"], {"total": int, "page": int, "limit": int, "totalPages": int})
        messages: list[Any] = page["messages"]
        for message in messages:
            has(message, MESSAGE)
        return messages

    def dead_letter(self) -> Any:
        """Return a new dead letter."""
        self.enqueue(maxAttempts=1, priority=9)
        self.read("POST", f"/message/{self.dequeue()['id']}/nack", {"errorReason": "broken"})
        return self.listed("dead", "failed_at")[0]


@pytest.fixture
def relay(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> RelayClient:
    env = {"QUEUE_REQUIRE_LOCK_TOKEN": "false", "QM_API_KEYS": KEYS}
    return RelayClient(empty_queue(servers, tmp_path_factory, **env))


def has(body: Any, shape: Shape) -> None:
    """Assert that an object has these members, of these types."""
    for name, kind in shape.items():
        assert name in body, (name, body)
        if isinstance(kind, dict):
            has(body[name], kind)
        else:
            assert isinstance(body[name], kind), (name, body[name])


def test_producer_requests_of_relay_clients_work(relay: RelayClient) -> None:
    message = {"type": "email_send", "payload": {"to": "a"}, "priority": 5, "ackTimeout": 60, "maxAttempts": 2}
    added = relay.read("POST", "/message", message, status=201)
    assert added["message"] == "Message added successfully"
    batch = [{"type": "a", "payload": {"n": number}, "priority": number % 3} for number in range(10)]
    assert relay.read("POST", "/batch", batch, status=201)["message"] == "Batch processed: 10/10 messages enqueued"
    assert relay.ask("POST", "/message", {"payload": {}}).status == 422
    assert len(relay.listed("main")) == 11


def test_consumer_requests_of_relay_clients_work(relay: RelayClient) -> None:
    assert relay.read("GET", "/message", status=404)["message"] == "Message not found"
    for _ in range(3):
        relay.enqueue()

    first = relay.dequeue("timeout=1&ackTimeout=60&type=email_send&consumerId=worker-1")
    has(first, DELIVERED)
    assert (first["consumer_id"], first["attempt_count"], first["custom_ack_timeout"]) == ("worker-1", 1, 60)
    touched = relay.read("PUT", f"/message/{first['id']}/touch", {"lock_token": first["lock_token"]})
    has(touched, {"message": str, "new_timeout_at": NUMBER, "extended_by": NUMBER, "lock_token": str})
    acknowledged = {name: first[name] for name in ("id", "_stream_id", "_stream_name", "lock_token")}
    assert relay.read("POST", "/ack", acknowledged)["message"] == "Message acknowledged"
    assert relay.read("POST", "/ack", acknowledged, status=409)["error"] == "LOCK_LOST"

    second = relay.dequeue()
    assert second["consumer_id"] is None
    relay.read("POST", f"/message/{second['id']}/nack", {"errorReason": "broken"})
    relay.read("POST", f"/message/{relay.dequeue()['id']}/nack")
    third = relay.dequeue()
    stale = {"id": third["id"], "lock_token": second["lock_token"]}
    assert relay.read("POST", "/ack", stale, status=409)["error"] == "LOCK_LOST"
    assert relay.read("PUT", f"/message/{third['id']}/touch", stale, status=409)["error"] == "LOCK_LOST"
    relay.read("PUT", "/message/unknown/touch", {"lock_token": "any"}, status=404)
    relay.read("POST", "/message/unknown/nack", {}, status=404)
    assert relay.read("POST", "/ack", {"id": third["id"]})["message"] == "Message acknowledged"


def test_list_requests_of_relay_clients_work(relay: RelayClient) -> None:
    dead = relay.dead_letter()
    has(dead, {"failed_at": NUMBER, "last_error": str})
    for type in ("kept", "kept", "held"):
        relay.enqueue(type, priority=3)
    held = relay.dequeue("type=held")
    relay.read("POST", "/ack", {"id": relay.dequeue("type=kept")["id"]})
    assert [one["id"] for one in relay.listed("processing", "deadline_at")] == [held["id"]]
    has(relay.listed("acknowledged", "acknowledged_at")[0], {"acknowledged_at": NUMBER})
    assert relay.listed("archived", "archived_at") == []
    today = {"startDate": "2020-01-01T00:00:00.000Z", "endDate": "2100-01-01T00:00:00.000Z"}
    [waiting] = relay.listed("main", filterType="kept", filterPriority="3", search="user@example.com", **today)
    assert waiting["type"] == "kept"


def test_changes_of_messages_by_relay_clients_work(relay: RelayClient) -> None:
    dead = relay.dead_letter()
    edited: Shape = {"success": bool, "messageId": str, "queueType": str, "message": str}
    change = {"type": "sms", "payload": {"to": "b"}, "priority": 4, "custom_ack_timeout": 9}
    updated = relay.read("PUT", f"/message/{dead['id']}?queueType=dead", change)
    has(updated, edited | {"data": MESSAGE})
    assert updated["data"] | change == updated["data"]

    moving = {"messages": relay.listed("dead", "failed_at"), "fromQueue": "dead", "toQueue": "main"}
    moved = relay.read("POST", "/move", moving)
    has(moved, {"message": str, "movedCount": int})
    assert moved["movedCount"] == 1
    reason = {"messages": relay.listed("main"), "fromQueue": "main", "toQueue": "dead", "errorReason": "by hand"}
    relay.read("POST", "/move", reason)
    assert relay.listed("dead", "failed_at")[0]["last_error"] == "by hand"

    deleted = relay.read("DELETE", f"/message/{dead['id']}?queueType=dead")
    has(deleted, edited)
    assert (deleted["messageId"], deleted["queueType"]) == (dead["id"], "dead")
    relay.enqueue()
    ids = {"messageIds": [one["id"] for one in relay.listed("main")]}
    deleted = relay.read("POST", "/messages/delete?queueType=main", ids)
    has(deleted, {"success": bool, "deletedCount": int, "message": str})
    assert deleted["deletedCount"] == 1


def test_clear_requests_of_relay_clients_work(relay: RelayClient) -> None:
    relay.enqueue()
    cleared = relay.read("DELETE", "/main/clear")
    has(cleared, {"success": bool, "queueType": str, "message": str})
    assert cleared["queueType"] == "main"
    has(relay.read("DELETE", "/clear"), {"message": str})
    assert relay.listed("main") == []


def test_export_and_import_of_a_file_by_relay_clients_work(relay: RelayClient) -> None:
    relay.enqueue(priority=2, ackTimeout=7)
    exported = relay.ask("GET", "/main/export?sortBy=created_at&sortOrder=desc&search=example")
    assert "attachment" in exported.headers["content-disposition"]
    relay.read("DELETE", "/clear")
    # Relay exports a list with indented lines; both forms are imported.
    indented = json.dumps([{"type": "old", "payload": {"a": [1, 2]}, "priority": 2, "custom_ack_timeout": 7}], indent=2)
    for text in (exported.text, indented):
        form = (
            '--x\r\nContent-Disposition: form-data; name="file"; filename="main.json"\r\n'
            f"Content-Type: application/json\r\n\r\n{text}\r\n--x--\r\n"
        )
        imported = relay.read("POST", "/import", form, Content_Type="multipart/form-data; boundary=x")
        has(imported, {"message": str, "count": int})
        assert imported["count"] == 1
    for message in relay.listed("main"):
        assert (message["priority"], message["custom_ack_timeout"]) == (2, 7)
    for malformed in ("multipart/form-data; abc*", "multipart/form-data"):
        assert relay.ask("POST", "/import", "--x--\r\n", Content_Type=malformed).status == 422
    empty_form = relay.ask("POST", "/import", "--x--\r\n", Content_Type="multipart/form-data; boundary=x")
    assert (empty_form.status, empty_form.body["field"]) == (400, "file")


def test_date_range_requests_of_relay_clients_work(relay: RelayClient) -> None:
    relay.enqueue()
    all_time = "startTimestamp=2020-01-01T00:00:00.000Z&endTimestamp=2100-01-01T00:00:00.000Z"
    [message] = relay.read("GET", f"/messages?{all_time}&limit=10")
    has(message, MESSAGE)
    has(relay.read("DELETE", f"/messages?{all_time}"), {"message": str})
    assert relay.read("GET", f"/messages?{all_time}") == []


def test_status_requests_of_relay_clients_work(relay: RelayClient) -> None:
    relay.dead_letter()
    for priority in (0, 3):
        relay.enqueue(priority=priority)
    relay.dequeue()
    lengths: Shape = dict.fromkeys(("mainQueue", "processingQueue", "deadLetterQueue", "archivedQueue"), LENGTH)
    lengths["acknowledgedQueue"] = LENGTH | {"total": int}
    totals: Shape = {"metadata": {"totalProcessed": int, "totalFailed": int}, "availableTypes": list}

    status = relay.read("GET", "/status")
    has(status, lengths | totals)
    for name in ("mainQueue", "processingQueue", "deadLetterQueue"):
        [message] = status[name]["messages"]
        has(message, MESSAGE)
    assert status["availableTypes"] == ["email_send"]
    counts = relay.read("GET", "/status?include_messages=false")
    assert (counts["mainQueue"]["length"], counts["mainQueue"]["messages"]) == (1, [])

    sizes = ("main_queue_size", "processing_queue_size", "dead_letter_queue_size", "acknowledged_queue_size")
    metrics = relay.read("GET", "/metrics")
    has(metrics, dict.fromkeys((*sizes, "archived_queue_size", "total_acknowledged", "priority_levels"), int))
    assert metrics["details"]["priority_0_queued"] == 1
    has(relay.read("GET", "/config"), {"ack_timeout_seconds": NUMBER, "max_attempts": int})


def test_key_is_sent_in_a_header(relay: RelayClient) -> None:
    assert relay.queue.get("/health", X_API_KEY=OPERATOR).body == {"status": "OK"}
    refused = relay.ask("GET", "/status", X_API_KEY="wrong")
    assert refused.status == 401
    has(refused.body, {"error": str, "message": str})


def test_event_stream_of_relay_clients_works(relay: RelayClient) -> None:
    with Stream(relay.queue.web, query=f"?apiKey={OPERATOR}") as stream:
        assert stream.status == 401  # a key in a URL is not read
    with Stream(relay.queue.web, query="?apiKey=any", X_API_KEY=OPERATOR) as stream:
        relay.enqueue()
        [event] = stream.until(lambda event: event["type"] == "enqueue")
        has(event, {"type": str, "timestamp": int, "payload": {"count": int, "ids": list}})


LOGGED: Shape = {
    "log_id": str,
    "message_id": str,
    "message_type": str,
    "message_created_at": NUMBER,
    "priority": int,
    "action": str,
    "timestamp": NUMBER,
    "consumer_id": (str, type(None)),
    "attempt_count": (int, type(None)),
    "error_reason": (str, type(None)),
    "anomaly": (dict, type(None)),
}
PAGE: Shape = {"total": int, "limit": int, "offset": int, "has_more": bool}


def test_activity_log_has_the_form_of_relay(relay: RelayClient) -> None:
    dead = relay.dead_letter()
    relay.enqueue()
    taken = relay.dequeue("timeout=1&consumerId=worker-1")
    relay.read("PUT", f"/message/{taken['id']}/touch", {"lock_token": taken["lock_token"]})
    relay.read("POST", "/ack", taken)

    page = relay.read("GET", "/activity?limit=100&offset=0")
    has(page["pagination"], PAGE)
    for entry in page["logs"]:
        has(entry, LOGGED)
    actions = ["ack", "touch", "dequeue", "enqueue", "dlq", "nack", "dequeue", "enqueue"]
    assert [entry["action"] for entry in page["logs"]] == actions
    assert page["logs"][4]["error_reason"] == "broken"

    def actions_of(query: str) -> list[str]:
        return [entry["action"] for entry in relay.read("GET", f"/activity?{query}")["logs"]]

    assert actions_of(f"message_id={dead['id']}") == actions[4:]
    assert actions_of("consumer_id=worker-1") == ["dequeue"]
    assert actions_of("action=ack,nack") == ["ack", "nack"]
    assert actions_of("limit=2&offset=3") == actions[3:5]
    assert "dlq" in actions_of("has_anomaly=true")
    assert "dlq" not in actions_of("has_anomaly=false")
    assert actions_of("anomaly_type=dlq_movement") == ["dlq"]
    assert actions_of(f"start_time={page['logs'][3]['timestamp']}") == actions[:4]
    assert actions_of("end_time=1") == []


def test_anomalies_have_the_form_of_relay(relay: RelayClient) -> None:
    relay.dead_letter()
    for _ in range(11):
        relay.enqueue("bulk")
    for _ in range(10):
        relay.dequeue("timeout=1&consumerId=worker-1")
    relay.read("DELETE", "/main/clear")

    found = relay.read("GET", "/activity/anomalies?sort_by=severity&sort_order=desc")
    has(found, {"summary": {"total": int, "by_type": dict, "by_severity": dict}, "pagination": PAGE})
    for entry in found["anomalies"]:
        has(entry["anomaly"], {"type": str, "severity": str, "description": str})
    severities = [entry["anomaly"]["severity"] for entry in found["anomalies"]]
    assert severities == sorted(severities, key=["critical", "warning", "info"].index)
    by_type = found["summary"]["by_type"]
    assert (by_type["queue_cleared"], by_type["dlq_movement"], by_type["near_dlq"]) == (1, 1, 1)
    critical = relay.read("GET", "/activity/anomalies?severity=critical&limit=1")
    assert (len(critical["anomalies"]), critical["pagination"]["has_more"]) == (1, True)
    [cleared] = relay.read("GET", "/activity/anomalies?type=queue_cleared&action=clear")["anomalies"]
    assert (cleared["queue"], cleared["message_id"]) == ("main", None)


def test_statistics_of_consumers_have_the_form_of_relay(relay: RelayClient) -> None:
    for consumer in ("worker-1", "worker-1", "worker-2"):
        relay.enqueue()
        relay.dequeue(f"timeout=1&consumerId={consumer}")
    stats = relay.read("GET", "/activity/consumers")["stats"]
    assert {name: one["dequeue_count"] for name, one in stats.items()} == {"worker-1": 2, "worker-2": 1}
    one = relay.read("GET", "/activity/consumers?consumer_id=worker-2")["stats"]
    has(one, {"dequeue_count": int, "last_dequeue": NUMBER})
    assert relay.read("GET", "/activity/consumers?consumer_id=unknown")["stats"] is None


def test_history_of_a_message_has_the_form_of_relay(relay: RelayClient) -> None:
    dead = relay.dead_letter()
    answer = relay.read("GET", f"/activity/message/{dead['id']}")
    assert answer["message_id"] == dead["id"]
    for entry in answer["history"]:
        has(entry, LOGGED)
    assert [entry["action"] for entry in answer["history"]] == ["enqueue", "dequeue", "dlq"]
