"""`queue-manager`, as a user sees it: migrate, scan, health, wrong settings, and odd streams."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from bson import ObjectId
from pymongo import MongoClient

from beat_schedule import SYSTEMS
from dev.ports import free_port
from dev.servers import DATABASE
from models import audit, scan_run, schema
from models.database import server_now
from models.job import JobState
from queue_manager import cli as command
from queue_manager.cli.commands import cli
from queue_manager.core.clock import seconds
from queue_manager.telemetry import worker_heartbeats
from services.due_documents.work import DocumentWork
from services.job_queues import jobs
from tests import bulk_data
from tests.any_jobs import INVOICE, MODULE
from tests.e2e.celery_processes import ROOT
from tests.e2e.commands import COMMAND, handling_sigint, invoke, queue_manager
from tests.e2e.health_command import repeated
from tests.real_servers import Servers
from tests.rooms import get_room, make_room
from tests.tasks.hand_worker import waiting_messages


def test_help_names_every_command(tmp_path: Path) -> None:
    result = queue_manager("--help", cwd=tmp_path)
    assert result.returncode == 0
    assert set(COMMANDS) == set(typer.main.get_command(cli).commands)  # type: ignore[attr-defined]
    assert all(command in result.stdout for command in COMMANDS)


def test_migrate_may_be_repeated(clean: Servers, tmp_path: Path) -> None:
    for _ in range(2):
        result = queue_manager("migrate", cwd=tmp_path)
        assert result.returncode == 0, result.stderr
        assert "indexes are in place" in result.stderr


@pytest.fixture
def empty(clean: Servers) -> Iterator[str]:
    """The URL of an empty database."""
    name = "migrated"
    with MongoClient[dict[str, Any]](clean.mongo.url) as client:
        client.drop_database(name)
        yield clean.mongo.url.replace(f"/{DATABASE}?", f"/{name}?")
        client.drop_database(name)


def indexed(url: str) -> set[str]:
    """Return the collections that have indexes besides that of the ids."""
    with MongoClient[dict[str, Any]](url) as client:
        found = client.get_default_database()
        return {name for name in found.list_collection_names() if len(found[name].index_information()) > 1}


def test_migrate_touches_only_the_collections_of_systems_that_are_on(empty: str, tmp_path: Path) -> None:
    result = queue_manager("migrate", cwd=tmp_path, MONGO_DB_URL=empty, QM_CONVERSATIONS="true")
    assert result.returncode == 0, result.stderr
    assert indexed(empty) == {"support_rooms", "qm_owed", "qm_failed_items", *schema.SHARED_INDEXES}
    queue_manager("migrate", cwd=tmp_path, MONGO_DB_URL=empty, QM_JOBS="true", JOBS_PRODUCTION_ONLY="true")
    assert {"jobs_data", "job_queues"} <= indexed(empty)


def test_migrate_finish_without_a_system_is_refused(clean: Servers, tmp_path: Path) -> None:
    flags = {system.flag: "false" for system in SYSTEMS if system.flag is not None}
    result = queue_manager("migrate", "--finish", cwd=tmp_path, **flags)
    assert result.returncode == 2
    assert result.stderr.startswith("queue-manager: No system is switched on here, so nothing would be removed: ")


def make_claimed_room() -> ObjectId:
    """Store a room with a claim of release 0.1."""
    return make_room(
        claim={"token": "t", "held": True, "claimed_until": server_now(), "due_at": server_now(), "losses": 0}
    )


@pytest.mark.parametrize("release", [None, "0.1.9"], ids=["0.1", "another"])
def test_migrate_finish_refuses_while_a_worker_of_an_older_release_is_online(
    release: str | None, clean: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = make_claimed_room()

    def show_workers() -> None:
        worker_heartbeats.record("newer@here")
        with monkeypatch.context() as older:
            older.setattr(worker_heartbeats, "OWN_RELEASE", release)
            worker_heartbeats.record("older@there")

    with repeated(show_workers):
        result = queue_manager("migrate", "--finish", cwd=tmp_path)
    assert (result.returncode, result.stdout) == (2, "")
    refused = "Nothing was changed, because workers of another release are online: stop older@there first"
    assert result.stderr == f"queue-manager: {refused}\n"
    assert "claim" in get_room(room)
    worker_heartbeats.remove("older@there")
    result = queue_manager("migrate", "--finish", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "claim" not in get_room(room)


def test_migrate_finish_changes_nothing_if_redis_cannot_list_the_workers(clean: Servers, tmp_path: Path) -> None:
    room = make_claimed_room()
    url = f"redis://127.0.0.1:{free_port()}/0"
    result = queue_manager("migrate", "--finish", cwd=tmp_path, REDIS_URL=url)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith(f"queue-manager: Redis at {url} does not answer")
    assert "claim" in get_room(room)


def test_migrate_names_the_system_whose_documents_prevent_an_index_and_migrates_the_others(
    empty: str, tmp_path: Path
) -> None:
    request = {"type": "review_request", "status": "pending"}
    with MongoClient[dict[str, Any]](empty) as client:
        pulses = client.get_default_database()["projects.pulse"]
        accounts = [ObjectId() for _ in range(25)]
        pulses.insert_many({**request, "account_id": account} for account in accounts * 2)

        result = queue_manager("migrate", cwd=tmp_path, MONGO_DB_URL=empty, QM_PROJECTS="true")

        assert result.returncode == 2
        assert "queue-manager: review-requests could not be migrated, everything else is done" in result.stderr
        assert "indexes are in place" in result.stderr
        assert sum(str(account) in result.stderr for account in accounts) == 20
        assert "5 more, 25 in total" in result.stderr
        assert "support_rooms" in indexed(empty)
        assert "projects.pulse" not in indexed(empty)

        result = queue_manager("migrate", cwd=tmp_path, MONGO_DB_URL=empty)
        assert result.returncode == 0, result.stderr
        pulses.delete_many({})
    result = queue_manager("migrate", cwd=tmp_path, MONGO_DB_URL=empty, QM_PROJECTS="true")
    assert result.returncode == 0, result.stderr
    assert "projects.pulse" in indexed(empty)


def test_scan_dispatches_due_items_and_prints_its_report(clean: Servers, tmp_path: Path) -> None:
    room = make_room(server_now() - seconds(1))
    result = queue_manager("scan", "support-snooze", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout).items() >= {"found": 1, "claimed": 1, "enqueued": 1, "errors": 0}.items()
    assert [message.args[0] for message in waiting_messages(clean.valkey.url, "support-snooze")] == [str(room)]


@pytest.mark.parametrize("name", ["review-requests", "stale-thumbnails"])
def test_every_scan_can_be_run_by_command(name: str, clean: Servers, tmp_path: Path) -> None:
    result = queue_manager("scan", name, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout).items() >= {"found": 0, "enqueued": 0, "errors": 0}.items()


def test_ctrl_c_ends_a_scan(clean: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DocumentWork, "take_due", lambda *_: signal.raise_signal(signal.SIGINT))
    with handling_sigint(signal.default_int_handler):
        result = invoke("scan", "support-snooze")
    assert (result.returncode, result.stdout) == (130, "")
    assert result.stderr.endswith("queue-manager: interrupted; the outcome is unknown\n")
    entries, _ = audit.page(audit.AuditQuery(action="scan"), after=None, limit=2)
    assert [entry.outcome for entry in entries] == ["unknown"]
    assert scan_run.last("tasks.support_snooze.scan_expired_snoozes") is None


def test_unknown_scan_names_the_known_ones(tmp_path: Path) -> None:
    result = queue_manager("scan", "nonsense", cwd=tmp_path)
    assert (result.returncode, result.stdout) == (2, "")
    names = ", ".join(system.name for system in SYSTEMS)
    assert result.stderr.strip() == (
        f"queue-manager: There is no system 'nonsense'; the systems are: {names}; "
        "QM_SYSTEMS names the modules of your own"
    )


def test_health_reports_a_missing_beat(clean: Servers, tmp_path: Path) -> None:
    result = queue_manager("health", "--json", cwd=tmp_path)
    state = json.loads(result.stdout)
    assert result.returncode == 1
    assert state["leader"] is None
    found = [(problem["system"], problem["rule"]) for problem in state["problems"]]
    assert found == [("beat", "no-leader"), ("workers", "no-workers")]  # the scan never ran, and one reason is enough
    assert any("support-snooze: starting" in detail for detail in state["details"])


@pytest.mark.processes
def test_health_names_both_unavailable_servers_without_passwords(tmp_path: Path) -> None:
    gone = free_port()
    result = queue_manager(
        "health",
        cwd=tmp_path,
        MONGO_DB_URL=f"mongodb://app:s3cret@127.0.0.1:{gone}/product?authSource=admin",
        REDIS_URL=f"redis://:s3cret@127.0.0.1:{gone}/0",
    )
    assert result.returncode == 1
    assert f"Redis at redis://***@127.0.0.1:{gone}/0 does not answer" in result.stdout
    assert f"MongoDB at mongodb://***@127.0.0.1:{gone}/product?authSource=admin does not answer" in result.stdout
    assert "s3cret" not in result.stdout + result.stderr


COMMANDS = {
    "adopt": ["adopt"],
    "alerts": ["alerts", "list"],
    "audit": ["audit"],
    "dead-letters": ["dead-letters"],
    "doctor": ["doctor"],
    "failures": ["failures"],
    "health": ["health"],
    "items": ["items", "list", "support-snooze"],
    "jobs": ["jobs", "list"],
    "keys": ["keys"],
    "mark": ["mark", "v1"],
    "migrate": ["migrate"],
    "queue": ["queue", "list"],
    "scan": ["scan", "support-snooze"],
    "start": ["start"],
    "systems": ["systems", "list"],
    "web": ["web"],
    "why": ["why", "a"],
    "workers": ["workers"],
}
WRONG = {  # in the order of the settings
    "REDIS_URL": ("http://app:s3cret@cache", "REDIS_URL='http://***@cache': must be"),
    "QM_CONVERSATIONS": ("ture", "QM_CONVERSATIONS='ture': must be true or false"),
    "MANAGED_SUBSCRIPTIONS": ("seo,,ads", "MANAGED_SUBSCRIPTIONS='seo,,ads': must be strings separated by commas"),
    "REVIEW_AFTER_DAYS": ("inf", "REVIEW_AFTER_DAYS='inf': must be a number from 0 to 36500"),
    "JOBS_IMPORTS": (
        '["billing"',
        """JOBS_IMPORTS='["billing"': must be names of Python modules, separated by commas""",
    ),
    "QM_API_KEYS": ("s3cret", "QM_API_KEYS: must be a JSON list of"),
}


def assert_one_line_each(lines: list[str]) -> None:
    for (_, said), line in zip(WRONG.values(), lines, strict=True):
        assert line.startswith(said)


@pytest.mark.parametrize("command", [name for name in COMMANDS if name != "doctor"])  # which checks the settings
def test_wrong_settings_of_every_kind_are_one_line_each_in_every_command(command: str, tmp_path: Path) -> None:
    wrong = {name: value for name, (value, _) in WRONG.items()}
    result = queue_manager(*COMMANDS[command], cwd=tmp_path, **wrong)
    assert (result.returncode, result.stdout) == (2, "")
    assert_one_line_each(result.stderr.removeprefix("queue-manager: ").splitlines())
    assert "s3cret" not in result.stderr


@pytest.mark.processes
@pytest.mark.skipif(sys.platform == "darwin", reason="macOS has no /dev/full")
def test_full_disk_for_output_is_reported_in_one_line(tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        result = subprocess.run(
            [*COMMAND, "queue", "config"],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            cwd=tmp_path,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert (result.returncode, result.stderr) == (1, "queue-manager: cannot write: No space left on device\n")


def test_ctrl_c_at_the_start_prints_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "require_own_packages", interrupt)
    with pytest.raises(SystemExit) as ended:
        command.main()
    assert ended.value.code == 130
    assert capsys.readouterr() == ("", "")


@pytest.mark.processes
@pytest.mark.parametrize(
    ("command", "status", "text"),
    [
        ("queue config >&-", 0, ""),
        ("jobs list >&-", 0, ""),
        ("jobs clear success <&-", 1, "nothing was changed: use --yes"),
        ("jobs list", 0, "\\xe9"),
        ("queue import - <&-", 0, "0 imported, 0 already present"),
    ],
)
def test_closed_streams_and_narrow_encodings_cause_no_errors(
    clean: Servers, tmp_path: Path, command: str, status: int, text: str
) -> None:
    bulk_data.jobs(1, JobState.SUCCESS)
    jobs.run(INVOICE, "é")
    result = subprocess.run(
        ["/bin/sh", "-c", f"{shlex.join(COMMAND)} {command}"],
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "PYTHONIOENCODING": "ascii",
            "COLUMNS": "200",
            "JOBS_IMPORTS": f'["{MODULE}"]',
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert (result.returncode, "Traceback" in result.stderr) == (status, False), result.stderr
    assert text in result.stdout + result.stderr
