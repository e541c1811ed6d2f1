"""A program that imports our tasks keeps its own Celery application: a subprocess with both."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import redis

from tests.real_servers import Servers

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


@pytest.mark.slow
@pytest.mark.parametrize("is_imported_first", [False, True])
def test_importing_our_tasks_does_not_replace_the_current_celery_application(
    is_imported_first: bool, clean: Servers
) -> None:
    its_broker = clean.valkey.url.removesuffix("/0") + "/9"
    first = "import tasks.support_snooze; " if is_imported_first else ""

    run = subprocess.run(
        [sys.executable, "-c", f"{first}from tests.tasks import host_program"],
        env={**os.environ, "PYTHONPATH": str(ROOT), "HOST_BROKER_URL": its_broker},
        capture_output=True,
        text=True,
        check=False,
    )

    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout.splitlines()[-1])
    assert found["current"] == found["app_of_invoice"] == "host"
    assert found["tasks_of_host"] == ["host.invoice"]
    assert _lengths(its_broker) == {"celery": 2}
    assert _lengths(clean.valkey.url) == {"support-snooze": 1}


def _lengths(url: str) -> dict[str, int]:
    """Return the length of each list in a database."""
    with redis.Redis.from_url(url, decode_responses=True) as client:
        return {key: client.llen(key) for key in client.scan_iter(_type="list")}
