"""The API's description: complete, shown without any other host; nothing made from it is an internal error."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given
from hypothesis import settings as hypothesis
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from models import scan_run
from models.database import server_now
from queue_manager.core.clock import seconds
from services.message_queue.browser import MESSAGE_STATES
from tests.any_jobs import INVOICE, MODULE
from tests.eventually import eventually
from tests.job_lab import start_job
from tests.real_servers import Servers
from tests.rooms import make_room
from tests.web.credentials import KEYS, OPERATOR, VIEWER
from tests.web.queue_client import Queue, empty_queue
from tests.web.test_systems_api import RUN, SCAN
from tests.web.web_process import Web, shared_web

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
WAITS = {"timeout"}  # parameters that only make an answer late
DEEP = "deep"  # with this parameter, 503 is the answer about a system that has a problem
CLOSED = {
    "state",
    "states",
    "order",
    "sort",
    "sortBy",
    "sortOrder",
    "queueType",
    "toQueue",
    "fromQueue",
    "result",
    "idle",
}
TOKEN_NEEDED = {
    ("/api/queue/ack", "post"),
    ("/api/queue/message/{id}/nack", "post"),
    ("/api/queue/message/{id}/touch", "put"),
}
ENDLESS = {"/api/queue/events", "/api/jobs/events", "/api/overview/events"}


@schemathesis.serializer("application/x-ndjson")
def json_lines(_: Any, value: str) -> bytes:
    return value.encode("utf-8", "replace")


@pytest.fixture
def guarded(clean: Servers, tmp_path_factory: pytest.TempPathFactory) -> Web:
    return empty_queue(clean, tmp_path_factory, QM_API_KEYS=KEYS, QM_HOOKS="true", QM_JOBS="true").web


@pytest.fixture
def schema(guarded: Web) -> Any:
    return guarded.get("/openapi.json", X_API_KEY=VIEWER).body


def operations(schema: Any) -> list[tuple[str, str, Any]]:
    return [(method, path, about) for path, methods in schema["paths"].items() for method, about in methods.items()]


def test_every_body_role_and_error_is_described(schema: Any) -> None:
    found = operations(schema)
    assert len(found) > 30
    for method, path, about in found:
        is_guarded = about["x-role"] != "public"
        assert ("security" in about) == is_guarded
        assert not is_guarded or {"401", "403", "422", "429"} <= about["responses"].keys(), path
        assert ("requestBody" not in about) or {"400", "413"} <= about["responses"].keys(), path
        if method in ("post", "put") and path not in ("/logout", "/api/trigger/{path}"):
            assert about["requestBody"]["content"], path
    assert schema["components"]["securitySchemes"].keys() == {"key", "bearer", "session"}


def resolved(schema: Any, described: Any) -> Any:
    """Return a schema, or the component that it refers to."""
    while "$ref" in described:
        described = schema["components"]["schemas"][described["$ref"].rpartition("/")[2]]
    return described


def contents(schema: Any) -> Iterator[tuple[str, Any]]:
    """Yield every JSON schema of a parameter, a body or an answer, with the operation."""
    for method, path, about in operations(schema):
        for parameter in about.get("parameters", ()):
            yield f"{method} {path}", {"properties": {parameter["name"]: parameter["schema"]}}
        for described in (about.get("requestBody", {}), *about["responses"].values()):
            for content in described.get("content", {}).values():
                yield f"{method} {path}", content["schema"]


def fields(schema: Any, described: Any, seen: frozenset[str] = frozenset()) -> Iterator[tuple[str, Any]]:
    """Yield every member within a schema by its name, at any depth."""
    if (reference := described.get("$ref")) in seen:
        return
    seen |= {reference} if reference else set()
    described = resolved(schema, described)
    for name, member in described.get("properties", {}).items():
        yield name, member
        yield from fields(schema, member, seen)
    inner = [described.get("items"), described.get("additionalProperties"), *described.get("anyOf", ())]
    for part in inner:
        if isinstance(part, dict):
            yield from fields(schema, part, seen)


def has_values(schema: Any, described: Any) -> bool:
    """Return True if a field names its values, or is not a text."""
    described = resolved(schema, described)
    if "anyOf" in described and "enum" not in described:
        return all(has_values(schema, one) for one in described["anyOf"])
    if described.get("type") == "array":
        return has_values(schema, described["items"])
    return described.get("type") != "string" or bool(described.keys() & {"enum", "const"})


def test_every_success_and_error_has_a_schema(schema: Any) -> None:
    for method, path, about in operations(schema):
        where = f"{method} {path}"
        assert about["description"], where
        assert about["tags"], where
        successes = [status for status in about["responses"] if status[0] in "23"]
        assert successes, where
        for status, answer in about["responses"].items():
            assert answer["description"], (where, status)
            if status[0] == "3":
                continue
            for content in answer["content"].values():
                described = resolved(schema, content["schema"])
                described = resolved(schema, described.get("items", described))
                is_text = "application/json" not in answer["content"]
                assert is_text or described.get("properties"), (where, status)
            if status[0] == "4":
                assert content["schema"] == {"$ref": "#/components/schemas/Error"}, (where, status)


def test_operation_ids_are_unique(schema: Any) -> None:
    names = [about["operationId"] for _, _, about in operations(schema)]
    assert len(set(names)) == len(names)


def test_a_field_with_known_values_names_them(schema: Any) -> None:
    found = Counter[str]()
    for where, described in contents(schema):
        for name, member in fields(schema, described):
            if name in CLOSED:
                assert has_values(schema, member), (where, name)
                found[name] += 1
    assert found.keys() == CLOSED


def test_corrected_parts_of_the_description_stay_correct(schema: Any) -> None:
    paths = schema["paths"]
    assert "200" not in paths["/api/jobs"]["post"]["responses"]
    assert paths["/metrics"]["get"]["responses"]["200"]["content"].keys() == {"text/plain"}
    for path in ENDLESS:
        assert paths[path]["get"]["responses"]["200"]["content"].keys() == {"text/event-stream"}, path
    for path, method in TOKEN_NEEDED:
        body = paths[path][method]["requestBody"]["content"]["application/json"]["schema"]
        assert "lock_token" in body["required"], path
    move = paths["/api/queue/move"]["post"]["requestBody"]["content"]["application/json"]["schema"]["properties"]
    assert "processing" not in move["toQueue"]["enum"]
    assert [one["type"] for one in move["messages"]["items"]["anyOf"]] == ["string", "object"]


@pytest.mark.slow
def test_a_probe_documents_only_errors_that_it_returns(schema: Any) -> None:
    assert schema["paths"]["/healthz"]["get"]["responses"].keys() == {"200"}


def test_without_keys_the_description_requires_none(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> None:
    without = shared_web(tmp_path_factory).get("/openapi.json").body
    assert "securitySchemes" not in without["components"]
    for _, path, about in operations(without):
        assert "security" not in about, path
        assert path == "/login" or not {"401", "429"} & about["responses"].keys(), path


def test_the_page_shows_every_operation_and_loads_nothing_from_elsewhere(guarded: Web, schema: Any) -> None:
    page = guarded.get("/docs", X_API_KEY=VIEWER)
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    for method, path, _ in operations(schema):
        assert f"<code>{method.upper()}</code> <code>{path}</code>" in page.text
    assert not re.search(r"<script(?!( type=\"module\")? src=\"/static/)|\son\w+=|style=|<style|https?://", page.text)


def test_the_page_shows_the_type_of_each_parameter_and_member(guarded: Web) -> None:
    page = guarded.get("/docs", X_API_KEY=VIEWER).text
    assert "<summary>Body, application/json: name, at, delay_seconds, arguments, " in page
    assert "<summary>Body, a list, application/json: type, payload, " in page
    assert "<dt><code>name</code> string matching <code>^[A-Za-z0-9_.:-]{1,128}$</code>; required</dt>" in page
    assert "<dt><code>priority</code> integer, -100 to 100; default <code>0</code></dt>" in page
    assert "<dt><code>state</code> <code>due</code>, <code>in-progress</code>, <code>stuck</code>, " in page
    assert "<dt><code>ids</code> list, 1 to 1,000 items; each: string; required</dt>" in page
    assert "<dt><code>timeout</code> number, 0 to 60</dt>\n<dd>Seconds to wait for a message.</dd>" in page


def test_api_page_and_description_require_a_key(guarded: Web) -> None:
    assert {guarded.get(path).status for path in ("/docs", "/openapi.json")} == {401}


@pytest.mark.slow
def test_every_response_matches_the_description_and_none_is_an_internal_error(
    guarded: Web, schema: Any, figure: Callable[[str], None]
) -> None:
    described = schemathesis.openapi.from_dict(schema)
    described.config.update(base_url=f"http://127.0.0.1:{guarded.port}")
    answered: Counter[int] = Counter()
    few = hypothesis(
        max_examples=12,
        deadline=None,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    for operation in described.get_all_operations():
        assert isinstance(operation, Ok)
        described_operation = operation.ok()
        if described_operation.path in ENDLESS:
            continue

        @few
        @given(case=described_operation.as_strategy())
        def ask(case: schemathesis.Case[Any]) -> None:
            for name in WAITS & (case.query or {}).keys():
                del case.query[name]
            may_be_unavailable = DEEP in (case.query or {})

            def respond() -> schemathesis.Response:
                response = case.call(headers={"X-API-KEY": OPERATOR}, timeout=15, allow_redirects=False)
                # The servers of a busy machine may stand still for seconds: it is asked again.
                assert response.status_code != 503 or may_be_unavailable, response.text
                return response

            answer = eventually(respond)
            checks = [check for check in CHECKS if check is not not_a_server_error or not may_be_unavailable]
            case.validate_response(answer, checks=checks)
            answered[answer.status_code // 100] += 1

        ask()
    figure(f"openapi: {sum(answered.values())} requests made from the description, {answered[2]} of them done")
    assert answered[2] > 20


@pytest.fixture
def filled(clean: Servers, tmp_path_factory: pytest.TempPathFactory) -> Queue:
    """A process with items, scans, jobs and messages in many states."""
    env = {"QM_HOOKS": "true", "QM_JOBS": "true", "JOBS_IMPORTS": json.dumps([MODULE])}
    queue = empty_queue(clean, tmp_path_factory, **env)
    make_room(server_now() - seconds(60))
    for error in (None, "Boom"):
        scan_run.record(SCAN, {**RUN, "stamped": 2}, error=error, now=server_now())
    job = queue.post("/jobs", {"name": INVOICE, "arguments": [{"$a": 1}, None]}).body["job"]
    start_job(job["_id"])
    queue.post("/jobs", {"name": INVOICE, "delay_seconds": 60})
    for done in ("acknowledged", "archived"):
        queue.post("/queue/move", {"messages": [queue.add()], "toQueue": done})
    queue.post("/queue/replay", {"messageIds": [queue.dead(ackTimeout=5)]})
    queue.take("consumerId=me")
    queue.add(payload={"any": ["thing"]})
    return queue


@pytest.mark.parametrize(
    ("path", "parameters"),
    [
        ("/api/overview", {}),
        ("/api/overview/history", {}),
        ("/api/schedule", {}),
        ("/api/workers", {}),
        ("/api/systems/{name}", {"name": "support-snooze"}),
        ("/api/systems/{name}/scans", {"name": "support-snooze"}),
        ("/api/systems/{name}/items", {"name": "support-snooze"}),
        ("/api/jobs", {}),
        ("/api/jobs/status", {}),
        *(("/api/queue/{queueType}/messages", {"queueType": place}) for place in MESSAGE_STATES),
        ("/api/queue/status", {}),
        ("/api/queue/metrics", {}),
        ("/api/queue/config", {}),
        ("/api/queue/message", {}),
        *(("/api/queue/{queueType}/export", {"queueType": place}) for place in MESSAGE_STATES),
    ],
    ids=lambda value: "-".join(value.values()) if isinstance(value, dict) else value,
)
def test_a_response_with_data_matches_the_description(path: str, parameters: dict[str, str], filled: Queue) -> None:
    described = schemathesis.openapi.from_dict(filled.web.get("/openapi.json").body)
    described.config.update(base_url=f"http://127.0.0.1:{filled.web.port}")
    case = described[path]["GET"].Case(path_parameters=parameters)
    answer = case.call_and_validate(checks=CHECKS, timeout=15)
    assert answer.status_code == 200
