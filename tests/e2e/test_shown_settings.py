"""What Celery's reports and Flower show of the settings: all of them, and no password."""

from __future__ import annotations

import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from celery.app.defaults import SETTING_KEYS

from dev.ports import free_port
from dev.servers import Valkey
from tests.e2e.celery_processes import CeleryProcess, worker
from tests.e2e.commands import environment
from tests.eventually import eventually
from tests.real_servers import Servers

pytestmark = pytest.mark.processes

PASSWORD = "s3c/r@t"


def test_password_is_shown_by_no_report_and_not_by_flower(clean: Servers, tmp_path: Path) -> None:
    port = free_port()
    flower_options = {"FLOWER_UNAUTHENTICATED_API": "1", "FLOWER_PORT": str(port), "FLOWER_ADDRESS": "127.0.0.1"}
    url = f"http://127.0.0.1:{port}"
    with Valkey(tmp_path / "valkey", config={"requirepass": PASSWORD}) as valkey:
        env = {"REDIS_URL": valkey.url}
        beat = CeleryProcess(tmp_path / "beat", "beat", env=env)
        flower = CeleryProcess(tmp_path / "flower", "flower", env={**env, **flower_options})
        with worker(tmp_path / "worker", "--hostname", "one@h", env=env), beat, flower:
            eventually(lambda: "leading (epoch 1)" in beat.log)  # the password is right
            shown = {
                "report": celery("report", **env),
                "conf": celery("inspect", "conf", "--json", "--timeout", "10", "--destination", "one@h", **env),
                "stats": celery("inspect", "stats", "--json", "--timeout", "10", "--destination", "one@h", **env),
                "workers": eventually(lambda: with_settings(f"{url}/api/workers?refresh=1")),
                "page": eventually(lambda: with_settings(f"{url}/worker/one@h")),
            }

    for name, text in shown.items():
        assert (f"redis://127.0.0.1:{valkey.port}/0" in text) == (name != "stats"), name
        assert PASSWORD not in text, name
        assert "s3c%2Fr%40t" not in text, name


def test_settings_are_settings_of_celery_and_redbeat_alone() -> None:
    from tasks import celeryconfig

    names = {name for name in vars(celeryconfig) if not name.startswith(("_", "redbeat_", "@"))}  # @: pytest's own
    assert names - SETTING_KEYS == set()


def celery(*arguments: str, **env: str) -> str:
    """Return what `celery -A tasks …` prints."""
    command = [sys.executable, "-m", "celery", "-A", "tasks", *arguments]
    run = subprocess.run(command, env=environment(**env), capture_output=True, text=True, check=True)
    return run.stdout


def with_settings(url: str) -> str | None:
    """Return a page as soon as it has the settings of the worker."""
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            page: str = answer.read().decode()
    except OSError:  # not yet, or not in time
        return None
    return page if "redbeat_redis_url" in page else None
