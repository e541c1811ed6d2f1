"""Completion of `queue-manager` in a shell, as the scripts that `--install-completion` writes ask for it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dev.ports import free_port
from services.job_queues import jobs
from tests.any_jobs import INVOICE
from tests.e2e.commands import environment
from tests.real_servers import Servers

pytestmark = pytest.mark.processes

COMMAND = [
    sys.executable,
    "-c",
    "import sys; sys.argv[0] = 'queue-manager'; from queue_manager.cli import main; main()",
]


def completed(line: str, **env: str) -> list[str]:
    """Return what the shell would offer for the last word of a line."""
    words = line.split(" ")
    asked = {"_QUEUE_MANAGER_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    result = subprocess.run(COMMAND, env=environment(**asked, **env), capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout.split()


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("ite", "items"),
        ("items list support-", "support-snooze"),
        ("items list support-snooze fa", "failed"),
        ("queue list d", "dead"),
        ("queue list dead --ty", "--type"),
        (f"jobs pause {INVOICE[:6]}", INVOICE),
    ],
)
def test_commands_options_and_values_are_completed(line: str, offered: str, clean: Servers) -> None:
    jobs.run(INVOICE, 1)
    assert completed(f"queue-manager {line}") == [offered]


def test_completion_offers_nothing_while_mongodb_is_unavailable() -> None:
    away = f"mongodb://127.0.0.1:{free_port()}/product"
    assert completed("queue-manager jobs pause x", MONGO_DB_URL=away) == []


def test_help_loads_neither_fastapi_nor_tasks() -> None:
    """They take seconds on a slow machine, and completion loads what the help does."""
    code = "import sys, queue_manager.cli.commands; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True)
    assert {"fastapi", "socketio", "tasks", "queue_manager.web"} & set(loaded.stdout.split()) == set()


def test_completion_script_of_the_shell_is_installed(tmp_path: Path) -> None:
    env = environment(HOME=str(tmp_path), SHELL="/bin/bash", _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")
    installed = subprocess.run(
        [*COMMAND, "--install-completion", "bash"], env=env, capture_output=True, text=True, check=False
    )
    assert installed.returncode == 0, installed.stderr
    (script,) = tmp_path.rglob("queue-manager.sh")
    assert "_QUEUE_MANAGER_COMPLETE=complete_bash" in script.read_text()
    assert str(script) in (tmp_path / ".bashrc").read_text()
