"""Job queues of their own for each test."""

from __future__ import annotations

import pytest

from models import transaction
from services.job_queues import runner
from tests.job_lab import Lab
from tests.real_servers import Servers


@pytest.fixture
def lab(clean: Servers) -> Lab:
    return Lab()


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no stall of this machine end a batch, make the next one smaller, or give the claim to a job that is short."""
    monkeypatch.setattr(runner, "BATCH_TIME", 60.0)
    monkeypatch.setattr(runner, "MAX_RESERVED_TIME", 60.0)


@pytest.fixture
def persistent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no stall of this machine end the retries of a transaction that conflicts with a short one."""
    monkeypatch.setattr(transaction, "CONFLICT_TIMEOUT", 60.0)
