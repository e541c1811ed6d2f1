"""Deployments in which nothing is wrong."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from queue_manager.core.clock import hours
from queue_manager.telemetry import worker_heartbeats
from tests.e2e.health_command import lead, repeated, run_scans, show_worker
from tests.real_servers import Servers


@pytest.fixture
def scanned(clean: Servers) -> Iterator[Servers]:
    """A beat has led for hours, and the scan of each system ran a moment ago."""
    lead(clean, since=hours(5))
    with repeated(run_scans):
        yield clean


@pytest.fixture
def well(scanned: Servers) -> Iterator[Servers]:
    """There is a worker on every queue, too."""
    with repeated(show_worker):
        yield scanned
    worker_heartbeats.remove("worker@here")
