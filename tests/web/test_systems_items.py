"""Items over HTTP: listed by state, searched, counted, and retried manually, once."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import UUID

import pytest
from bson import Binary, MinKey, ObjectId

from dev.ports import free_port
from models import site, subscription, support_room
from models.database import collection, server_now
from models.document_id import id_text, shown_id
from queue_manager.core.clock import hours, minutes, seconds, to_iso
from queue_manager.items import DueItem
from queue_manager.leases.state import LeaseStatus
from tests.browser import sample_data
from tests.e2e.celery_processes import worker
from tests.e2e.watching import is_open, times_woken
from tests.eventually import eventually
from tests.odd_ids import ODD_IDS
from tests.pace import promptly
from tests.real_servers import Servers
from tests.room_lease import LEASES, lease, name
from tests.rooms import get_room, make_room, make_work, resnooze, scan
from tests.tasks.hand_worker import run, take, waiting_messages
from tests.web.web_process import Web, forked_web, shared_web

ROOMS = "/api/systems/support-snooze/items"
SITES = "/api/systems/stale-thumbnails/items"
AGENCIES = "/api/systems/review-requests/items"
LONG_AGO = datetime(2026, 1, 1, tzinfo=UTC)
TASK = "tasks.support_snooze.unsnooze_room"


@pytest.fixture(scope="session")
def process(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Web:
    return shared_web(tmp_path_factory, QM_PROJECTS="true")


@pytest.fixture
def rooms(clean: Servers) -> dict[str, ObjectId]:
    """Rooms in every state, each by its name."""
    found = {state: ObjectId(id) for state, id in sample_data.rooms("Boom: the socket (broke)").items()}
    return {**found, "later": make_room(server_now() + hours(1))}


def make_site(sites: str, started_at: datetime, **fields: Any) -> Any:
    building = {"thumbnail_build_in_progress": True, "thumbnail_process_started_at": started_at}
    return collection(sites).insert_one({"status": "PUBLISHED", **building, **fields}).inserted_id


def make_subscription(parent: Any, created_at: datetime = LONG_AGO) -> None:
    subscription.subscriptions().insert_one(
        {
            "account": parent,
            "status": "active",
            "created_at": created_at,
            "plan": {"metadata": {"product_type": "seo"}},
            "metadata": {"account_id": ObjectId()},
        }
    )


def listed(process: Web, path: str, query: str = "") -> list[Any]:
    answer = process.get(f"{path}?{query}")
    assert answer.status == 200, answer.text
    return list(answer.body["items"])


def all_of(process: Web, path: str, query: str) -> Iterator[Any]:
    cursor = ""
    while cursor is not None:
        answer = process.get(f"{path}?{query}&cursor={quote(cursor)}")
        assert answer.status == 200, answer.text
        yield from answer.body["items"]
        cursor = answer.body["cursor"]


def last_retried(process: Web) -> list[str]:
    """Return the ids in the newest entry of the audit about a retry."""
    (entry,) = process.get("/api/audit?action=retry&limit=1").body["entries"]
    return list(entry["ids"])


def test_items_with_ids_of_any_type_are_listed_page_by_page_and_tried_again(clean: Servers, process: Web) -> None:
    due_at = server_now() - minutes(1)
    ids = [make_room(due_at, _id=id) for id in [ObjectId(), MinKey(), *ODD_IDS]]
    for order in ("newest", "oldest"):
        found = [item["id"] for item in all_of(process, ROOMS, f"state=due&limit=2&order={order}")]
        assert sorted(found) == sorted(map(id_text, ids))
    for id in found:
        answer = process.ask("POST", f"{ROOMS}/{quote(id, safe='')}/retry")
        assert answer.status == 202, answer.text
    for _ in ids:
        assert run(take(clean.valkey.url, "support-snooze"))["success"]
    assert all(is_open(id) for id in ids)


def test_each_state_lists_its_rooms(rooms: dict[str, ObjectId], process: Web) -> None:
    found = {state: listed(process, ROOMS, f"state={state}") for state in ("due", "in-progress", "stuck", "failed")}
    assert {state: [item["id"] for item in items] for state, items in found.items()} == {
        state: [str(rooms[state])] for state in found
    }
    (due,), (held,), (stuck,), (failed,) = found.values()
    account = str(get_room(rooms["due"])["account_id"])
    assert (due["title"], due["reason"], due["attempts"], due["next_at"]) == (account, None, 0, None)
    assert due["since"] == due["due_at"] == to_iso(get_room(rooms["due"])["snooze_time"]["time"])
    assert (held["next_at"], stuck["next_at"]) == (None, None)  # a message waits; a lease ended
    room = get_room(rooms["failed"])
    assert (failed["reason"], failed["attempts"]) == ("Boom: the socket (broke)", 1)
    assert (failed["next_at"], failed["since"]) == (
        to_iso(room["unsnooze_retry_at"]),
        to_iso(room["unsnooze_retry_at"] - minutes(1)),
    )


def test_a_room_that_a_worker_holds_shows_when_its_lease_ends(rooms: dict[str, ObjectId], process: Web) -> None:
    LEASES.renew([name(rooms["in-progress"])])
    (held,) = listed(process, ROOMS, "state=in-progress")
    ends_at = lease(rooms["in-progress"]).ends_at
    assert ends_at is not None
    assert held["next_at"] == to_iso(ends_at)


def test_a_room_that_was_released_is_due(rooms: dict[str, ObjectId], process: Web) -> None:
    LEASES.release([name(rooms["in-progress"])])
    found = [item["id"] for item in listed(process, ROOMS, "state=due")]
    assert found == [str(rooms["due"]), str(rooms["in-progress"])]  # the newest first


@pytest.mark.parametrize("order", ["newest", "oldest"])
@pytest.mark.usefixtures("clean")
def test_pages_show_every_room_once_although_many_are_due_at_one_moment(order: str, process: Web) -> None:
    now = server_now()
    made = {str(make_room(now - seconds(1 + number // 9), snooze_queue_in_progress=None)) for number in range(20)}
    made |= {str(make_room(now - seconds(1 + number // 9), snooze_queue_in_progress=False)) for number in range(20)}
    found = list(all_of(process, ROOMS, f"state=due&limit=7&order={order}"))
    assert len(found) == len(made)
    assert {item["id"] for item in found} == made
    moments = [item["due_at"] for item in found]
    assert moments == sorted(moments, reverse=order == "newest")


@pytest.mark.usefixtures("clean")
def test_pages_of_rooms_in_progress_show_each_once(process: Web) -> None:
    now = server_now()
    made = {str(make_room(now - seconds(5 + number // 9))) for number in range(40)}
    assert len(scan(make_work(server_now))) == 40
    found = [item["id"] for item in all_of(process, ROOMS, "state=in-progress&limit=7")]
    assert (len(found), set(found)) == (40, made)


def test_a_search_looks_in_ids_accounts_and_reasons(rooms: dict[str, ObjectId], process: Web) -> None:
    account = get_room(rooms["failed"])["account_id"]
    for search in (str(rooms["failed"]), str(account)[4:20].upper(), "the SOCKET (b"):
        assert len(listed(process, ROOMS, f"state=failed&search={quote(search)}")) == 1
        assert process.get(f"{ROOMS}/count?state=failed&search={quote(search)}").body == {
            "count": 1,
            "is_complete": True,
        }
    assert listed(process, ROOMS, "state=failed&search=.*") == []
    assert process.get(f"{ROOMS}/count?state=due").body == {"count": 1, "is_complete": True}


@pytest.mark.usefixtures("clean")
def test_a_search_finds_texts_and_uuids_of_ids_as_people_write_them(process: Web) -> None:
    id = UUID(int=2**127 - 7)
    for odd in ('MÜNCHEN "Süd"', Binary.from_uuid(id)):
        make_room(server_now() - seconds(5), _id=odd)
    for search in ("münchen", '"Süd"', str(id)[4:]):
        assert len(listed(process, ROOMS, f"state=due&search={quote(search)}")) == 1


@pytest.mark.parametrize(
    ("path", "state", "position"),
    [
        (ROOMS, "due", ["failed oldest", 1, 2, 3]),
        (ROOMS, "due", ["due newest", 1]),
        (ROOMS, "failed", ["failed newest", 1]),
        (ROOMS, "failed", ["failed newest", 1, 2, 3]),
        (ROOMS, "failed", ["failed newest", 2**70, 1]),
        (ROOMS, "failed", ["failed newest", {"$gt": 1}, 1]),
        (AGENCIES, "due", ["due newest", 1]),
        (SITES, "due", ["due newest"]),
    ],
)
def test_a_cursor_of_another_list_is_refused(
    path: str, state: str, position: list[Any], clean: Servers, process: Web
) -> None:
    make_room(server_now() - seconds(1))
    name = path.split("/")[3]
    text = json.dumps([f"{name} {position[0]}", *position[1:]])
    answer = process.get(f"{path}?state={state}&cursor={base64.urlsafe_b64encode(text.encode()).decode()}")
    assert (answer.status, answer.body["field"]) == (422, "cursor")


def test_unknown_names_and_states_are_refused(clean: Servers, process: Web) -> None:
    assert process.get("/api/systems/job-queues/items").status == 404
    assert process.get(f"{ROOMS}?state=nonsense").body["field"] == "state"
    assert process.get(f"{ROOMS}?cursor=W10%3D").body["field"] == "cursor"
    assert process.get(f"{ROOMS}?limit=0").body["field"] == "limit"
    assert process.post(f"{ROOMS}/retry", "{}").body["field"] == "state"
    assert process.post(f"{ROOMS}/retry", '{"state": "in-progress"}').status == 422
    assert process.post(f"{ROOMS}/retry", '{"state": "due", "more": 1}').body["field"] == "more"
    assert process.post(f"{ROOMS}/retry", '{"state": "due", "ids": []}').body["field"] == "state"
    assert process.post(f"{ROOMS}/retry", json.dumps({"ids": ["x"] * 1_001})).body["field"] == "ids"
    assert process.post(f"{ROOMS}/retry", "[").status == 400
    assert process.post(f"{ROOMS}/x/retry", '{"more": 1}').body["field"] == "more"


# Trying again


def test_retryable_items_among_the_given_ids_are_sent(clean: Servers, rooms: dict[str, ObjectId], process: Web) -> None:
    ids = [str(rooms[name]) for name in ("failed", "due", "later", "in-progress", "due")]
    answer = process.post(f"{ROOMS}/retry", json.dumps({"ids": [*ids, "nothing"]}))
    assert (answer.status, answer.body) == (202, {"sent": 2, "of": 5})
    assert {message.args[0] for message in waiting_messages(clean.valkey.url, "support-snooze")} >= {*ids[:2]}


@pytest.mark.parametrize("state", ["due", "stuck", "failed"])
def test_a_retry_sends_the_ordinary_task_and_no_scan_sends_it_again(
    state: str, rooms: dict[str, ObjectId], clean: Servers, process: Web
) -> None:
    answer = process.post(f"{ROOMS}/{rooms[state]}/retry", "{}")
    assert answer.status == 202, answer.text
    (message,) = waiting_messages(clean.valkey.url, "support-snooze")
    room = get_room(rooms[state])
    assert (message.task, message.id) == (TASK, answer.body["task_id"])
    assert message.args == [str(rooms[state]), to_iso(room["snooze_time"]["time"])]
    assert (lease(rooms[state]).state, room["snooze_queue_in_progress"]) == ("in-progress", True)
    scanned = [item.args[0] for item in scan(make_work(server_now), waiting=1)]
    assert str(rooms[state]) not in scanned
    again = process.post(f"{ROOMS}/{rooms[state]}/retry", "{}")
    assert (again.status, again.body["error"]) == (409, "wrong state")

    run(take(clean.valkey.url, "support-snooze"))

    assert is_open(rooms[state])
    assert len(times_woken(rooms[state])) == 1


def test_a_retried_item_waits_for_a_worker_without_a_time_limit(rooms: dict[str, ObjectId], process: Web) -> None:
    assert process.post(f"{ROOMS}/{rooms['due']}/retry").status == 202
    assert lease(rooms["due"]) == LeaseStatus(state="in-progress", ends_at=None)
    assert process.post(f"{ROOMS}/retry", '{"state": "stuck"}').status == 202
    assert lease(rooms["stuck"]) == LeaseStatus(state="in-progress", ends_at=None)


def test_items_released_or_in_flight_for_another_due_time_are_retried(
    rooms: dict[str, ObjectId], clean: Servers, process: Web
) -> None:
    room, now = rooms["in-progress"], server_now()
    resnooze(room, now - seconds(1))  # an agent snoozed it again, and that ended too
    assert process.post(f"{ROOMS}/{room}/retry").status == 202
    first = take(clean.valkey.url, "support-snooze")
    assert first.args == [str(room), to_iso(now - seconds(1))]
    LEASES.release([name(room)])
    assert process.post(f"{ROOMS}/{room}/retry").status == 202
    assert run(take(clean.valkey.url, "support-snooze"))["success"]
    assert "skipped" in run(first)
    assert len(times_woken(room)) == 1


def test_a_retry_that_fails_again_cools_down_longer(rooms: dict[str, ObjectId], process: Web) -> None:
    token = process.post(f"{ROOMS}/{rooms['failed']}/retry").body["task_id"]
    assert listed(process, ROOMS, "state=failed") == []
    meant = to_iso(get_room(rooms["failed"])["snooze_time"]["time"])
    item = DueItem(task_id=token, args=(str(rooms["failed"]), meant), lease=name(rooms["failed"]))
    make_work(server_now).give_up(item, error="Boom again")
    (failed,) = listed(process, ROOMS, "state=failed")
    assert (failed["attempts"], failed["reason"]) == (2, "Boom again")


def test_one_of_many_concurrent_retries_of_an_item_succeeds(
    rooms: dict[str, ObjectId], clean: Servers, process: Web
) -> None:
    with ThreadPoolExecutor(6) as threads:
        answers = threads.map(lambda _: process.post(f"{ROOMS}/{rooms['failed']}/retry"), range(6))
        assert sorted(answer.status for answer in answers) == [202, 409, 409, 409, 409, 409]
    assert len(waiting_messages(clean.valkey.url, "support-snooze")) == 1


def test_items_that_cannot_be_retried_are_refused(rooms: dict[str, ObjectId], clean: Servers, process: Web) -> None:
    statuses = {
        name: process.post(f"{ROOMS}/{id}/retry").status
        for name, id in {**rooms, "unknown": ObjectId(), "malformed": "nonsense"}.items()
        if name not in ("due", "stuck", "failed")
    }
    assert statuses == {"in-progress": 409, "later": 409, "unknown": 404, "malformed": 404}
    assert waiting_messages(clean.valkey.url, "support-snooze") == []


@pytest.mark.parametrize("depth", [100, 500])
def test_an_id_that_is_nested_deep_is_not_found(depth: int, process: Web) -> None:
    id = quote('{"a":' * depth + "1" + "}" * depth, safe="")
    assert process.get(f"{ROOMS}/{id}").status == 404
    assert process.post(f"{ROOMS}/{id}/retry").status == 404


def test_all_matching_items_are_sent(clean: Servers, process: Web) -> None:
    now = server_now()
    loud = {str(make_room(now - seconds(number), account_id=f"loud-{number}")) for number in range(1, 21)}
    quiet = make_room(now - seconds(5), account_id="quiet")
    answer = process.post(f"{ROOMS}/retry", json.dumps({"state": "due", "search": "LOUD"}))
    assert (answer.status, answer.body) == (202, {"sent": 20, "of": 20})
    assert {message.args[0] for message in waiting_messages(clean.valkey.url, "support-snooze")} == loud
    assert lease(quiet).state == "free"
    assert process.post(f"{ROOMS}/retry", '{"state": "due", "search": "loud"}').body == {"sent": 0, "of": 0}


def test_a_retry_of_many_items_is_bounded_and_reports_the_rest(clean: Servers, process: Web) -> None:
    at = server_now() - seconds(5)
    support_room.rooms().insert_many(
        [{"account_id": "a", "status": "snoozed", "snooze_time": {"time": at}} for _ in range(1_203)]
    )
    answer = process.post(f"{ROOMS}/retry", '{"state": "due"}')
    assert answer.body == {"sent": 1_000, "of": 1_203}
    assert process.post(f"{ROOMS}/retry", '{"state": "due"}').body == {"sent": 203, "of": 203}
    assert len({message.args[0] for message in waiting_messages(clean.valkey.url, "support-snooze")}) == 1_203


@pytest.mark.slow
def test_a_retry_without_redis_is_refused_and_changes_nothing(rooms: dict[str, ObjectId], tmp_path: Path) -> None:
    with forked_web(tmp_path, REDIS_URL=f"redis://127.0.0.1:{free_port()}/0") as process:
        with promptly(5):
            answer = process.post(f"{ROOMS}/{rooms['failed']}/retry")
        assert (answer.status, answer.body["error"]) == (503, "unavailable")
    assert (lease(rooms["failed"]).state, get_room(rooms["failed"])["snooze_queue_in_progress"]) == ("cooling", False)


@pytest.mark.slow
def test_a_worker_wakes_retried_rooms(rooms: dict[str, ObjectId], process: Web, tmp_path: Path) -> None:
    with worker(tmp_path / "worker.log"):
        for state in ("due", "stuck", "failed"):
            assert process.post(f"{ROOMS}/{rooms[state]}/retry").status == 202
        eventually(lambda: all(is_open(rooms[state]) for state in ("due", "stuck", "failed")))
    assert [len(times_woken(rooms[state])) for state in ("due", "stuck", "failed")] == [1, 1, 1]


# The other systems


def test_hung_sites_are_listed_and_reset_manually(clean: Servers, process: Web) -> None:
    now = server_now()
    hung = [make_site("agency_websites", now - hours(5)), make_site("instasites", now - hours(4))]
    busy = make_site("agency_websites", now - seconds(1))
    often = make_site("agency_websites", now - hours(3), thumbnail_reset_count=6)
    site.record_outcome("run-x", "instasites", str(hung[1]), "failed", now=now, error="Boom")
    due = listed(process, SITES, "state=due&order=oldest")
    assert [item["id"] for item in due] == [
        f"agency_websites:{hung[0]}",
        f"instasites:{hung[1]}",
        f"agency_websites:{often}",
    ]
    assert [item["id"] for item in all_of(process, SITES, "state=due&order=oldest&limit=1")] == [i["id"] for i in due]
    assert [item["since"] for item in due] == [item["due_at"] for item in due]
    assert [(i["id"], i["attempts"]) for i in listed(process, SITES, "state=stuck")] == [(due[2]["id"], 6)]
    (failed,) = listed(process, SITES, "state=failed")
    assert (failed["id"], failed["reason"], failed["attempts"]) == (due[1]["id"], "Boom", 0)
    assert listed(process, SITES, "state=in-progress") == []
    assert process.post(f"{SITES}/{due[1]['id']}/retry").status == 202
    assert last_retried(process) == [due[1]["id"]]
    message = take(clean.valkey.url, "stale-thumbnails")
    assert message.args == ["instasites", str(hung[1]), to_iso(now - hours(4))]
    run(message)
    assert [item["id"] for item in listed(process, SITES, "state=due&order=oldest")] == [due[0]["id"], due[2]["id"]]
    assert process.post(f"{SITES}/agency_websites:{busy}/retry").status == 409
    assert process.post(f"{SITES}/{due[1]['id']}/retry").status == 409
    for unknown in (f"agency_websites:{ObjectId()}", f"other:{busy}", str(busy)):
        assert process.post(f"{SITES}/{unknown}/retry").status == 404


@pytest.mark.parametrize("id", ['MÜNCHEN "Süd"', Binary.from_uuid(UUID(int=2**127 - 7))], ids=["text", "UUID"])
def test_a_site_is_found_and_retried_by_its_id_as_people_write_it(id: Any, clean: Servers, process: Web) -> None:
    make_site("agency_websites", server_now() - hours(5), _id=id)
    written, stored = f"agency_websites:{shown_id(id)}", f"agency_websites:{id_text(id)}"
    assert [one["id"] for one in listed(process, SITES, f"state=due&search={quote(written)}")] == [stored]
    assert process.post(f"{SITES}/retry", json.dumps({"ids": [written]})).body == {"sent": 1, "of": 1}
    assert [one["ids"] for one in process.get(f"/api/audit?id={quote(written)}").body["entries"]] == [[stored]]


def test_of_two_sites_whose_ids_look_alike_the_named_one_is_retried(clean: Servers, process: Web) -> None:
    id = make_site("agency_websites", server_now() - hours(5))
    make_site("agency_websites", server_now() - hours(6), _id=str(id))
    named = f"agency_websites:{id}"
    assert process.post(f"{SITES}/retry", json.dumps({"ids": [named]})).body == {"sent": 1, "of": 1}
    assert [one["ids"] for one in process.get(f"/api/audit?id={quote(named)}").body["entries"]] == [[named]]


def test_agencies_are_listed_once_although_account_ids_are_text_or_object_ids(clean: Servers, process: Web) -> None:
    ids = [ObjectId() for _ in range(4)]
    for account in (*ids[:2], *map(str, ids[1:]), "parent", ["parent"], [str(ids[0])]):
        make_subscription(account)
    for order in ("oldest", "newest"):
        found = [item["id"] for item in all_of(process, AGENCIES, f"limit=1&order={order}")]
        wanted = [*map(str, ids[2:]), "parent", *map(str, ids[:2])]
        assert found == (wanted if order == "oldest" else wanted[::-1])


def test_eligible_agencies_are_listed_and_get_a_request_manually(clean: Servers, process: Web) -> None:
    parents: list[Any] = [ObjectId() for _ in range(5)] + [f"parent-{number}" for number in range(3)]
    for parent in parents:
        make_subscription(parent)
        make_subscription(parent)
    make_subscription(ObjectId(), created_at=server_now())  # too new
    for order in ("oldest", "newest"):
        found = [item["id"] for item in all_of(process, AGENCIES, f"limit=2&order={order}")]
        wanted = sorted(map(str, parents[5:])) + sorted(map(str, parents[:5]))
        assert found == (wanted if order == "oldest" else wanted[::-1])
    of_system = "/api/systems/review-requests"
    with promptly(5):
        overview = eventually(lambda: (body := process.get(of_system).body)["due"] == 8 and body)
    assert (overview["stuck"], overview["failed"]) == (0, 0)
    assert overview["lag_seconds"] is None
    assert {(one["due_at"], one["since"]) for one in all_of(process, AGENCIES, "")} == {(None, None)}
    id = str(parents[0])
    assert process.post(f"{AGENCIES}/{id}/retry").status == 202
    assert last_retried(process) == [id]
    assert run(take(clean.valkey.url, "review-request-pulse"))["success"]
    assert id not in [item["id"] for item in all_of(process, AGENCIES, "")]
    assert process.post(f"{AGENCIES}/{id}/retry").status == 409
    assert process.post(f"{AGENCIES}/{ObjectId()}/retry").status == 404
    assert process.post(f"{AGENCIES}/retry", '{"state": "due"}').body == {"sent": 7, "of": 7}
