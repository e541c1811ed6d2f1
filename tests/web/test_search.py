"""The search for any id over HTTP: results with explanation and timeline, and documents of items."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote
from uuid import UUID

import pytest
from bson import ObjectId

from models import subscription, support_room
from models.database import collection, server_now
from models.document_id import id_text, shown_id
from queue_manager.core.clock import hours, minutes
from queue_manager.items import DueItem
from tests.docs.transcript import Transcript
from tests.documented import DOCS, block, output
from tests.e2e.health_command import lead
from tests.eventually import eventually
from tests.odd_ids import ODD_IDS
from tests.real_servers import Servers
from tests.rooms import make_room, make_work, scan
from tests.web.web_process import Answer, Web, shared_web

HTML = {"Accept": "text/html"}
PRODUCT = "https://example.com/rooms/{id}"


@pytest.fixture(scope="session")
def process(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Web:
    return shared_web(tmp_path_factory, QM_PROJECTS="true", QM_ROOM_URL=PRODUCT)


@pytest.fixture
def sent(clean: Servers) -> DueItem:
    """A room that was dispatched a moment ago."""
    make_room(server_now() - minutes(1))
    (item,) = scan(make_work(server_now))
    eventually(lambda: collection("qm_item_events").count_documents({}) == 1)
    return item


def search(process: Web, id: str, query: str = "") -> Answer:
    return process.get(f"/api/search?id={quote(id, safe='')}{query}")


def found(process: Web, id: str) -> list[Any]:
    answer = search(process, id)
    assert answer.status == 200, answer.text
    assert answer.body["unread"] == {}
    return list(answer.body["found"])


def product_url(id: Any) -> str:
    """Return the link to a room of this id in the product."""
    return PRODUCT.replace("{id}", quote(id if isinstance(id, str) else shown_id(id), safe=""))


@pytest.mark.usefixtures("clean")
def test_a_room_has_an_answer_and_paths(process: Web) -> None:
    room = make_room(server_now() + hours(3))
    (one,) = found(process, str(room))
    assert (one["system"], one["kind"], one["id"]) == ("support-snooze", "room", str(room))
    assert (one["label"], one["tone"], one["retry"]) == ("snoozed", "neutral", None)
    assert one["answer"].startswith("Snoozed until ")
    assert one["answer"].endswith("; not dispatched; no scan runs, because no beat is the leader.")
    assert one["page"] == f"/rooms/{room}"
    assert process.get(one["page"], **HTML).status == 200
    document = process.get(one["document"]).body["document"]
    assert document["_id"] == {"$oid": str(room)}


@pytest.mark.usefixtures("clean")
def test_a_room_is_found_as_in_the_documentation(process: Web, servers: Servers) -> None:
    lead(servers, since=hours(1))
    room = make_room(server_now() + hours(3) + minutes(12))
    text = block(0, heading="Search for any id", page=DOCS / "reference" / "http-api.md")
    path, query = re.findall(r"^\$ curl 'http://127.0.0.1:6002(/\S+id=)\w+'$", text, re.MULTILINE)[0], str(room)
    assert Transcript().matches(output(text), process.get(path + query).text)


def test_the_timeline_and_the_task_of_an_item(process: Web, sent: DueItem) -> None:
    (one,) = found(process, sent.task_id)
    assert one["id"] == sent.args[0]
    assert one["label"] == "queued"
    dispatched, snoozed = one["timeline"]
    assert (dispatched["event"], dispatched["task_id"]) == ("Dispatched", sent.task_id)
    assert "error" not in dispatched
    assert snoozed["event"] == "Snoozed"


@pytest.mark.usefixtures("clean")
def test_a_failed_room_can_be_retried_at_the_given_path(process: Web) -> None:
    room = make_room(server_now() - minutes(1))
    (one,) = found(process, str(room))
    assert process.post(one["retry"]).status == 202
    (one,) = found(process, str(room))
    assert (one["label"], one["retry"]) == ("queued", None)
    assert process.ask("POST", f"/api/systems/support-snooze/items/{room}/retry").status == 409


@pytest.mark.usefixtures("clean")
@pytest.mark.parametrize("id", ODD_IDS, ids=str)
def test_pages_and_documents_of_ids_of_any_type(process: Web, id: Any) -> None:
    make_room(server_now() + hours(1), _id=id)
    (one,) = [one for one in found(process, id_text(id)) if one["id"] == id_text(id)]
    assert process.get(one["document"]).status == 200
    page = process.get(one["page"], **HTML)
    assert page.status == 200
    assert f'data-product="{product_url(id)}"' in page.text


@pytest.mark.usefixtures("clean")
@pytest.mark.parametrize("id", [" lead", "trail "])
def test_an_item_is_opened_by_an_id_with_a_space_at_an_end(process: Web, id: str) -> None:
    managed = {"plan": {"metadata": {"product_type": "seo"}}, "metadata": {"account_id": ObjectId()}}
    made = {"account": id, "status": "active", "created_at": server_now() - hours(24 * 60), **managed}
    subscription.subscriptions().insert_one(made)
    (listed,) = process.get("/api/systems/review-requests/items").body["items"]
    (one,) = found(process, listed["id"])
    assert one["id"] == listed["id"] == id
    assert f'data-id="{id}"' in process.get(one["page"], **HTML).text


def test_the_search_for_a_pasted_id_ignores_spaces_around_it(process: Web) -> None:
    assert 'data-id="mail-1"' in process.get("/search?id=%20mail-1%20", **HTML).text


@pytest.mark.usefixtures("clean")
def test_items_with_long_ids_are_listed_page_by_page_and_opened(process: Web) -> None:
    ids = ["ж" * 171, "ж" * 1_300, "x" * 3_100, "x" * 8_190]
    due_at = server_now() - hours(1)
    for id in ids:
        make_room(due_at, _id=id)
    listed = list[str]()
    cursor: str | None = ""
    while cursor is not None:
        page = process.get(f"/api/systems/support-snooze/items?limit=1&cursor={cursor}")
        assert page.status == 200, page.text
        listed += [one["id"] for one in page.body["items"]]
        cursor = page.body["cursor"]
    assert sorted(listed) == sorted(map(id_text, ids))
    for id in listed:
        (one,) = found(process, id)
        assert process.get(one["page"], **HTML).status == process.get(one["document"]).status == 200
        assert process.post(one["retry"]).status == 202
        (one,) = found(process, id)
        assert "Retried by someone on this machine" in [event["event"] for event in one["timeline"]]
        (entry,) = process.get(f"/api/audit?id={quote(id, safe='')}").body["entries"]
        assert entry["ids"] == [id]


@pytest.mark.parametrize("id", ["1e5", "1.50", "agency one", str(UUID(int=7)), "["])
def test_an_id_that_is_not_one_of_a_document_is_in_the_link_to_the_product_as_it_is(process: Web, id: str) -> None:
    page = process.get(f"/rooms/{quote(id, safe='')}", **HTML)
    assert f'data-product="{product_url(id)}"' in page.text


@pytest.mark.usefixtures("clean")
def test_an_unknown_id_is_not_found(process: Web) -> None:
    assert found(process, str(ObjectId())) == []
    answer = process.get(f"/api/systems/support-snooze/items/{ObjectId()}")
    assert (answer.status, answer.body["field"]) == (404, "id")


@pytest.mark.usefixtures("clean")
def test_wrong_parameters_are_named(process: Web) -> None:
    for query, field in (("", "id"), ("?id=", "id"), (f"?id={'x' * 8_193}", "id"), ("?id=a&of=b", "of")):
        answer = process.get(f"/api/search{query}")
        assert (answer.status, answer.body["field"]) == (422, field)
    answer = search(process, "a", "&system=nothing")
    assert (answer.status, answer.body["field"]) == (404, "name")


@pytest.mark.usefixtures("clean")
def test_a_document_that_is_too_large_is_refused(process: Web) -> None:
    room = make_room(server_now() + hours(1), notes="x" * 1024 * 1024)
    assert process.get(f"/api/systems/support-snooze/items/{room}").status == 413
    support_room.rooms().update_one({"_id": room}, {"$set": {"notes": ""}})
    assert process.get(f"/api/systems/support-snooze/items/{room}").status == 200
