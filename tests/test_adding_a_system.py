"""The pages on adding a system, followed like a new user would: their code is written to files and executed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from dev.site.markdown import without_comments
from models.database import collection
from queue_manager import leases_of
from tests.real_servers import Servers

ROOT = Path(__file__).parents[1]
PAGE, OWN_SCAN, TUTORIAL = [
    (ROOT / "docs" / name).read_text() for name in ("adding-a-system.md", "own-scan.md", "tutorial.md")
]
README = (ROOT / "README.md").read_text()
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
DUE = datetime(2026, 1, 31, tzinfo=UTC)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The user's directory with the files of the pages: a block without a path continues the one before it."""
    directory = tmp_path_factory.mktemp("user")
    path = directory
    for kind, code in BLOCK.findall(PAGE + OWN_SCAN):
        if kind != "python":
            continue
        if named := re.match(r"# (\S+\.py)\n", code):
            path = directory / named[1]
            path.parent.mkdir(exist_ok=True)
        with path.open("a") as file:
            file.write(code + "\n")
    return directory


def run(command: list[str], directory: Path, **env: str) -> subprocess.CompletedProcess[str]:
    paths = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONPATH": f"{ROOT}:{directory}"}
    env = {**os.environ, **paths, "COLUMNS": "200", **env}
    return subprocess.run(command, cwd=directory, env=env, capture_output=True, text=True)


def run_tests(file: str, directory: Path) -> None:
    """Run the one test of a file, and check that it passed."""
    done = run([sys.executable, "-m", "pytest", "-q", "-p", "queue_manager.testing", file], directory)
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout


def test_the_page_is_short_and_all_its_code_is_executed() -> None:
    assert len(without_comments(PAGE).splitlines()) <= 120
    for page in (PAGE, OWN_SCAN):
        assert {kind for kind, _ in BLOCK.findall(page)} <= {"python", "bash"}
        assert page.count("```") == 2 * len(BLOCK.findall(page))


def test_readme_and_tutorial_show_the_system_that_is_executed_here() -> None:
    """`directory` writes the page's first block to a file; the other two pages must have the same text."""
    declaration = next(code for kind, code in BLOCK.findall(PAGE) if kind == "python")
    assert [code for kind, code in BLOCK.findall(README) if kind == "python"] == [declaration]
    assert declaration.replace("# billing", "# ~/trial/billing") in TUTORIAL
    assert len(README.splitlines()) <= 150


@pytest.mark.slow
def test_the_commands_check_it_and_create_its_index(clean: Servers, directory: Path) -> None:
    (commands,) = [code for kind, code in BLOCK.findall(PAGE) if kind == "bash"]
    collection("accounts").drop_indexes()
    collection("accounts").insert_one({"_id": "a", "status": "trial", "trial_ends_at": DUE})

    done = run(["bash", "-ec", commands], directory)

    assert done.returncode == 0, done.stderr
    assert re.search(r"accounts\.qm_due_trial_ends_at_\w{8}  missing", done.stdout)
    assert '{"$set": {"status": "expired"}}' in done.stdout
    assert any(name.startswith("qm_due_trial_ends_at_") for name in collection("accounts").index_information())
    assert collection("accounts").find_one() == {"_id": "a", "status": "trial", "trial_ends_at": DUE}


@pytest.mark.slow
def test_a_type_checker_accepts_the_code_of_the_pages_and_knows_its_types(directory: Path) -> None:
    (directory / "typed.py").write_text(
        "from typing import assert_type\n"
        "from billing.trial_end import end_trial\n"
        "assert_type(end_trial({}), dict)\n"
        "end_trial(1)  # type: ignore[arg-type]\n"
    )
    command = "mypy --check-untyped-defs --warn-unused-ignores --follow-imports=silent -p billing -m typed"

    done = run([sys.executable, "-m", *command.split()], directory, MYPYPATH=f"{ROOT}:.")

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_test_of_the_page_passes(clean: Servers, directory: Path) -> None:
    run_tests("test_trial_end.py", directory)


@pytest.mark.slow
def test_repeating_work_is_executed_once_for_missed_dates(clean: Servers, directory: Path) -> None:
    (directory / "test_invoices.py").write_text(
        "from datetime import UTC, datetime, timedelta\n"
        "from billing.trial_end import invoices\n"
        "def test_invoices(run_system):\n"
        "    due = datetime(2026, 1, 31, tzinfo=UTC)\n"
        "    one = run_system(invoices, {'next_invoice_at': due}, now=due + timedelta(days=95)).document\n"
        "    assert (one['invoices'], one['next_invoice_at']) == (1, due + timedelta(days=120))\n"
    )
    run_tests("test_invoices.py", directory)


@pytest.mark.slow
def test_a_scan_of_your_own_dispatches_under_leases(clean: Servers, directory: Path) -> None:
    long_ago = datetime.now(UTC) - timedelta(days=15)
    collection("invoices").insert_many([{"sent_at": long_ago}, {"sent_at": long_ago, "reminded": True}])
    scans = [run(["queue-manager", "scan", "reminders"], directory, QM_SYSTEMS="billing.reminders") for _ in range(2)]
    assert [json.loads(scan.stdout)["enqueued"] for scan in scans] == [1, 0], scans[0].stderr
    executed = run(
        [
            *(sys.executable, "-c"),
            "from tasks import app; app.loader.import_default_modules()\n"
            "from queue_manager import collection, id_text\n"
            "one = collection('invoices').find_one({'reminded': None})\n"
            "app.tasks['billing.reminders.remind'](id_text(one['_id']), '2026-01-31T00:00:00Z')",
        ],
        directory,
        QM_SYSTEMS="billing.reminders",
    )
    assert executed.returncode == 0, executed.stderr
    assert collection("invoices").count_documents({"reminded": True}) == 2


@pytest.mark.slow
def test_an_item_of_a_scan_of_your_own_cools_down_after_its_last_attempt(clean: Servers, directory: Path) -> None:
    collection("invoices").insert_one({"sent_at": datetime.now(UTC) - timedelta(days=15)})
    run(["queue-manager", "scan", "reminders"], directory, QM_SYSTEMS="billing.reminders")
    executed = run(
        [
            *(sys.executable, "-c"),
            "import billing.reminders\n"
            "from tests.tasks.hand_worker import run, take\n"
            "billing.reminders.collection = lambda name: 1 / 0\n"
            f"print([type(run(take({clean.valkey.url!r}, 'reminders'))).__name__ for _ in range(3)])",
        ],
        directory,
        QM_SYSTEMS="billing.reminders",
    )
    assert executed.stdout == "['Retry', 'Retry', 'ZeroDivisionError']\n", executed.stderr
    counts = leases_of("reminders").stats()
    assert (counts.in_progress, counts.cooling, counts.ended) == (0, 1, 0)
