"""Changing commands sent to a server that does not answer: their outcome is reported as unknown."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from dev.ports import free_port
from dev.servers import Valkey
from models.database import collection
from tests.e2e.commands import queue_manager
from tests.real_servers import Servers

pytestmark = pytest.mark.processes

UNKNOWN = "; the outcome is unknown\n"
CHANGING = (
    "systems pause support-snooze",
    "systems resume support-snooze",
    "queue pause mail",
    "queue requeue",
)
READING = ("queue status", "queue list", "dead-letters", "dead-letters clear --yes")


@pytest.fixture
def hanging(clean: Servers, tmp_path: Path) -> Iterator[Valkey]:
    with Valkey(tmp_path / "valkey") as server:
        os.kill(server.pid, signal.SIGSTOP)
        yield server
        os.kill(server.pid, signal.SIGCONT)


def run(command: str, **env: str) -> subprocess.CompletedProcess[str]:
    return queue_manager(*command.split(), QM_MESSAGE_QUEUE="true", QM_CONVERSATIONS="true", QM_JOBS="true", **env)


@pytest.mark.parametrize("command", CHANGING)
def test_outcome_of_a_change_without_a_reply_is_unknown(command: str, hanging: Valkey) -> None:
    result = run(command, REDIS_URL=hanging.url)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.splitlines(keepends=True)[-1].endswith(UNKNOWN), result.stderr
    (entry,) = collection("qm_audit").find()
    assert entry["outcome"] == "unknown"


def test_outcome_of_an_added_message_without_a_reply_is_unknown(hanging: Valkey) -> None:
    result = run("queue add mail --id mail-1", REDIS_URL=hanging.url)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.endswith(
        "; the outcome is unknown; to try again without adding it twice, repeat the command with --id mail-1\n"
    )


@pytest.mark.parametrize("command", READING)
def test_reading_command_has_no_outcome(command: str, hanging: Valkey) -> None:
    result = run(command, REDIS_URL=hanging.url)
    assert (result.returncode, result.stderr.count("\n")) == (1, 1)
    assert "outcome" not in result.stderr


@pytest.mark.parametrize("command", ["jobs pause mail", "mark v1", "scan support-snooze"])
def test_command_that_was_not_started_has_a_known_outcome(command: str, clean: Servers) -> None:
    gone = f"mongodb://127.0.0.1:{free_port()}/product?serverSelectionTimeoutMS=300"
    result = run(command, MONGO_DB_URL=gone)
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1].startswith("queue-manager: MongoDB at mongodb://127.0.0.1")
    assert "outcome" not in result.stderr
