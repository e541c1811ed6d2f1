"""What would be sent to Sentry."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sentry_sdk.envelope import Envelope
from sentry_sdk.transport import Transport

from queue_manager.core.settings import settings
from queue_manager.telemetry import error_reports

DSN = "https://key@sentry.example/1"


class CollectingTransport(Transport):
    """Keeps the events instead of sending them."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[dict[str, Any]] = []

    def capture_envelope(self, envelope: Envelope) -> None:
        self.events += [dict(item.get_event() or {}) for item in envelope.items]


@contextmanager
def collected(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, Any]]]:
    """Set `SENTRY_DSN` and yield the events that are reported."""
    transport = CollectingTransport()
    monkeypatch.setattr("sentry_sdk.client.make_transport", lambda _: transport)
    monkeypatch.setenv("SENTRY_DSN", DSN)
    settings.cache_clear()
    error_reports._reported_at.clear()
    yield transport.events
    error_reports.flush()
    monkeypatch.undo()
    settings.cache_clear()


def exception(event: dict[str, Any]) -> dict[str, Any]:
    """Return the error of an event, without what caused it."""
    found: dict[str, Any] = event["exception"]["values"][-1]
    return found
