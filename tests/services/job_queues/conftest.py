"""Job queues of their own for each test."""

from __future__ import annotations

import pytest

from tests.job_lab import Lab
from tests.real_servers import Servers


@pytest.fixture
def lab(clean: Servers) -> Lab:
    return Lab()
