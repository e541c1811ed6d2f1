"""The broker of the tasks."""

from __future__ import annotations

import pytest

from tests.real_servers import Servers


@pytest.fixture
def broker(clean: Servers) -> str:
    """The URL of the broker, which is empty."""
    return clean.valkey.url
