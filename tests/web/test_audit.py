"""The audit log over HTTP: who changed what, the values before and after, and the outcome."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from inspect import signature
from typing import Any
from urllib.parse import urlencode

import pytest
from bson import ObjectId

from models.database import server_now
from models.document_id import id_text
from queue_manager.core.clock import hours, to_iso
from queue_manager.core.settings import Settings
from queue_manager.web.app import api_of
from queue_manager.web.auth.authorization import required_roles
from tests.any_jobs import INVOICE
from tests.any_jobs import MODULE as JOBS_MODULE
from tests.real_servers import Servers
from tests.rooms import make_room
from tests.web.credentials import KEYS, OPERATOR, VIEWER, own_page
from tests.web.queue_client import Queue, empty_queue

MESSAGES, JOBS, ROOMS = "overdue-messages", "job-queues", "support-snooze"


@pytest.fixture
def queue(clean: Servers, tmp_path_factory: pytest.TempPathFactory) -> Queue:
    return empty_queue(clean, tmp_path_factory, QM_JOBS="true", QM_HOOKS="true", JOBS_IMPORTS=JOBS_MODULE)


@pytest.fixture
def guarded(clean: Servers, tmp_path_factory: pytest.TempPathFactory) -> Queue:
    return empty_queue(clean, tmp_path_factory, QM_JOBS="true", JOBS_IMPORTS=JOBS_MODULE, QM_API_KEYS=KEYS)


def entries(queue: Queue, query: str = "", **headers: str) -> list[dict[str, Any]]:
    answer = queue.get(f"/audit?{query}", **headers)
    assert answer.status == 200, answer.text
    listed: list[dict[str, Any]] = answer.body["entries"]
    return listed


def only(queue: Queue, query: str = "", **headers: str) -> dict[str, Any]:
    (entry,) = entries(queue, query, **headers)
    return entry


def test_an_edit_has_the_values_before_and_after(queue: Queue) -> None:
    id = queue.post("/queue/message", '{"type": "mail", "payload": {"amount":42}, "priority": 1}').body["id"]
    assert queue.put(f"/queue/message/{id}", '{"payload": {"amount":4200}, "priority": 1}').status == 200
    entry = only(queue)
    assert (entry["action"], entry["system"], entry["ids"], entry["outcome"]) == ("edit", MESSAGES, [id], "done")
    assert (entry["who"], entry["via"], entry["address"]) == ("loopback", "api", "127.0.0.1")
    assert (entry["before"], entry["after"]) == ({"payload": '{"amount":42}'}, {"payload": '{"amount":4200}'})
    (found,) = queue.get(f"/search?id={id}").body["found"]
    assert [event["event"] for event in found["timeline"]] == ["Edited by someone on this machine", "Added"]
    assert found["timeline"][0]["detail"] == 'payload {"amount":42} → {"amount":4200}'


def test_long_values_and_many_ids_are_bounded(queue: Queue) -> None:
    id = queue.add(payload="x" * 5_000)
    queue.put(f"/queue/message/{id}", {"payload": "y" * 5_000})
    entry = only(queue)
    assert len(entry["before"]["payload"]) == len(entry["after"]["payload"]) == 1_000
    assert entry["after"]["payload"].endswith("y…")
    ids = [queue.add() for _ in range(30)]
    queue.post("/queue/move", {"messages": ids, "toQueue": "archived", "errorReason": "too old"})
    listed = only(queue, "action=move")
    assert (listed["total"], listed["count"], listed["detail"]) == (30, 30, "to archived (too old)")
    assert listed["ids"] == ids[:20]
    assert queue.get(f"/audit/{listed['id']}").body["ids"] == ids
    assert only(queue, f"id={ids[25]}")["id"] == listed["id"]


def test_pause_of_a_type_is_recorded_with_its_reason(queue: Queue) -> None:
    queue.post("/queue/pause", {"types": ["mail", "sms"], "reason": "spilling"})
    queue.post("/queue/resume", {"types": ["mail"]})
    found = [(one["action"], one["system"], one["filter"]) for one in entries(queue)]
    assert found == [
        ("resume", "overdue-messages", {"types": "mail"}),
        ("pause", "overdue-messages", {"types": "mail, sms", "reason": "spilling"}),
    ]


def test_a_failed_action_is_recorded_with_its_reason(queue: Queue) -> None:
    assert queue.delete("/queue/message/nothing").status == 404
    entry = only(queue)
    assert (entry["outcome"], entry["count"]) == ("failed", None)
    assert entry["error"] == "There is no message nothing in the queue"
    assert queue.get("/search?id=nothing").body["found"] == []


def test_each_action_on_messages_is_recorded_once(queue: Queue) -> None:
    dead, other = queue.dead(type="mail"), queue.dead(type="sms")
    queue.post("/queue/replay", {"messageIds": [dead]})
    queue.post("/queue/replay", {"filter": {"type": "sms"}})
    queue.delete("/queue/messages?startTimestamp=2020-01-01&endTimestamp=2020-01-02")
    queue.delete("/queue/messages?startTimestamp=2020-01-01&endTimestamp=2020-01-02&preview=true")
    queue.post("/queue/import", '{"id": "imported", "type": "mail"}\n')
    queue.post("/queue/messages/delete", {"messageIds": [dead, "nothing"]})
    queue.delete("/queue/main/clear")
    found = entries(queue)
    assert [one["action"] for one in found] == ["clear", "delete", "import", "delete", "replay", "replay"]
    assert [one["count"] for one in found] == [2, 1, 1, 0, 1, 1]
    assert [one["ids"] for one in found] == [[], [dead], [], [], [other], [dead]]
    assert [one["total"] for one in found] == [None, 2, 1, None, 1, 1]
    assert [one["filter"] for one in found] == [
        {"state": "main"},
        None,
        None,
        {"added from": "2020-01-01T00:00:00.000Z", "added until": "2020-01-02T00:00:00.000Z"},
        {"type": "sms"},
        None,
    ]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("replay", {"messageIds": []}),
        ("messages/delete", {"messageIds": []}),
        ("move", {"messages": [], "fromQueue": "main", "toQueue": "dead"}),
    ],
)
def test_an_action_on_an_empty_list_of_messages_is_recorded_with_its_count(
    queue: Queue, path: str, body: dict[str, Any]
) -> None:
    assert queue.post(f"/queue/{path}", body).status == 200
    assert (only(queue)["outcome"], only(queue)["count"]) == ("done", 0)


def test_deleted_messages_are_found_in_the_audit_log_by_id(queue: Queue) -> None:
    id = queue.add()
    assert queue.delete(f"/queue/message/{id}").status == 200
    (found,) = queue.get(f"/search?id={id}").body["found"]
    assert (found["kind"], found["label"], found["page"]) == ("message", "deleted", f"/messages/{id}")
    assert found["answer"].startswith("Deleted by someone on this machine at ")
    assert [event["event"] for event in found["timeline"]] == ["Deleted by someone on this machine"]
    assert queue.get(found["document"].removeprefix("/api")).body["ids"] == [id]


def test_messages_in_transit_are_not_recorded(queue: Queue) -> None:
    queue.add()
    taken = queue.take()
    queue.put(f"/queue/message/{taken['id']}/touch", {"lock_token": taken["lock_token"]})
    queue.post("/queue/ack", {"id": taken["id"], "lock_token": taken["lock_token"]})
    assert entries(queue) == []


def test_actions_on_jobs_are_recorded(queue: Queue) -> None:
    id = queue.post("/jobs", {"name": INVOICE, "arguments": [7]}).body["job"]["_id"]
    queue.post(f"/jobs/{id}/reschedule", {"priority": 5})
    queue.post(f"/jobs/{id}/cancel")
    queue.post(f"/jobs/{id}/retry")
    queue.delete(f"/jobs/{id}")
    queue.post("/jobs/pause", {"names": [INVOICE]})
    queue.post("/jobs/resume", {"names": [INVOICE]})
    queue.post("/jobs/clear", {"states": ["success"]})
    queue.post(f"/jobs/{id}/cancel")
    found = entries(queue)
    assert [one["action"] for one in found] == [
        *("cancel", "clear", "resume", "pause", "remove", "retry", "cancel", "reschedule"),
    ]
    assert {one["system"] for one in found} == {JOBS}
    assert found[0]["outcome"] == "failed"
    assert [one["filter"] for one in found[1:4]] == [
        {"name": "all", "states": "success"},
        {"names": INVOICE},
        {"names": INVOICE},
    ]
    rescheduled, canceled = found[7], found[6]
    assert (rescheduled["before"]["priority"], rescheduled["after"]["priority"]) == (0, 5)
    assert (canceled["before"], canceled["after"]) == ({"state": "pending"}, {"state": "canceled"})
    (gone,) = queue.get(f"/search?id={id}").body["found"]
    assert [event["event"] for event in gone["timeline"]] == [
        "Attempt to cancel it by someone on this machine",
        "Removed by someone on this machine",
        "Retried by someone on this machine",
        "Canceled by someone on this machine",
        "Rescheduled by someone on this machine",
    ]


def test_simultaneous_changes_of_a_job_are_recorded_as_a_chain(queue: Queue) -> None:
    id = queue.post("/jobs", {"name": INVOICE, "arguments": [7], "delay_seconds": 3600}).body["job"]["_id"]
    priorities = [*range(1, 31)]
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda priority: queue.post(f"/jobs/{id}/reschedule", {"priority": priority}), priorities))
    found = entries(queue, "limit=50")
    assert sorted(one["after"]["priority"] for one in found) == priorities
    last = queue.get(f"/jobs/{id}").body["job"]["priority"]
    befores = [one["before"]["priority"] for one in found]
    assert sorted([*befores, last]) == [0, *priorities]


def test_actions_on_systems_are_recorded(queue: Queue) -> None:
    room = str(make_room(server_now() - hours(1)))
    assert queue.post(f"/systems/{ROOMS}/items/{room}/retry").status == 202
    queue.post(f"/systems/{ROOMS}/items/retry", {"state": "failed", "search": "boom"})
    queue.post(f"/systems/{ROOMS}/pause")
    queue.post(f"/systems/{ROOMS}/resume")
    queue.post("/trigger/conversations/support-snooze")
    queue.post("/marks", {"text": "v1.4"})
    found = entries(queue)
    assert [one["action"] for one in found] == ["mark", "scan", "resume", "pause", "retry", "retry"]
    assert [one["system"] for one in found] == [None, *[ROOMS] * 5]
    assert (found[0]["detail"], found[5]["ids"], found[5]["page"]) == ("v1.4", [room], "/rooms")
    assert (found[4]["filter"], found[4]["count"]) == ({"state": "failed", "search": "boom"}, 0)
    (explained,) = queue.get(f"/search?id={room}").body["found"]
    assert "Retried by someone on this machine" in [event["event"] for event in explained["timeline"]]


@pytest.mark.parametrize("id", ["aB3dEfGhIjKlMnOpQ", 'MÜNCHEN "Süd"', 7])
def test_actions_are_found_by_an_id_as_people_write_it(id: Any, queue: Queue) -> None:
    make_room(server_now() - hours(1), _id=id)
    assert queue.post(f"/systems/{ROOMS}/items/retry", {"ids": [id_text(id)]}).body["sent"] == 1
    for written in (str(id), id_text(id)):
        assert only(queue, urlencode({"id": written}))["ids"] == [id_text(id)]
    assert entries(queue, "id=another") == []


def test_the_audit_has_the_name_of_the_key_and_whether_a_page_was_used(guarded: Queue) -> None:
    page = own_page(guarded.web, OPERATOR)
    pretended = {name: value for name, value in page.items() if name != "Cookie"} | {"X_API_KEY": OPERATOR}
    for headers in (pretended, page):
        assert guarded.post("/jobs/pause", {"names": [INVOICE]}, **headers).status == 200
    found = entries(guarded, X_API_KEY=VIEWER)
    assert [(one["who"], one["via"]) for one in found] == [("hand", "page"), ("hand", "api")]
    assert OPERATOR not in str(found)
    assert guarded.get("/audit").status == 401


def test_the_list_is_filtered_and_continues_at_its_cursor(queue: Queue) -> None:
    for name in ("a", "b", "c", "d", "e"):
        queue.post("/jobs/pause", {"names": [name]})
    queue.post("/marks", {"text": "v1.4"})
    first = queue.get("/audit?action=pause&limit=3").body
    rest = queue.get(f"/audit?action=pause&limit=3&cursor={first['cursor']}").body
    names = [one["filter"]["names"] for one in (*first["entries"], *rest["entries"])]
    assert (names, rest["cursor"]) == (["e", "d", "c", "b", "a"], None)
    assert len(entries(queue, f"who=loopback&system={JOBS}")) == 5
    assert entries(queue, "who=somebody") == []
    assert len(entries(queue, "who=&id=&action=&system=&from=&to=&cursor=")) == 6
    now = server_now()
    assert len(entries(queue, f"from={to_iso(now - hours(1))}&to={to_iso(now + hours(1))}")) == 6
    assert entries(queue, f"to={to_iso(now - hours(1))}") == []
    assert entries(queue, f"system={ROOMS}&from={to_iso(now - hours(1))}") == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("query", "field"),
    [("cursor=x", "cursor"), ("from=yesterday", "from"), ("action=look", "action"), ("limit=0", "limit")],
)
def test_wrong_parameters_are_refused(queue: Queue, query: str, field: str) -> None:
    answer = queue.get(f"/audit?{query}")
    assert (answer.status, answer.body["field"]) == (422, field)


def test_every_other_route_of_operators_is_recorded() -> None:
    api = api_of(Settings(qm_message_queue=True, qm_jobs=True, qm_hooks=True), asyncio.Event())
    of_operators = [route for route, required in required_roles(api) if required.role == "operator"]
    recorded = {
        str(route.path) for route in of_operators if route.endpoint and "actor" in signature(route.endpoint).parameters
    }
    in_transit = {"/api/queue/message", "/api/queue/batch", "/api/queue/ack"}
    in_transit |= {f"/api/queue/message/{{id:path}}/{one}" for one in ("nack", "touch")}
    assert {str(route.path) for route in of_operators} - recorded == in_transit


def test_an_entry_that_does_not_exist(queue: Queue) -> None:
    assert queue.get(f"/audit/{ObjectId()}").status == 404
    assert queue.get("/audit/x").status == 404
