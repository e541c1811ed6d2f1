"""Keys for some systems only: what they reach, and that they see nothing of the others."""

from __future__ import annotations

import asyncio
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from bson import ObjectId

from queue_manager.core.redis_client import connect
from queue_manager.core.settings import Settings
from queue_manager.health_rules import Rule
from queue_manager.telemetry import worker_heartbeats
from queue_manager.web.app import api_of
from queue_manager.web.auth.authorization import required_roles
from tests.browser import sample_data
from tests.documented import DOCS, block
from tests.eventually import eventually
from tests.real_servers import Servers
from tests.rooms import make_room
from tests.web.credentials import LONG_AGO, OPERATOR, VIEWER, cookie, key, rewrite
from tests.web.listener import ConnectionRefused, Listener
from tests.web.queue_client import Queue, Stream, empty_queue
from tests.web.test_authorization import status
from tests.web.test_failures import fail_letter
from tests.web.web_process import Web, forked_web

CLERK = key("clerk", OPERATOR, "operator") | {"systems": ["support-snooze", "job-queues"]}
READER = key("reader", VIEWER, "viewer") | {"systems": ["overdue-messages"]}
HERS = (
    r"/|/search|/workers|/rooms(/.*)?|/jobs(/.*)?|/docs|/openapi.json|"
    r"/api/(jobs|overview|search|trigger|workers|audit/0/undo)\b.*"
)
AS_CLERK, AS_READER = {"X_API_KEY": OPERATOR}, {"X_API_KEY": VIEWER}


@pytest.fixture
def queue(clean: Servers, tmp_path_factory: pytest.TempPathFactory) -> Queue:
    """A process with every route that there is."""
    keys = json.dumps([CLERK, READER])
    return empty_queue(clean, tmp_path_factory, QM_API_KEYS=keys, QM_HOOKS="true", QM_JOBS="true")


@pytest.fixture
def process(queue: Queue) -> Web:
    return queue.web


@pytest.fixture(scope="session")
def routes(servers: Servers) -> list[tuple[str, str]]:
    api = api_of(Settings(qm_message_queue=True, qm_jobs=True, qm_hooks=True), asyncio.Event())
    return [
        (method, str(route.path))
        for route, required in required_roles(api)
        if required.role != "public"
        for method in sorted(route.methods or ("GET",))
    ]


@pytest.mark.parametrize(("system", "is_hers"), [("support-snooze", True), ("stale-thumbnails", False)])
def test_every_route_of_other_systems_is_refused(
    system: str, is_hers: bool, process: Web, routes: list[tuple[str, str]]
) -> None:
    named = [(method, path.replace("{name}", system)) for method, path in routes]
    asked = [(method, re.sub(r"{.*?}", "0", path)) for method, path in named]
    assert len(asked) > 60
    for method, path in asked:
        is_allowed = re.fullmatch(HERS, path) or (is_hers and path.startswith(f"/api/systems/{system}"))
        got = status(process, method, path, **AS_CLERK)
        assert (got == 403) != bool(is_allowed), (method, path, got)


def test_a_session_has_the_limits_of_its_key(process: Web) -> None:
    session = {"Cookie": cookie(process, OPERATOR), "Sec_Fetch_Site": "same-origin"}
    assert process.get("/api/jobs/status", **session).status == 200
    refused = process.get("/api/queue/status", **session)
    assert (refused.status, refused.body["message"]) == (
        403,
        "The key clerk is only for: support-snooze, job-queues",
    )


def test_the_overview_contains_only_the_systems_of_the_key(process: Web) -> None:
    def names(headers: dict[str, str]) -> list[str]:
        return [one["name"] for one in process.get("/api/overview", **headers).body["systems"]]

    assert sorted(names(AS_CLERK)) == ["job-queues", "support-snooze"]
    assert names(AS_READER) == ["overdue-messages"]
    history = process.get("/api/overview/history", **AS_READER).body["systems"]
    assert history.keys() == {"overdue-messages"}
    with Stream(process, "/api/overview/events", **AS_READER) as stream:
        name, state = next(stream.events())
        assert name == "overview"
        assert [one["name"] for one in state["systems"]] == ["overdue-messages"]


def test_a_problem_of_a_component_does_not_link_to_a_page_that_refuses_the_key(clean: Servers, process: Web) -> None:
    fail_letter(clean, "cannot be decoded")

    def dead_letters() -> Any:
        problems = process.get("/api/overview", **AS_READER).body["problems"]
        return next((one for one in problems if one["rule"] == Rule.DEAD_LETTERS), None)

    assert eventually(dead_letters)["page"] is None


def test_workers_are_shown_without_their_items_of_other_systems(clean: Servers, process: Web) -> None:
    sample_data.workers(clean.valkey.url)

    def seen(headers: dict[str, str]) -> tuple[Any, list[Any]]:
        answer = process.get("/api/workers", **headers)
        assert answer.status == 200
        (worker,) = answer.body["workers"]
        return worker["queues"], [task for process in worker["processes"] for task in process["running"]]

    queues, (item, batch, other) = seen(AS_CLERK)
    assert queues == ["scans", "support-snooze"]
    assert (item["item"], batch["tasks"], other["task"]) == (sample_data.A_ROOM, 1_000, None)
    queues, tasks = seen(AS_READER)
    assert queues == ["scans"]
    assert len(tasks) == 3
    for task in tasks:
        assert [name for name, value in task.items() if value not in (None, 1)] == ["since"]

    def queues_in_the_overview() -> list[Any]:
        return [one["queues"] for one in process.get("/api/overview", **AS_READER).body["workers"]]

    eventually(lambda: queues_in_the_overview() == [["scans"]])  # it is up to a second old
    with Stream(process, "/api/overview/events", **AS_READER) as stream:
        _, state = next(stream.events())
        assert [one["queues"] for one in state["workers"]] == [["scans"]]


def test_workers_and_queues_of_other_systems_are_left_out(clean: Servers, process: Web) -> None:
    sample_data.workers(clean.valkey.url)

    def seen(headers: dict[str, str]) -> tuple[dict[str, Any], list[str]]:
        body = process.get("/api/workers", **headers).body
        assert body["count"] == len(body["workers"])
        unconsumed = [one["queue"] for one in body["queues_without_worker"]]
        return {one["name"]: one["queues"] for one in body["workers"]}, unconsumed

    own = {sample_data.WORKER: ["scans", "support-snooze"]}
    others = {sample_data.WORKER: ["scans"]}
    assert (seen(AS_CLERK), seen(AS_READER)) == ((own, ["jobs"]), (others, []))
    with connect(clean.valkey.url) as client:
        for name, queues in (("jobs@here", ["jobs"]), ("older@here", None)):
            worker_heartbeats.record(name, queues)
            client.zincrby(worker_heartbeats.WORKERS_KEY, 3_600_000, f"{name} {os.getpid()}")
    unknown = {"older@here": None}  # it may consume any queue
    assert seen(AS_CLERK) == ({**own, "jobs@here": ["jobs"], **unknown}, [])
    assert seen(AS_READER) == ({**others, **unknown}, [])


def test_the_search_finds_only_items_of_the_systems_of_the_key(clean: Servers, process: Web) -> None:
    room = str(make_room())

    def found(headers: dict[str, str], id: str) -> list[str]:
        return [one["system"] for one in process.get(f"/api/search?id={id}", **headers).body["found"]]

    assert found(AS_CLERK, room) == ["support-snooze"]
    assert found(AS_READER, room) == []
    assert process.get(f"/api/search?id={room}&system=support-snooze", **AS_READER).status == 403


def test_only_scans_of_the_systems_of_the_key_can_be_triggered(process: Web) -> None:
    assert process.post("/api/trigger/conversations/support-snooze", **AS_CLERK).status in (202, 409)
    assert process.post("/api/trigger/sites/fix-stale-thumbnails", **AS_CLERK).status == 403


def test_an_unknown_trigger_names_only_those_of_the_systems_of_the_key(process: Web) -> None:
    refused = process.post("/api/trigger/none", **AS_CLERK)
    _, _, known = refused.body["message"].partition("the triggers are: ")
    assert (refused.status, known) == (404, "conversations/support-snooze, jobs/dispatch")


def test_only_deletions_in_systems_of_the_key_can_be_undone(
    queue: Queue, servers: Servers, tmp_path_factory: pytest.TempPathFactory
) -> None:
    boss = json.dumps([key("boss", OPERATOR, "operator")])
    unlimited = empty_queue(servers, tmp_path_factory, QM_API_KEYS=boss)
    id = unlimited.post("/queue/message", {"type": "t", "payload": 1}, **AS_CLERK).body["id"]
    undo = unlimited.web.ask("DELETE", f"/api/queue/message/{id}", **AS_CLERK).body["undo"]
    assert queue.post(f"/audit/{undo}/undo", **AS_CLERK).status == 403
    assert unlimited.post(f"/audit/{undo}/undo", **AS_CLERK).body["restored"] == 1


def test_the_navigation_has_only_the_pages_of_the_key(process: Web) -> None:
    def links(headers: dict[str, str]) -> list[str]:
        (nav,) = re.findall(r"<nav.*?</nav>", process.get("/", **headers).text, re.DOTALL)
        return re.findall(r'href="([^"]*)"', nav)

    assert links(AS_CLERK) == ["/", "/rooms", "/jobs", "/workers", "/docs"]
    assert links(AS_READER) == ["/", "/messages", "/workers", "/docs"]
    assert "/thumbnails" not in process.get("/workers", **AS_CLERK).text


def test_events_of_rooms_need_their_system(process: Web) -> None:
    account = str(ObjectId())
    with Listener(process.port, auth={"token": OPERATOR}) as clerk:
        assert clerk.call("join", account) == {"joined": [account]}
    with pytest.raises(ConnectionRefused, match="only for"):
        Listener(process.port, auth={"token": VIEWER})


def test_changing_the_systems_of_a_key_ends_its_open_streams(servers: Servers, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    rewrite(keys, CLERK)
    with forked_web(tmp_path, QM_API_KEYS_FILE=str(keys)) as process:
        with Stream(process, "/api/overview/events", **AS_CLERK) as stream:
            next(stream.events())
            rewrite(keys, CLERK | {"systems": ["stale-thumbnails"]})
            list(stream.events())  # it ends
        assert process.get("/api/systems/support-snooze", **AS_CLERK).status == 403
        rewrite(keys, CLERK | {"systems": ["rooms"]})
        # It is read with the next request, and refused: the keys stay as they were.
        eventually(lambda: process.get("/api/overview", **AS_CLERK) and "names the system 'rooms'" in process.log)
        assert process.get("/api/systems/stale-thumbnails", **AS_CLERK).status == 200


def test_a_key_for_an_unknown_system_stops_the_start(tmp_path: Path) -> None:
    wrong: Any = json.dumps([CLERK | {"systems": ["rooms"], "expires": LONG_AGO}])
    with forked_web(tmp_path, QM_API_KEYS=wrong) as process:
        assert process.child.wait(timeout=20) == 2
        assert "QM_API_KEYS: the key clerk names the system 'rooms'; known: support-snooze, " in process.log


def test_the_key_of_the_documentation_reaches_only_its_system(servers: Servers, tmp_path: Path) -> None:
    keys = block(0, heading="Limit a key to systems", page=DOCS / "how-to" / "secure.md")
    (one,) = json.loads(keys)
    with forked_web(tmp_path, QM_API_KEYS=keys, QM_CONVERSATIONS="true", QM_JOBS="true") as process:
        answer = process.get("/api/overview", X_API_KEY=one["key"])
        paths = ("/api/systems/support-snooze", "/api/jobs/status")
        statuses = [process.get(path, X_API_KEY=one["key"]).status for path in paths]
    assert [system["name"] for system in answer.body["systems"]] == one["systems"] == ["support-snooze"]
    assert statuses == [200, 403]
