"""`queue-manager systems status`, `scans`, `history` and `schedule`, and `queue-manager keys`."""

from __future__ import annotations

import json
import subprocess
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from beat_schedule import SYSTEMS
from models import outbox
from models.database import collection, server_now
from queue_manager.cli.completion import complete_system, complete_system_with_items
from queue_manager.core.clock import seconds
from queue_manager.core.settings import settings
from tests.e2e.commands import invoke, queue_manager
from tests.real_servers import Servers
from tests.rooms import make_room

ROOMS = "support-snooze"
SECRET = "abcdefghijklmnopqrstuvwxyz0123456789"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return invoke("systems", *arguments)


def printed(*arguments: str) -> Any:
    result = run(*arguments, "--json")
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_status_of_one_and_of_all(clean: Servers) -> None:
    make_room(server_now() - seconds(1))
    one = printed("status", ROOMS)
    assert (one["name"], one["due"], one["servers"]) == (ROOMS, 1, {"mongodb": None, "redis": None})
    assert [system["name"] for system in printed("status")["systems"]] == [system.name for system in SYSTEMS]
    shown = run("status", ROOMS).stdout.splitlines()
    assert shown[0].split()[:3] == ["name", "state", "due"]
    assert shown[1].split()[:3] == [ROOMS, "on", "1"]
    assert "critical  workers, no-workers: " in run("status").stdout


def test_a_number_at_which_counting_stopped_has_a_plus(clean: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_module("services.due_documents.stats"), "MAX_COUNT", 2)
    for shown in ("0", "1", "2+", "2+"):
        assert run("status", ROOMS).stdout.splitlines()[1].split()[2] == shown
        make_room(server_now() - seconds(1))
    assert printed("status", ROOMS)["due"] == 2


def test_a_paused_system_is_shown_as_paused(clean: Servers) -> None:
    assert run("pause", ROOMS, "--reason", "a trial").returncode == 0
    for query in (("status", ROOMS), ("schedule",)):
        lines = run(*query).stdout.splitlines()
        (row,) = [line for line in lines if line.startswith(ROOMS)]
        assert row.split()[1] == "paused"
        assert any(line.startswith(f"Paused: {ROOMS} since ") and line.endswith(": a trial") for line in lines)


def test_pending_calls_of_a_paused_system_are_shown(clean: Servers) -> None:
    assert "Pending: " not in run("status").stdout
    collection(outbox.OUTBOX_COLLECTION).insert_one({"system": ROOMS, "at": server_now(), "items": []})
    assert run("pause", ROOMS).returncode == 0
    for query in (("status", ROOMS), ("status",)):
        assert f"Pending: {ROOMS} 1 call of `after`, each for a batch of items" in run(*query).stdout.splitlines()


def test_a_narrow_terminal_gets_whole_values_and_the_names_of_the_other_columns(clean: Servers) -> None:
    lines = invoke("systems", "status", ROOMS, columns=80).stdout.splitlines()
    (row,) = [line for line in lines if line.startswith(ROOMS)]
    assert row.split() == [ROOMS, "on", *"0000", "0.0", *"00"]
    assert "not shown, because the terminal is too narrow: next scan at" in lines


@pytest.mark.processes
@pytest.mark.parametrize("options", [[], [ROOMS, "--json"]])
def test_status_without_redis_shows_data_of_mongodb_and_fails(options: list[str], clean: Servers) -> None:
    make_room(server_now() - seconds(1))
    result = queue_manager("systems", "status", *options, REDIS_URL="redis://127.0.0.1:1/0")
    assert (result.returncode, result.stderr) == (1, "")
    assert "Redis at redis://127.0.0.1:1/0 does not answer" in result.stdout


def test_scans_are_listed(clean: Servers) -> None:
    assert run("scans", ROOMS).stdout == "no scan in 24 hours\n"
    make_room(server_now() - seconds(1))
    assert invoke("scan", ROOMS).returncode == 0
    (scan,) = printed("scans", ROOMS)["scans"]
    assert (scan["found"], scan["enqueued"]) == (1, 1)
    assert run("scans", ROOMS).stdout.splitlines()[0].split()[:3] == ["at", "found", "claimed"]


@pytest.mark.slow
def test_history_of_one_and_of_all(clean: Servers) -> None:
    assert printed("history", ROOMS, "--range", "7d")["step_seconds"] == 6 * 3600 // 6
    assert run("history", ROOMS).stdout == "nothing ended in this range\n"
    assert set(printed("history")["systems"]) == {system.name for system in SYSTEMS}
    of_all = run("history").stdout
    assert of_all.splitlines()[0].rstrip().endswith("in the last 24 hours")
    assert ROOMS in of_all


def test_history_of_all_has_no_range() -> None:
    result = run("history", "--range", "7d")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("queue-manager: --range requires NAME;")


def test_schedule_names_every_scan(clean: Servers) -> None:
    assert [entry["name"] for entry in printed("schedule")["entries"]] == [system.name for system in SYSTEMS]
    shown = run("schedule").stdout
    assert ROOMS in shown
    assert shown.endswith("no leader\n")


@pytest.mark.parametrize("command", ["status", "scans", "history"])
def test_unknown_system_lists_the_known_ones(command: str, clean: Servers) -> None:
    result = run(command, "nonsense")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("queue-manager: There is no system 'nonsense'; the systems are: support-snooze")


def test_names_of_systems_are_completed() -> None:
    assert complete_system("s") == ["stale-thumbnails", ROOMS]
    assert "overdue-messages" not in complete_system_with_items("")
    assert ROOMS in complete_system_with_items("")


def test_keys_are_listed_without_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "keys.json"
    key = {"name": "ada", "key": SECRET, "role": "viewer", "expires": "2026-01-31T00:00:00Z"}
    limited = {"name": "bot", "key": SECRET[::-1], "role": "operator", "systems": [ROOMS, "job-queues"]}
    file.write_text(json.dumps([key, limited]))
    assert invoke("keys").stdout == "no API keys: only this machine has access, with the role operator\n"
    monkeypatch.setenv("QM_API_KEYS_FILE", str(file))
    settings.cache_clear()
    try:
        table, listed = invoke("keys").stdout, invoke("keys", "--json").stdout
    finally:
        monkeypatch.delenv("QM_API_KEYS_FILE")
        settings.cache_clear()
    assert SECRET not in table + listed
    assert [line.split() for line in table.splitlines()[1:]] == [
        ["ada", "viewer", "2026-01-31T00:00:00.000Z"],
        ["bot", "operator", f"{ROOMS},", "job-queues"],
    ]
    assert [(one["name"], one["is_expired"], one["systems"]) for one in json.loads(listed)] == [
        ("ada", True, None),
        ("bot", False, [ROOMS, "job-queues"]),
    ]
