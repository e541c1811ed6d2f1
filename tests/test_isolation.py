"""The tests use their own servers and settings, not those of the user: neither from the environment nor from `.env`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from queue_manager.core.settings import Settings

ROOT = Path(__file__).parents[1]
ELSEWHERE = "redis://elsewhere.invalid/0"
OF_THE_SHELL = {
    "BROKER_URL": ELSEWHERE,
    "CELERY_BROKER_URL": ELSEWHERE,
    "MAX_ATTEMPTS": "7",
    "QM_ALERT_WEBHOOK_URL": "https://elsewhere.invalid",
    "HTTP_PROXY": "http://elsewhere.invalid",
}


def test_no_setting_is_of_the_user() -> None:
    of_tests = {"mongo_db_url", "redis_url", "qm_conversations", "managed_subscriptions", "app_env"}
    assert Settings().model_fields_set == of_tests
    assert "127.0.0.1" in Settings().broker
    assert "CELERY_BROKER_URL" not in os.environ
    assert "127.0.0.1" in os.environ["NO_PROXY"]


@pytest.mark.slow
def test_settings_of_the_user_do_not_apply(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text(f"QM_QUEUE_REDIS_URL={ELSEWHERE}\n")
    test = f"{__file__}::{test_no_setting_is_of_the_user.__name__}"
    command = [sys.executable, "-m", "pytest", "-n0", "-q", "--config-file", str(ROOT / "pyproject.toml"), test]
    run = subprocess.run(command, cwd=tmp_path, env={**os.environ, **OF_THE_SHELL}, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout
