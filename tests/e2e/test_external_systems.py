"""A system that is declared outside the repository and named by `QM_SYSTEMS`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from models.database import collection, server_now
from queue_manager.core.clock import seconds
from tests.e2e.celery_processes import QUICK_START, CeleryProcess
from tests.e2e.commands import COMMAND, environment, queue_manager
from tests.eventually import eventually
from tests.real_servers import Servers
from tests.web.web_process import Web, web

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[2]
EXAMPLE = Path(__file__).parent / "billing_trials.py"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the package `billing`."""
    directory = tmp_path_factory.mktemp("others")
    (directory / "billing").mkdir()
    (directory / "billing" / "trials.py").write_text(EXAMPLE.read_text())
    return directory


@pytest.fixture(scope="module")
def env(directory: Path) -> dict[str, str]:
    return {"PYTHONPATH": f"{ROOT}:{directory}", "QM_SYSTEMS": "billing.trials", "QM_HOOKS": "true"}


@pytest.fixture
def process(clean: Servers, env: dict[str, str], tmp_path: Path) -> Iterator[Web]:
    with web(tmp_path, **env) as process:
        yield process


def add_trial() -> str:
    return str(collection("trials").insert_one({"ends_at": server_now() - seconds(1)}).inserted_id)


def test_the_web_process_shows_an_external_system_everywhere(process: Web) -> None:
    trial = add_trial()
    page = process.get("/systems/trial-end")
    assert page.status == 200
    assert "<h1>Trials</h1>" in page.text
    assert "Trial accounts, expired when their trial is over." in page.text
    assert '<a href="/systems/trial-end" aria-current="page">Trials</a>' in page.text
    assert '<a href="/systems/trial-end">Trials</a>' in process.get("/rooms").text
    (shown,) = [one for one in process.get("/api/overview").body["systems"] if one["name"] == "trial-end"]
    assert (shown["title"], shown["page"], shown["is_on"], shown["due"]) == ("Trials", "/systems/trial-end", True, 1)
    entry = process.get("/api/schedule").body["entries"][-1]
    assert (entry["task"], entry["period_seconds"]) == ("billing.trials.scan_trials", 1)
    assert entry["trigger"] == "/api/trigger/systems/trial-end"
    assert [item["id"] for item in process.get("/api/systems/trial-end/items").body["items"]] == [trial]
    metrics = process.get("/metrics").text
    assert 'queue_manager_due{system="trial-end"} 1.0' in metrics
    assert 'queue_manager_queue_messages{queue="trials"} 0.0' in metrics
    assert 'queue_manager_scan_runs_total{system="trial-end"} 0.0' in metrics


HANGING = """
import time
from datetime import timedelta
from queue_manager.system import System
from tasks import app


@app.task(name="hanging.scan")
def scan() -> dict:
    return {}


system = System(
    name="hanging",
    title="Hanging",
    description="A system whose statistics never come.",
    every=timedelta(seconds=5),
    scan_task="hanging.scan",
    stats=lambda: time.sleep(600),
)
"""


def test_hanging_stats_do_not_delay_other_systems(clean: Servers, tmp_path: Path) -> None:
    (tmp_path / "hanging.py").write_text(HANGING)
    with web(tmp_path, PYTHONPATH=f"{ROOT}:{tmp_path}", QM_SYSTEMS="hanging", QM_CONVERSATIONS="true") as process:
        metrics = process.get("/metrics").text
        overview = {one["name"]: one for one in process.get("/api/overview").body["systems"]}
    assert 'queue_manager_pending{system="support-snooze"} 0.0' in metrics
    assert 'queue_manager_problem{rule="unknown-state",severity="critical",system="hanging"} 1.0' in metrics
    assert overview["support-snooze"]["due"] == 0
    assert "unknown-state" in [problem["rule"] for problem in overview["hanging"]["problems"]]


def test_items_and_scans_of_an_external_system_are_started_manually_and_executed(
    process: Web, env: dict[str, str], tmp_path: Path
) -> None:
    trial = add_trial()
    assert process.post(f"/api/systems/trial-end/items/{trial}/retry").status == 202
    assert 'queue_manager_queue_messages{queue="trials"} 1.0' in process.get("/metrics").text
    with CeleryProcess(tmp_path / "worker.log", "worker", *QUICK_START, "-P", "threads", env=env):
        eventually(lambda: collection("trials").count_documents({}) == 0)
        add_trial()
        assert process.post("/api/trigger/systems/trial-end").status == 202
        eventually(lambda: collection("trials").count_documents({}) == 0)


@pytest.mark.smoke
def test_beat_scans_an_external_system(clean: Servers, env: dict[str, str], tmp_path: Path) -> None:
    with (
        CeleryProcess(tmp_path / "worker.log", "worker", *QUICK_START, "-P", "threads", env=env),
        CeleryProcess(tmp_path / "beat.log", "beat", env=env),
    ):
        add_trial()
        eventually(lambda: collection("trials").count_documents({}) == 0)


@pytest.mark.smoke
def test_commands_know_an_external_system(clean: Servers, env: dict[str, str], tmp_path: Path) -> None:
    migrated = queue_manager("migrate", cwd=tmp_path, **env)
    assert migrated.returncode == 0, migrated.stderr
    assert "ended_trials" in collection("trials").index_information()
    add_trial()
    scan = queue_manager("scan", "trial-end", cwd=tmp_path, **env)
    assert scan.returncode == 0, scan.stderr
    assert json.loads(scan.stdout).items() >= {"found": 1, "enqueued": 1, "errors": 0}.items()
    health: Any = json.loads(queue_manager("health", "--json", cwd=tmp_path, **env).stdout)
    assert health["systems"]["trial-end"] == {"due": 1}
    assert health["scans"]["trial-end"]["enqueued"] == 1


def test_tasks_of_an_external_system_have_our_settings_if_the_registry_is_read_first(
    env: dict[str, str], tmp_path: Path
) -> None:
    """The registry is then finalized before the configuration is read, which imports the module."""
    program = (
        "from tasks import app\n"
        "assert app.tasks\n"
        "app.loader.import_default_modules()\n"
        "assert app.tasks['billing.trials.end_trial'].acks_late\n"
        "assert 'trials' in app.amqp.queues\n"
        "assert 'trial-end' in app.conf.beat_schedule\n"
    )
    command = [sys.executable, "-c", program]
    result = subprocess.run(command, env=environment(**env), cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


WRONG = """
from datetime import timedelta
from queue_manager import System
wrong = System(name="wrong", title="", description="", every=timedelta(seconds=1), scan_task="wrong.scan"{more})
"""
WEB = [*COMMAND, "web", "--port", "1"]
CELERY = [sys.executable, "-m", "celery", "-A", "tasks"]


def refused(command: list[str], source: str, directory: Path) -> str:
    """Return what a command says that does not start."""
    (directory / "wrong.py").write_text(source)
    env = environment(QM_SYSTEMS="wrong", PYTHONPATH=f"{ROOT}:{directory}")
    result = subprocess.run(command, env=env, cwd=directory, capture_output=True, text=True)
    assert result.returncode in (1, 2), result.stderr
    assert "Traceback" not in result.stderr
    return result.stderr


@pytest.mark.parametrize(
    "command",
    [WEB, [*COMMAND, "migrate"], [*COMMAND, "health"], [*CELERY, "worker"], [*CELERY, "beat"], [*CELERY, "flower"]],
    ids=lambda command: " ".join(command[-2:]),
)
def test_a_wrong_declaration_stops_each_process_with_one_sentence(
    command: list[str], clean: Servers, tmp_path: Path
) -> None:
    said = refused(command, WRONG.format(more=", queue='jobs'"), tmp_path)
    assert "System 'wrong': queue='jobs' is taken by 'job-queues'" in said


def test_an_error_in_the_period_of_a_system_ends_beat_with_one_sentence(clean: Servers, tmp_path: Path) -> None:
    source = WRONG.format(more="").replace("timedelta(seconds=1)", "lambda chosen: {}['BILLING_SECONDS']")
    said = refused([*CELERY, "beat"], source, tmp_path)
    assert said == "Error: invalid settings:\nSystem 'wrong': `every` raised KeyError: 'BILLING_SECONDS'\n"


@pytest.mark.parametrize(
    "command",
    [WEB, [*CELERY, "worker"], [*COMMAND, "scan", "wrong"], [*COMMAND, "systems", "check", "wrong"]],
    ids=["web", "worker", "scan", "check"],
)
@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("", "System 'wrong': no task 'wrong.scan' is registered"),
        (", at='61 * * * *'", "System 'wrong': at='61 * * * *' must be a cron expression"),
    ],
)
def test_unusable_tasks_stop_processes_that_send_or_execute_tasks(
    command: list[str], more: str, said: str, clean: Servers, tmp_path: Path
) -> None:
    assert said in refused(command, WRONG.format(more=more), tmp_path)
