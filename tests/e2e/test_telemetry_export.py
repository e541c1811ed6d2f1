"""What real beat and worker processes send to a collector of OpenTelemetry and to Sentry."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from dev.ports import LOOPBACK
from models.database import server_now
from queue_manager.core.clock import minutes
from tasks.support_snooze import unsnooze_room
from tests.e2e.celery_processes import CeleryProcess, worker
from tests.e2e.receivers import receiving_posts
from tests.eventually import eventually
from tests.real_servers import Servers
from tests.rooms import get_room, make_room

pytestmark = pytest.mark.processes

QUEUE = "support-snooze"


@dataclass
class Sink:
    """Takes the spans and the events that processes send."""

    port: int = 0
    spans: list[Any] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)

    def take(self, path: str, body: bytes) -> None:
        if path == "/v1/traces":
            request = ExportTraceServiceRequest.FromString(body)
            self.spans += [span for of in request.resource_spans for scope in of.scope_spans for span in scope.spans]
        else:  # an envelope of Sentry: JSON lines, whose items begin with a header
            lines = [json.loads(line) for line in body.splitlines()]
            self.events += [item for header, item in zip(lines[1::2], lines[2::2], strict=True) if "exception" in item]

    def named(self, name: str) -> list[Any]:
        return [span for span in self.spans if span.name == name]


@contextmanager
def sink() -> Iterator[Sink]:
    found = Sink()
    with receiving_posts(found.take) as found.port:
        yield found


def test_spans_of_all_processes_make_one_trace_and_a_failure_is_one_event(clean: Servers, tmp_path: Path) -> None:
    with sink() as received:
        env = {
            "QM_TRACING": "true",
            "QM_SNOOZE_SCAN_SECONDS": "1",
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{LOOPBACK}:{received.port}",
            "OTEL_BSP_SCHEDULE_DELAY": "200",
            "SENTRY_DSN": f"http://key@{LOOPBACK}:{received.port}/1",
        }
        room = make_room(server_now() - minutes(1))
        with worker(tmp_path / "worker", env=env), CeleryProcess(tmp_path / "beat", "beat", env=env):
            eventually(lambda: get_room(room)["status"] == "open")
            unsnooze_room.delay("nonsense")
            path = eventually(lambda: path_to(received, f"process {QUEUE}"))
            (event,) = eventually(lambda: received.events)
    assert [span.name for span in path] == [
        f"process {QUEUE}",
        f"publish {QUEUE}",
        "process scans",
        "publish scans",
    ]
    assert len({span.trace_id for span in path}) == 1
    assert event["transaction"] == unsnooze_room.name


def path_to(received: Sink, name: str) -> list[Any] | None:
    """Return a span of this name that has a parent, and all above it, once all of them have arrived."""
    by_id = {span.span_id: span for span in received.spans}
    for span in received.named(name):
        path = [span]
        while path[-1].parent_span_id in by_id:
            path.append(by_id[path[-1].parent_span_id])
        if len(path) > 1 and not path[-1].parent_span_id:
            return path
    return None
