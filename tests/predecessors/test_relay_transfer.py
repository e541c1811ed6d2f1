"""Export, import and date ranges: an operator takes messages from one queue to another, as with Relay."""

from __future__ import annotations

import json
from urllib.parse import quote

import pytest

from tests.real_servers import Servers
from tests.web.queue_client import Queue, empty_queue

ALL_TIME = "startTimestamp=2000-01-01&endTimestamp=2100-01-01"


@pytest.fixture
def queue(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Queue:
    return empty_queue(servers, tmp_path_factory)


def fill(queue: Queue) -> dict[str, str]:
    """Add one message in each state; return the ids by state."""
    ids = {"dead": queue.dead(payload="dead")}
    ids["processing"] = queue.add(payload="processing")
    queue.take("timeout=0")
    for state in ("acknowledged", "archived"):
        ids[state] = queue.add(payload=state)
        queue.post("/queue/move", {"messages": [ids[state]], "toQueue": state})
    ids["main"] = queue.add(payload="main")
    return ids


def lines(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines()]


# Export and import


def test_export_has_each_message_of_a_state_in_a_line(queue: Queue) -> None:
    ids = fill(queue)
    for state, id in ids.items():
        answer = queue.get(f"/queue/{state}/export")
        assert answer.headers["content-type"] == "application/x-ndjson"
        assert answer.headers["content-disposition"] == f'attachment; filename="{state}.jsonl"'
        assert [line["id"] for line in lines(answer.text)] == [id]


def test_export_of_many_is_in_order_and_takes_a_filter(queue: Queue) -> None:
    batch = [{"id": f"{number:03}", "type": "even" if number % 2 == 0 else "odd"} for number in range(250)]
    queue.post("/queue/batch", batch)

    assert [line["id"] for line in lines(queue.get("/queue/main/export").text)] == [one["id"] for one in batch]
    assert len(lines(queue.get("/queue/main/export?filterType=odd").text)) == 125
    assert queue.get("/queue/dead/export").text == ""
    assert queue.get("/queue/nowhere/export").status == 404


def test_export_is_a_list_for_a_client_that_accepts_json(queue: Queue) -> None:
    batch = [{"id": f"{number:03}", "type": "mail"} for number in range(250)]
    queue.post("/queue/batch", batch)

    exported = queue.get("/queue/main/export", Accept="application/json, text/plain, */*")

    assert exported.headers["content-type"] == "application/json"
    assert [message["id"] for message in exported.body] == [one["id"] for one in batch]
    assert queue.get("/queue/dead/export", Accept="application/json").body == []
    queue.delete("/queue/clear")
    assert queue.post("/queue/import", exported.text).body["count"] == 250


def test_export_is_imported_byte_for_byte(queue: Queue) -> None:
    payload = '{"big":12345678901234567890.10,"empty":[],"text":"\\u2028\\n"}'
    body = f'{{"id":"a","type":"mail","priority":3,"ackTimeout":7,"maxAttempts":2,"payload":{payload}}}'
    queue.post("/queue/message", body)
    exported = queue.get("/queue/main/export").text
    queue.delete("/queue/clear")

    imported = queue.post("/queue/import", exported).body

    assert (imported["count"], imported["known"]) == (1, 0)
    taken = queue.get("/queue/message")
    assert taken.text.endswith(f'"payload":{payload}}}')
    names = ("id", "type", "priority", "custom_ack_timeout", "custom_max_attempts", "attempt_count")
    assert [taken.body[name] for name in names] == ["a", "mail", 3, 7, 2, 1]


def test_message_with_line_breaks_in_its_payload_is_exported_as_one_line(queue: Queue) -> None:
    payloads = {"object": '{"a":\n1}', "list": '[\n{"type":"pay"}\r\n]', "text": '\r"\\n"\r'}
    for id, payload in payloads.items():
        queue.post("/queue/message", f'{{"type":"mail","id":"{id}","payload":{payload}}}')
    exported = queue.get("/queue/main/export").text
    assert [line["id"] for line in lines(exported)] == [*payloads]
    queue.delete("/queue/clear")

    imported = queue.post("/queue/import", exported).body

    assert imported["count"] == len(payloads)
    found = {id: queue.get(f"/queue/message/{id}").body["payload"] for id in payloads}
    assert found == {id: json.loads(payload) for id, payload in payloads.items()}


def test_import_is_harmless_when_repeated(queue: Queue) -> None:
    text = "\n".join(json.dumps({"id": f"{number}", "type": "mail"}) for number in range(2_500)) + "\n\n"
    assert queue.post("/queue/import", text).body["count"] == 2_500
    again = queue.post("/queue/import", text).body
    assert (again["count"], again["known"]) == (0, 2_500)
    assert queue.sizes()[0] == 2_500


def test_undecodable_message_is_counted_and_not_imported(queue: Queue) -> None:
    text = '{"id":"1-1","type":"","undecodable":true,"payload":"x"}\n{"type":"mail"}'
    assert queue.post("/queue/import", text).body | {"message": ""} == {
        "message": "",
        "count": 1,
        "known": 0,
        "undecodable": 1,
    }


@pytest.mark.parametrize(
    ("line", "field"),
    [
        ("nonsense", "line 2: body"),
        ("[]", "line 2: body"),
        ("{}", "line 2: type"),
        ('{"type":"mail","priority":10}', "line 2: priority"),
        ('{"type":"mail","id":"a b"}', "line 2: id"),
        ('{"type":"mail","custom_ack_timeout":-1}', "line 2: ackTimeout"),
        ('{"type":7}', "line 2: type"),
        ('{"type":"mail\\u0085"}', "line 2: type"),
        (f'{{"type":"mail","priority":{"1" * 5000}}}', "line 2: body"),
    ],
)
def test_invalid_line_is_named_and_nothing_is_imported(queue: Queue, line: str, field: str) -> None:
    answer = queue.post("/queue/import", f'{{"type":"mail"}}\n{line}\n')
    assert (answer.status, answer.body["field"]) == (422, field)
    assert queue.sizes() == (0, 0, 0, 0, 0)


def test_list_is_imported_byte_for_byte(queue: Queue) -> None:
    payload = '{"big":12345678901234567890.10,"text":"\\u2028\\n"}'
    exported = f' [\n  {{\n    "type": "mail",\n    "payload": {payload}\n  }},\r\n{{"type":"sms"}}\n]\n'
    assert queue.post("/queue/import", exported).body["count"] == 2
    assert queue.get("/queue/message").text.endswith(f'"payload":{payload}}}')


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ('[{"type":"mail"}, {"type":7}]', "[1]: type"),
        ('[{"type":"mail"}, 7]', "[1]: body"),
        ('[{"type":"mail"}', "body"),
        ('[{"type":"mail"}]\n{"type":"mail"}', "body"),
    ],
)
def test_invalid_element_is_named_and_nothing_is_imported(queue: Queue, text: str, field: str) -> None:
    answer = queue.post("/queue/import", text)
    assert (answer.status, answer.body["field"]) == (422, field)
    assert queue.sizes() == (0, 0, 0, 0, 0)


# Date ranges


def test_messages_of_a_date_range_are_read_in_every_state(queue: Queue) -> None:
    ids = fill(queue)
    found = queue.get(f"/queue/messages?{ALL_TIME}").body
    assert sorted(message["id"] for message in found) == sorted(ids.values())
    assert len(queue.get(f"/queue/messages?{ALL_TIME}&limit=2").body) == 2
    assert queue.get("/queue/messages?startTimestamp=2000-01-01&endTimestamp=2001-01-01").body == []


def test_date_range_is_shown_and_then_deleted(queue: Queue) -> None:
    fill(queue)
    counts = {"main": 1, "dead": 1, "acknowledged": 1, "archived": 1}

    preview = queue.delete(f"/queue/messages?{ALL_TIME}&preview=true").body

    assert (preview["deletedCount"], preview["by_queue"], preview["is_preview"]) == (4, counts, True)
    assert queue.sizes() == (1, 1, 1, 1, 1)
    deleted = queue.delete(f"/queue/messages?{ALL_TIME}").body
    assert (deleted["deletedCount"], deleted["by_queue"], deleted["is_complete"]) == (4, counts, True)
    assert queue.sizes() == (0, 1, 0, 0, 0)  # a consumer holds the one in processing


def test_only_messages_of_the_range_and_the_state_are_deleted(queue: Queue) -> None:
    first = queue.add()
    border = queue.page("main")["messages"][0]["created_at"]
    queue.dead()
    last = queue.add()
    end = quote(str(border))
    deleted = queue.delete(f"/queue/messages?startTimestamp=0&endTimestamp={end}&queueType=main").body
    assert deleted["deletedCount"] == 1
    assert first not in queue.ids("main")
    assert queue.ids("main") == [last]
    assert queue.delete(f"/queue/messages?{ALL_TIME}&queueType=dead").body["by_queue"] == {"dead": 1}


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("", "startTimestamp"),
        ("startTimestamp=x&endTimestamp=1", "startTimestamp"),
        ("startTimestamp=1", "endTimestamp"),
        ("startTimestamp=&endTimestamp=1", "startTimestamp"),
        ("startTimestamp=2026&endTimestamp=20991231", "startTimestamp"),
        (f"{ALL_TIME}&queueType=processing", "queueType"),
    ],
)
def test_date_range_that_is_not_complete_deletes_nothing(queue: Queue, query: str, field: str) -> None:
    queue.add()
    answer = queue.delete(f"/queue/messages?{query}")
    assert (answer.status, answer.body["field"]) == (422, field)
    assert queue.sizes() == (1, 0, 0, 0, 0)
