"""A clock for the time that functions of items take."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from services.due_documents import updates, work


@pytest.fixture
def elapsed(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time of batches in seconds, as the only element: it passes when a test adds to it, also on a busy machine."""
    elapsed = [0.0]
    for module in (work, updates):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: elapsed[0]))
    return elapsed
