"""Every route of the application, requested with each role: who is allowed, and who is not."""

from __future__ import annotations

import asyncio
import re

import pytest
from fastapi import APIRouter, FastAPI

from queue_manager.core.settings import Settings
from queue_manager.web.app import api_of
from queue_manager.web.auth.authorization import required_roles
from tests.real_servers import Servers
from tests.web.credentials import EXPIRED, KEYS, OPERATOR, UNKNOWN, VIEWER, cookie
from tests.web.queue_client import Stream, empty_queue
from tests.web.web_process import SNOOZE, Answer, Web, answered

OF_MOUNTS = {"/static": "/static/style.css"}
REFUSED = (401, 403)


@pytest.fixture
def guarded(clean: Servers, tmp_path_factory: pytest.TempPathFactory) -> Web:
    """A process with every route that there is."""
    return empty_queue(clean, tmp_path_factory, QM_API_KEYS=KEYS, QM_HOOKS="true", QM_JOBS="true").web


@pytest.fixture(scope="session")
def api(servers: Servers) -> FastAPI:
    """The same application, to be looked at."""
    chosen = Settings(qm_message_queue=True, qm_jobs=True, qm_hooks=True)
    return api_of(chosen, asyncio.Event())


@pytest.fixture(scope="session")
def routes(api: FastAPI) -> list[tuple[str, str, str]]:
    """Method, path and required role of each, with an id of no message and no job in place of a parameter."""
    return [
        (method, OF_MOUNTS.get(str(route.path), re.sub(r"{.*?}", "0", str(route.path))), required.role)
        for route, required in required_roles(api)
        for method in sorted(route.methods or ("GET",))
    ]


def status(process: Web, method: str, path: str, **headers: str) -> int:
    """Ask without a body, so that nothing is changed but what needs none."""
    if method == "GET" and path in ("/api/overview/events", "/api/jobs/events"):
        with Stream(process, path, **headers) as stream:  # one without end
            return stream.status
    if path == "/api/queue/events":
        headers["Last_Event_ID"] = "none"  # 422, and no stream without end
    answer = answered(lambda: process.ask(method, path, **headers))
    if answer.status in REFUSED and method != "HEAD":
        assert {"error", "message"} == answer.body.keys()
    return answer.status


def test_routes_of_every_role_exist(routes: list[tuple[str, str, str]]) -> None:
    assert len(routes) >= 40
    assert {role for _, _, role in routes} == {"public", "viewer", "operator"}
    assert {path for _, path, role in routes if role == "public"} == {
        "/healthz",
        "/readyz",
        "/login",
        "/logout",
        "/static/style.css",
    }


def test_receiving_a_message_requires_the_operator_role(routes: list[tuple[str, str, str]]) -> None:
    assert ("GET", "/api/queue/message", "operator") in routes
    acting = {(method, path) for method, path, role in routes if role == "operator"}
    assert {path for method, path in acting if method == "GET"} == {"/api/queue/message"}
    assert [route for route in routes if route[0] not in ("GET", "HEAD") and route[2] == "viewer"] == []


@pytest.mark.slow
def test_every_route_requires_the_role_of_its_rule(guarded: Web, routes: list[tuple[str, str, str]]) -> None:
    viewer, operator = cookie(guarded, VIEWER), cookie(guarded, OPERATOR)
    same, cross = {"Sec_Fetch_Site": "same-origin"}, {"Sec_Fetch_Site": "cross-site"}
    apart = {"X_Forwarded_For": "192.0.2.201"}  # wrong keys are counted by address: those of other tests do not matter
    asked = {  # by whom: with which headers, and the answer to a viewer's and to an operator's route; None lets in
        "nobody": ({}, 401, 401),
        "a wrong key": ({"X_API_KEY": UNKNOWN, **apart}, 401, 401),
        "a wrong bearer": ({"Authorization": f"Bearer {UNKNOWN}", **apart}, 401, 401),
        "an expired key": ({"X_API_KEY": EXPIRED, **apart}, 401, 401),
        "another scheme": ({"Authorization": f"Basic {OPERATOR}"}, 401, 401),
        "a wrong key next to a cookie": ({"X_API_KEY": UNKNOWN, "Cookie": operator, **same, **apart}, 401, 401),
        "a viewer": ({"X_API_KEY": VIEWER}, None, 403),
        "a viewer's bearer": ({"Authorization": f"bearer {VIEWER}"}, None, 403),
        "an operator": ({"X_API_KEY": OPERATOR}, None, None),
        "an operator from a page of its own": ({"X_API_KEY": OPERATOR, **cross}, None, None),
        "a viewer's cookie": ({"Cookie": viewer, **same}, None, 403),
        "an operator's cookie": ({"Cookie": operator, **same}, None, None),
        "the cookie by the address bar": ({"Cookie": operator, "Sec_Fetch_Site": "none"}, None, 403),
        "the cookie from another site": ({"Cookie": operator, **cross}, 403, 403),
        "the cookie from a neighbour": ({"Cookie": operator, "Sec_Fetch_Site": "same-site"}, 403, 403),
        "the cookie from another origin": ({"Cookie": operator, "Origin": "http://127.0.0.1:1"}, 403, 403),
        "the cookie from no page": ({"Cookie": operator, "Origin": "null"}, 403, 403),
        "the cookie from an old browser": ({"Cookie": operator, "Origin": own(guarded)}, None, None),
        "the cookie alone": ({"Cookie": operator}, None, 403),
        "an unsigned cookie": ({"Cookie": f"{operator[:-5]}aaaaa", **same}, 401, 401),
    }
    wrong = [
        f"{method} {path} by {who}: {got}"
        for who, (headers, to_viewer, to_operator) in asked.items()
        for method, path, role in routes
        if role != "public"
        for expected in [to_viewer if role == "viewer" else to_operator]
        for got in [status(guarded, method, path, **headers)]
        if (got != expected if expected else got in REFUSED or got >= 500)
    ]
    assert wrong == []


def own(process: Web) -> str:
    return f"http://127.0.0.1:{process.port}"


def test_public_routes_require_no_key(guarded: Web, routes: list[tuple[str, str, str]]) -> None:
    paths = [path for method, path, role in routes if role == "public" and method == "GET"]
    assert {status(guarded, "GET", path) for path in paths} == {200}
    assert status(guarded, "POST", "/logout") == 303
    assert status(guarded, "POST", "/logout", Sec_Fetch_Site="cross-site") == 403


@pytest.mark.slow
def test_an_unknown_method_is_405_or_requires_a_key(guarded: Web, routes: list[tuple[str, str, str]]) -> None:
    known = {(method, path) for method, path, _ in routes}
    of_all = {path for method, path, role in routes if method == "GET" and role == "public"}  # HEAD answers as GET
    for path in {path for _, path, _ in routes}:
        for method in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"):
            if (method, path) not in known:
                is_answered = path.startswith("/static") or (method == "HEAD" and path in of_all)
                allowed = (200, 405) if is_answered else (401, 404, 405)
                assert status(guarded, method, path) in allowed, (method, path)


@pytest.mark.parametrize("path", ["/api/jobs/", "/workers/", "/static"])
def test_no_request_is_redirected_to_the_host_it_names(guarded: Web, path: str) -> None:
    answer = guarded.get(path, Host="evil.example")
    assert (answer.status, answer.headers["location"]) == (404, None)


def test_a_route_without_a_rule_is_an_error() -> None:
    api, router = FastAPI(openapi_url=None, docs_url=None, redoc_url=None), APIRouter()
    router.add_api_route("/new", lambda: None)
    api.include_router(router)
    with pytest.raises(LookupError, match="/new: give its router one of public, viewer, operator"):
        list(required_roles(api))


@pytest.mark.slow
def test_without_keys_on_loopback_everything_is_allowed_except_cross_site_requests(
    servers: Servers, tmp_path_factory: pytest.TempPathFactory, routes: list[tuple[str, str, str]]
) -> None:
    process = empty_queue(servers, tmp_path_factory, QM_HOOKS="true", QM_JOBS="true").web
    for method, path, role in routes:
        if role != "public":
            assert status(process, method, path) not in REFUSED, (method, path)
            assert status(process, method, path, Sec_Fetch_Site="cross-site") == 403
            assert status(process, method, path, Origin="https://evil.example") == 403


def test_a_link_from_another_site_shows_a_page_but_changes_nothing(guarded: Web) -> None:
    link = {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "document"}
    shown: Answer = guarded.get("/", Cookie=cookie(guarded, OPERATOR), **link)
    assert shown.status == 200
    assert status(guarded, "GET", "/api/queue/message", Cookie=cookie(guarded, OPERATOR), **link) == 403
    assert status(guarded, "POST", SNOOZE, Cookie=cookie(guarded, OPERATOR), **link) == 403
    for embedded in ({"Sec_Fetch_Dest": "iframe"}, {"Sec_Fetch_Mode": "no-cors"}):
        assert status(guarded, "GET", "/", Cookie=cookie(guarded, OPERATOR), **{**link, **embedded}) == 403


def test_a_link_followed_by_way_of_the_log_in_page_takes_no_message(guarded: Web) -> None:
    link = {"Sec_Fetch_Site": "same-origin", "Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "document"}
    assert status(guarded, "GET", "/messages", Cookie=cookie(guarded, OPERATOR), **link) == 200
    assert status(guarded, "GET", "/api/queue/message", Cookie=cookie(guarded, OPERATOR), **link) == 403


def test_without_keys_a_link_from_another_site_takes_no_message(
    servers: Servers, tmp_path_factory: pytest.TempPathFactory
) -> None:
    process = empty_queue(servers, tmp_path_factory).web
    link = {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "document"}
    assert status(process, "GET", "/messages", **link) == 200
    assert status(process, "GET", "/api/queue/message", **link) == 403
