"""The API's description: complete, shown without any other host; nothing made from it is an internal error."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given
from hypothesis import settings as hypothesis
from schemathesis.checks import not_a_server_error

from tests.real_servers import Servers
from tests.web.credentials import KEYS, OPERATOR, VIEWER
from tests.web.queue_client import empty_queue
from tests.web.web_process import Web, shared_web

WAITS = {"timeout"}  # parameters that only make an answer late
ENDLESS = {"/api/queue/events", "/api/jobs/events", "/api/overview/events"}


@pytest.fixture(scope="module")
def guarded(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Web:
    return empty_queue(servers, tmp_path_factory, QM_API_KEYS=KEYS, QM_HOOKS="true", QM_JOBS="true").web


@pytest.fixture(scope="module")
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


def test_a_probe_has_no_error_that_it_never_answers(schema: Any) -> None:
    assert schema["paths"]["/healthz"]["get"]["responses"].keys() == {"200"}


def test_without_keys_no_key_is_asked_for(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> None:
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
    assert not re.search(r"<script|\son\w+=|style=|<style|https?://", page.text)


def test_both_are_for_viewers(guarded: Web) -> None:
    assert {guarded.get(path).status for path in ("/docs", "/openapi.json")} == {401}


def test_nothing_that_the_description_allows_is_an_internal_error(
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
        described_operation = operation.ok()
        if described_operation.path in ENDLESS:
            continue

        @few
        @given(case=described_operation.as_strategy())
        def ask(case: schemathesis.Case) -> None:
            for name in WAITS & (case.query or {}).keys():
                del case.query[name]
            answer = case.call_and_validate(
                headers={"X-API-KEY": OPERATOR}, checks=[not_a_server_error], timeout=15, allow_redirects=False
            )
            answered[answer.status_code // 100] += 1

        ask()
    figure(f"openapi: {sum(answered.values())} requests made from the description, {answered[2]} of them done")
    assert answered[2] > 20
