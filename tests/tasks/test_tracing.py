"""Traces: one from the tick of the beat to the event of a room, and links from a batch to its publishers."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from celery.exceptions import Retry
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from models import database
from models.database import server_now
from models.due_documents import DueCollection
from queue_manager.batching import execution
from queue_manager.batching.task import PoolRequest
from queue_manager.beat.entry import StoredEntry
from queue_manager.beat.scheduler import LeaderScheduler
from queue_manager.broker.keys import SCHEDULE_PREFIX
from queue_manager.core.clock import minutes
from queue_manager.core.errors import ConfigurationError
from queue_manager.core.imports import require_extras
from queue_manager.core.settings import settings
from queue_manager.telemetry import tracing
from tasks import app
from tasks.support_snooze import scan_expired_snoozes, unsnooze_room
from tests.real_servers import Servers
from tests.rooms import get_room, make_room
from tests.tasks.hand_worker import Message, run, take, waiting_messages

QUEUE = "support-snooze"


@pytest.fixture
def exporter(clean: Servers, monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(tracing, "tracer", lambda: provider.get_tracer("test"))
    monkeypatch.setenv("QM_TRACING", "true")
    settings.cache_clear()
    database.close()  # the next client reports its commands
    yield exporter
    monkeypatch.undo()
    settings.cache_clear()
    database.close()


def spans(exporter: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    return [span for span in exporter.get_finished_spans() if span.name == name]


def only(exporter: InMemorySpanExporter, name: str) -> ReadableSpan:
    (span,) = spans(exporter, name)
    return span


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def is_child(span: ReadableSpan, parent: ReadableSpan) -> bool:
    assert span.context is not None
    assert parent.context is not None
    return span.parent is not None and (span.context.trace_id, span.parent.span_id) == (
        parent.context.trace_id,
        parent.context.span_id,
    )


def run_batch(messages: list[Message]) -> None:
    requests: list[PoolRequest] = [
        (one.id, {"id": one.id, **one.headers}, (one.args, one.kwargs, {})) for one in messages
    ]
    execution.run(unsnooze_room.name, requests)


def test_one_trace_spans_beat_scan_item_and_event(clean: Servers, exporter: InMemorySpanExporter) -> None:
    room = make_room(server_now() - minutes(1))
    beat = LeaderScheduler(app)
    try:
        assert beat._leads()  # not a tick: that publishes the scans too if one of their times passes meanwhile
        beat._publish([StoredEntry.from_key(f"{SCHEDULE_PREFIX}{QUEUE}", app)])
    finally:
        beat.close()
    run(take(clean.valkey.url, "scans"))
    run(take(clean.valkey.url, QUEUE))

    assert get_room(room)["status"] == "open"
    tick, scan = only(exporter, "publish scans"), only(exporter, "process scans")
    dispatch, item = only(exporter, f"publish {QUEUE}"), only(exporter, f"process {QUEUE}")
    event = only(exporter, "publish socketio")
    assert tick.parent is None
    assert [is_child(*pair) for pair in ((scan, tick), (dispatch, scan), (item, dispatch), (event, item))] == [True] * 4
    updates = [span for span in exporter.get_finished_spans() if span.name == "update support_rooms"]
    assert any(is_child(update, item) for update in updates)
    kinds = [span.kind for span in (tick, scan, dispatch, item, event, updates[-1])]
    producer, consumer = SpanKind.PRODUCER, SpanKind.CONSUMER
    assert kinds == [producer, consumer, producer, consumer, producer, SpanKind.CLIENT]


def test_span_attributes_follow_the_conventions_and_contain_no_document_data(
    clean: Servers, exporter: InMemorySpanExporter
) -> None:
    room = make_room(server_now() - minutes(1))
    scan_expired_snoozes()
    message = take(clean.valkey.url, QUEUE)
    run(message)
    assert attributes(only(exporter, f"process {QUEUE}")) == {
        "messaging.system": "celery",
        "messaging.operation.type": "process",
        "messaging.operation.name": "process",
        "messaging.destination.name": QUEUE,
        "messaging.message.id": message.id,
        "celery.task": unsnooze_room.name,
    }
    found = attributes(only(exporter, "process scans"))
    assert (found["queue_manager.found"], found["queue_manager.enqueued"]) == (1, 1)
    assert attributes(spans(exporter, "update support_rooms")[-1]) == {
        "db.system.name": "mongodb",
        "db.operation.name": "update",
        "db.namespace": "queue_manager",
        "db.collection.name": "support_rooms",
        "server.address": "127.0.0.1",
        "server.port": clean.mongo.port,
    }
    assert str(room) not in str([span.to_json() for span in exporter.get_finished_spans()])


def test_the_span_of_a_batch_has_a_link_to_each_publisher_and_no_parent(
    clean: Servers, exporter: InMemorySpanExporter
) -> None:
    for _ in range(2):
        for _ in range(2):
            make_room(server_now() - minutes(1))
        scan_expired_snoozes()
    run_batch(waiting_messages(clean.valkey.url, QUEUE))
    batch = only(exporter, f"process {QUEUE}")
    publishers = [span.context for span in spans(exporter, f"publish {QUEUE}")]
    assert batch.parent is None
    assert [link.context.span_id for link in batch.links] == [one.span_id for one in publishers if one]
    assert attributes(batch)["messaging.batch.message_count"] == 4
    assert all(attributes(one)["messaging.batch.message_count"] == 2 for one in spans(exporter, f"publish {QUEUE}"))


def test_the_span_of_a_failed_attempt_is_an_error_without_the_error_text(
    clean: Servers, exporter: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise ValueError("s3cret")

    make_room(server_now() - minutes(1))
    scan_expired_snoozes()
    with monkeypatch.context() as patch:
        patch.setattr(DueCollection, "apply", fail)
        assert isinstance(run(take(clean.valkey.url, QUEUE)), Retry)
    run(take(clean.valkey.url, QUEUE))
    first, second = spans(exporter, f"process {QUEUE}")
    assert (first.status.status_code, attributes(first)["error.type"]) == (StatusCode.ERROR, "ValueError")
    assert second.status.status_code is StatusCode.UNSET
    assert first.parent == second.parent
    assert "s3cret" not in first.to_json()


@pytest.mark.slow
def test_without_the_setting_opentelemetry_is_not_imported_and_no_header_is_sent(clean: Servers) -> None:
    make_room(server_now() - minutes(1))
    scan_expired_snoozes()
    assert tracing.TRACE_HEADER not in take(clean.valkey.url, QUEUE).headers
    program = (
        "import sys\n"
        "from queue_manager.telemetry import tracing\n"
        "import models.database, tasks.scan, tasks.item\n"
        "from queue_manager.core.imports import require_extras\n"
        "require_extras()\n"
        "with tracing.publishing('queue', attributes={}), tracing.processing('queue', [], attributes={}): pass\n"
        "assert not {'opentelemetry.exporter', 'opentelemetry.sdk.trace', 'models.command_spans'} & {*sys.modules}\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_missing_opentelemetry_package_is_reported_in_one_sentence(
    exporter: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http", None)
    with pytest.raises(ConfigurationError, match=r"^QM_TRACING: its packages are not installed: pip"):
        require_extras()
