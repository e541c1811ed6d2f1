"""A span for each command of MongoDB that is sent within another span, by the semantic conventions for databases."""

from __future__ import annotations

from typing import Any

from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind, Status, StatusCode
from pymongo.monitoring import CommandFailedEvent, CommandListener, CommandStartedEvent, CommandSucceededEvent

from queue_manager.telemetry import tracing

WITHOUT_COLLECTION = {"hello", "ping", "commitTransaction", "abortTransaction", "endSessions", "getMore"}


class CommandSpans(CommandListener):
    """Starts a span with a command and ends it with the reply. It does not record what the command contains."""

    def __init__(self) -> None:
        self._spans: dict[int, Span] = {}

    def started(self, event: CommandStartedEvent) -> None:
        if not trace.get_current_span().is_recording():
            return
        target: Any = event.command.get(event.command_name)
        collection = target if isinstance(target, str) and event.command_name not in WITHOUT_COLLECTION else None
        host, port = event.connection_id
        about: dict[str, Any] = {
            "db.system.name": "mongodb",
            "db.operation.name": event.command_name,
            "db.namespace": event.database_name,
            "db.collection.name": collection,
            "server.address": host,
            "server.port": port,
        }
        self._spans[event.request_id] = tracing.tracer().start_span(
            f"{event.command_name} {collection or event.database_name}",
            kind=SpanKind.CLIENT,
            attributes={name: value for name, value in about.items() if value is not None},
        )

    def succeeded(self, event: CommandSucceededEvent) -> None:
        if (span := self._spans.pop(event.request_id, None)) is not None:
            span.end()

    def failed(self, event: CommandFailedEvent) -> None:
        if (span := self._spans.pop(event.request_id, None)) is not None:
            span.set_attribute("error.type", str(event.failure.get("codeName") or event.failure.get("errtype") or ""))
            span.set_status(Status(StatusCode.ERROR))
            span.end()
