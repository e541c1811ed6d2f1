"""`queue-manager systems`, run as a user does."""

from __future__ import annotations

import re
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from models.database import collection
from queue_manager import pauses
from queue_manager.cli import systems as cli_systems
from tests.e2e.celery_processes import ROOT
from tests.e2e.commands import COMMAND, invoke, queue_manager, said_on_a_terminal
from tests.real_servers import Servers
from tests.rooms import make_room

DUE = datetime(2026, 1, 31, tzinfo=UTC)
DECLARED = """
from datetime import timedelta
from queue_manager import DueDocuments

trials = DueDocuments(
    name="trial-end",
    title="Trials",
    description="Trial accounts.",
    collection="accounts",
    due="trial_ends_at",
    where={{"status": "trial"}},
    every=timedelta(seconds=10),
    {more}
)
{function}
"""
FUNCTION = """
@trials.item()
def end_trial(account):
    {body}
"""
SHARED_TASK = "from celery import shared_task\n" + DECLARED.format(
    more="", function=FUNCTION.format(body="return {}").replace("def ", "@shared_task\ndef ")
)
EXPIRE = 'return {"$set": {"status": "expired"}}'


@pytest.fixture(autouse=True)
def _accounts(clean: Servers) -> None:
    collection("accounts").drop_indexes()


def systems(directory: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return queue_manager("systems", *arguments, cwd=directory, **{"PYTHONPATH": f"{ROOT}:{directory}", **env})


def declare(directory: Path, body: str = EXPIRE, *, more: str = "") -> None:
    (directory / "trials.py").write_text(DECLARED.format(more=more, function=FUNCTION.format(body=body)))


def test_check_shows_index_count_and_updates_and_writes_nothing(tmp_path: Path) -> None:
    declare(tmp_path)
    accounts = [{"_id": f"a{i}", "status": "trial", "trial_ends_at": DUE} for i in range(12)]
    collection("accounts").insert_many(accounts)

    checked = systems(tmp_path, "check", "trials")

    assert checked.returncode == 0, checked.stderr
    lines = checked.stdout.splitlines()
    assert lines[0] == "trial-end  Trial accounts."
    assert re.match(
        r"  index     accounts\.qm_due_trial_ends_at_\w{8}  missing: `queue-manager migrate` creates it", lines[1]
    )
    assert lines[2] == "  due now   12 documents"
    assert lines[3] == '  a0        due 2026-01-31T00:00:00.000Z  {"$set": {"status": "expired"}}'
    assert len(lines) == 3 + 10
    assert list(collection("accounts").find()) == accounts
    assert set(collection("accounts").index_information()) == {"_id_"}


def test_check_names_documents_that_are_never_due(tmp_path: Path) -> None:
    declare(tmp_path)
    values = {"date": DUE, "text": "2026-01-31", "number": 1, "early": DUE.replace(year=1969), "null": None}
    collection("accounts").insert_many(
        [{"_id": name, "status": "trial", "trial_ends_at": value} for name, value in values.items()]
        + [{"_id": "none", "status": "trial"}, {"_id": "other", "status": "open", "trial_ends_at": "2026-01-31"}]
    )
    shown = systems(tmp_path, "check", "trials").stdout
    cause = "never due, because trial_ends_at is not a date since 1970"
    assert f"warning   {cause}: 3 documents matching `where` (text, number, early)" in shown


def test_check_reads_a_large_collection_for_a_limited_time(monkeypatch: pytest.MonkeyPatch) -> None:
    make_room()
    assert '{"$set": {"status": "open"' in invoke("systems", "check", "support-snooze").stdout
    monkeypatch.setattr(cli_systems, "DOCUMENTS_TIMEOUT", timedelta(microseconds=1))
    checked = invoke("systems", "check", "support-snooze")
    assert (checked.returncode, checked.stderr) == (0, "")
    assert checked.stdout.splitlines()[2:] == [
        "  due now   not counted within 1e-06 s",
        "  updates   not shown: no documents found within 1e-06 s",
    ]


def test_check_knows_a_system_by_its_name_and_its_index(tmp_path: Path) -> None:
    declare(tmp_path)
    env = {"QM_SYSTEMS": "trials"}
    assert queue_manager("migrate", cwd=tmp_path, PYTHONPATH=f"{ROOT}:{tmp_path}", **env).returncode == 0
    assert re.search(
        r"accounts\.qm_due_trial_ends_at_\w{8}  exists", systems(tmp_path, "check", "trial-end", **env).stdout
    )
    source = (tmp_path / "trials.py").read_text()
    (tmp_path / "trials.py").write_text(source.replace('{"status": "trial"}', '{"status": "trial", "kind": "a"}'))
    changed = systems(tmp_path, "check", "trial-end", **env).stdout
    assert re.search(r"accounts\.qm_due_trial_ends_at_\w{8}  missing", changed)
    assert re.search(r"accounts\.qm_due_trial_ends_at_\w{8}  unused", changed)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("pass", "trials.end_trial returned None, but it must return an update such as"),
    ],
)
def test_an_error_of_the_function_is_shown_with_its_document(body: str, said: str, tmp_path: Path) -> None:
    declare(tmp_path, body)
    collection("accounts").insert_one({"_id": "a", "status": "trial", "trial_ends_at": DUE})
    checked = systems(tmp_path, "check", "trials")
    assert checked.returncode == 1
    assert said in checked.stdout
    assert "Traceback" not in checked.stdout + checked.stderr


def test_an_update_that_would_be_refused_is_an_error(tmp_path: Path) -> None:
    declare(tmp_path, 'return {"$inc": {"times": 1}}')
    collection("accounts").insert_one({"_id": "a", "status": "trial", "trial_ends_at": DUE})
    checked = systems(tmp_path, "check", "trials")
    assert checked.returncode == 1
    assert "left the document due: its update must postpone or remove trial_ends_at" in checked.stdout
    assert "times" not in (collection("accounts").find_one() or {})


@pytest.mark.parametrize(
    ("target", "source", "said"),
    [
        ("trials", DECLARED.format(more="", function=""), "System 'trial-end' has no item function"),
        ("trials", DECLARED.format(more="page='/rooms'", function=""), "has no item function"),
        ("trials", DECLARED.format(more="fields='status'", function=""), "fields='status' must be a list of fields"),
        ("trials", SHARED_TASK, "System 'trial-end': 'trials.end_trial' is a plain Celery task: remove `@shared_task`"),
        ("trials", "1 / 0", "MODULE_OR_NAME: 'trials' cannot be imported (ZeroDivisionError: division by zero; "),
        ("trials", "", "MODULE_OR_NAME: 'trials' declares no System"),
        ("nonsense", "", "'nonsense' cannot be imported"),
        ("reviews_requests", "", "(did you mean review-requests?)"),
        ("no-such-system", "", "'no-such-system' must be a module, or one of support-snooze, "),
    ],
)
def test_a_wrong_declaration_is_refused_in_one_sentence_with_exit_code_2(
    target: str, source: str, said: str, tmp_path: Path
) -> None:
    (tmp_path / "trials.py").write_text(source)
    checked = systems(tmp_path, "check", target)
    assert checked.returncode == 2
    assert said in checked.stderr
    assert "Traceback" not in checked.stderr


def test_a_built_in_system_is_checked_too(tmp_path: Path) -> None:
    checked = systems(tmp_path, "check", "review-requests")
    assert checked.returncode == 0, checked.stderr
    assert checked.stdout.count("  exists") > 1


def test_systems_list_shows_which_systems_dispatch(tmp_path: Path) -> None:
    declare(tmp_path)
    pauses.pause("support-snooze", by="a test")
    env = {"QM_SYSTEMS": "trials", "QM_DRY_RUN": "trial-end"}
    listed = systems(tmp_path, "list", **env)
    rows = [line.split("  ") for line in listed.stdout.splitlines()]
    found = {row[0].strip(): [cell.strip() for cell in row[1:] if cell.strip()] for row in rows}
    assert found["support-snooze"] == ["paused", "10 s", "support-snooze", "/rooms"]
    assert found["review-requests"][0] == "off"
    assert found["trial-end"] == ["dry run", "10 s", "trial-end", "/systems/trial-end"]
    assert "\x1b[" not in listed.stdout


@pytest.mark.processes
def test_colours_are_for_terminals(clean: Servers) -> None:
    assert "\x1b[" in said_on_a_terminal([*COMMAND, "systems", "list"])


def test_pause_and_resume_name_the_system() -> None:
    pause = ("pause", "support-snooze", "--reason", "the provider is down \x1b[31m")
    assert invoke("systems", *pause).stdout == "support-snooze  paused\n"
    made = pauses.paused()["support-snooze"]
    assert (made.by, made.reason) == ("command line", "the provider is down \x1b[31m")
    listed = invoke("systems", "list").stdout
    assert "Paused: support-snooze since " in listed
    assert " by command line: the provider is down \\x1b[31m\n" in listed
    assert "\x1b" not in listed
    too_long = invoke("systems", "pause", "support-snooze", "--reason", "x" * 501)
    assert (too_long.returncode, too_long.stdout) == (2, "")
    assert invoke("systems", "resume", "support-snooze").stdout == "support-snooze  resumed\n"
    assert pauses.paused() == {}
    assert invoke("systems", "resume", "support-snooze").stdout == "support-snooze  was not paused\n"
    unknown = invoke("systems", "pause", "overdue-message")
    assert (unknown.returncode, unknown.stdout) == (2, "")
    assert "There is no system 'overdue-message' (did you mean overdue-messages?)" in unknown.stderr


def test_the_pause_of_a_system_that_was_removed_can_be_ended() -> None:
    pauses.pause("shop-trials", by="a test")
    assert "Paused: shop-trials since " in invoke("systems", "list").stdout
    assert invoke("systems", "resume", "shop-trials").stdout == "shop-trials  resumed\n"
    assert pauses.paused() == {}
    unknown = invoke("systems", "resume", "shop-trials")
    assert (unknown.returncode, unknown.stdout) == (2, "")
    assert "There is no system 'shop-trials'" in unknown.stderr


@pytest.mark.parametrize("command", ["pause", "resume"])
def test_a_system_without_items_names_the_command_that_pauses_its_types(command: str, clean: Servers) -> None:
    refused = invoke("systems", command, "overdue-messages")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr == (
        "queue-manager: The system overdue-messages dispatches no items, so it cannot be paused; "
        "pause its types with `queue-manager queue pause`\n"
    )


@pytest.mark.processes
def test_an_unavailable_server_is_reported_in_one_line(tmp_path: Path) -> None:
    declare(tmp_path)
    away = systems(tmp_path, "list", REDIS_URL="redis://:secret@127.0.0.1:1/0")
    assert away.returncode == 1
    assert "Redis at redis://***@127.0.0.1:1/0 does not answer" in away.stderr
    url = "mongodb://u:secret@127.0.0.1:1/db?serverSelectionTimeoutMS=300"
    away = systems(tmp_path, "check", "trials", MONGO_DB_URL=url)
    assert away.returncode == 1
    assert "MongoDB at mongodb://***@127.0.0.1:1/db" in away.stderr
    assert "secret" not in away.stderr
