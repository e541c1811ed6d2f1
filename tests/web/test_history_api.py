"""Latency and history over HTTP: percentiles, steps, marks."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from beat_schedule import SYSTEMS
from models.database import server_now
from queue_manager.telemetry import counters, latency
from services import history
from tests.eventually import eventually
from tests.real_servers import Servers
from tests.web.web_process import Web

NAME = "support-snooze"


def get(process: Web, path: str) -> Any:
    answer = process.get(f"/api{path}")
    assert answer.status == 200, answer.text
    return answer.body


def count(*durations_ms: int) -> None:
    """Count items that were done these times after they were due."""
    counts = Counter[str](done=len(durations_ms))
    for ms in durations_ms:
        latency.count_all(counts, [(0, 0)], began_ms=ms // 2, ended_ms=ms)
    counters.items(NAME, counts)


def test_the_overview_has_the_latency_of_the_last_hour(clean: Servers, process: Web) -> None:
    count(*[100] * 99, 10_000)
    (rooms, reviews, *_) = eventually(
        lambda: (found := get(process, "/overview")["systems"])[0]["latency"]["on_time"] and found
    )
    assert rooms["latency"]["on_time"] == {"of": "due_to_done", "within_ms": 250, "share": 0.99}
    assert rooms["latency"]["due_to_done"]["count"] == 100
    assert 60 < rooms["latency"]["due_to_done"]["p50_ms"] <= 125
    assert 30 < rooms["latency"]["run"]["p50_ms"] <= 60
    assert rooms["duration_names"]["due_to_done"] == "Due to done"
    assert reviews["duration_names"]["wait"] == "Dispatched to started"


def test_a_system_without_executed_items_has_no_percentiles(clean: Servers, process: Web) -> None:
    nothing = {"due_to_done": None, "wait": None, "run": None, "on_time": None}
    assert eventually(lambda: get(process, f"/systems/{NAME}")["latency"] == nothing)


@pytest.mark.parametrize("chosen", history.LENGTHS)
def test_the_history_has_all_ranges(clean: Servers, process: Web, chosen: history.Range) -> None:
    count(100, 100)
    history.copy(SYSTEMS, now=server_now())
    found = get(process, f"/systems/{NAME}/history?range={chosen}")
    length, step = history.LENGTHS[chosen]
    assert found["step_seconds"] == step.total_seconds()
    assert {len(values) for values in found["outcomes"].values()} == {length // step}
    assert sum(one or 0 for one in found["outcomes"]["done"]) == 2
    assert found["latency"]["wait"]["count"] == 2
    p95 = [one for one in found["percentiles"]["due_to_done"]["p95_ms"] if one is not None]
    assert len(p95) == 1
    assert 60 < p95[0] <= 125


def test_an_unknown_range_or_system_is_refused(process: Web) -> None:
    answer = process.get(f"/api/systems/{NAME}/history?range=2h")
    assert (answer.status, answer.body["field"]) == (422, "range")
    assert process.get("/api/systems/nothing/history").status == 404


def test_a_mark_is_shown_in_the_history_of_each_system(clean: Servers, process: Web) -> None:
    answer = process.post("/api/marks", {"text": "v1.4"})
    assert (answer.status, answer.body["kind"], answer.body["by"]) == (201, "deployment", "loopback")
    for system in (NAME, "job-queues"):
        (mark,) = get(process, f"/systems/{system}/history?range=1h")["marks"]
        assert (mark["text"], mark["until"]) == ("v1.4", None)
    assert process.post("/api/marks", {"text": ""}).status == 422
