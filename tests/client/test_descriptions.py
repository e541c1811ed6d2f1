"""The client and what describes it agree: its types with the API's description, its reference with its docstrings."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dev.client_reference import PAGE, reference
from queue_manager import client
from tests.web.credentials import OPERATOR
from tests.web.queue_client import Queue

SCHEMAS: dict[type[msgspec.Struct], str] = {
    client.DurationStats: "Percentiles",
    client.JobEntry: "HistoryEntry",
    client.JobQueue: "QueueState",
    client.MessageCounts: "MessageQueueStatus",
    client.MessageEntry: "HistoryEvent",
    client.OnTimeShare: "OnTime",
    client.ReplayCount: "Replayed",
    client.RetriedCount: "Sent",
    client.StoredJob: "Job",
    client.StoredMessage: "MessageWithHistory",
    client.SystemItem: "Item",
    client.SystemLatency: "Latency",
    client.SystemProblem: "Problem",
    client.SystemScan: "ScanRun",
    client.SystemStatus: "SystemState",
}


def test_every_result_has_a_schema() -> None:
    results = {kind for name in client.__all__ if issubclass(kind := getattr(client, name), msgspec.Struct)}
    assert set(SCHEMAS) == results


@pytest.mark.parametrize(("result", "name"), SCHEMAS.items(), ids=SCHEMAS.values())
def test_the_fields_of_a_result_are_those_of_the_api(result: type[msgspec.Struct], name: str, queue: Queue) -> None:
    schema: dict[str, Any] = queue.web.get("/openapi.json", X_API_KEY=OPERATOR).body["components"]["schemas"][name]
    fields = msgspec.structs.fields(result)
    assert {field.encode_name for field in fields} <= set(schema["properties"])
    assert {field.encode_name for field in fields if field.required} <= set(schema["required"])


def test_the_reference_is_current() -> None:
    assert PAGE.read_text() == reference(), "run `python -m dev.client_reference`"
