"""The rules of health: command, overview, metrics and probe name the same problems, until they are solved."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from beat_schedule import SYSTEMS
from dev.ports import free_port
from models import database, scan_run, schema, subscription
from models.database import server_now
from queue_manager.core.clock import seconds
from queue_manager.health_rules import Rule
from services.support_snooze import system as support_snooze
from tests.e2e.celery_processes import ROOT, TESTS
from tests.e2e.commands import COMMAND, environment
from tests.e2e.health_command import LOOKS, SLOW, Answer, health, said, taken_room
from tests.eventually import eventually
from tests.job_lab import Lab
from tests.real_servers import Servers
from tests.rooms import make_room
from tests.web.web_process import web

pytestmark = pytest.mark.processes

JOBS = {"QM_JOBS": "true", "JOBS_TIMER_MS": "60000"}  # jobs that wait for their next attempt do not lag
LAG, FAILING = ("support-snooze", "lag"), ("job-queues", "failing-jobs")


def fail() -> None:
    raise ValueError("no such address")


def test_overdue_room_and_failing_jobs_are_problems(well: Servers, tmp_path: Path) -> None:
    held = taken_room(due_ago=334)
    lab = Lab(server_now)
    lab.works = {"mail": lambda *_, run: fail()}
    for _ in range(5):
        lab.run("mail")
    lab.run_through("mail")
    answer = health(tmp_path, **JOBS)
    assert (answer.exit_code, answer.ids) == (1, [LAG, FAILING])
    assert answer.problems == [
        f"The oldest due item has waited 6 min, more than 30 s ({held.args[0]})",
        "5 failing jobs: mail (5)",
    ]
    shown = said(tmp_path, **JOBS)
    assert "no problems" not in shown
    assert "support-snooze, lag: The oldest due item" in shown
    assert Rule.FAILING_JOBS.action in shown
    with web(tmp_path, **JOBS) as process:
        for look in LOOKS:
            assert look(process) == [LAG, FAILING]
        assert process.get("/readyz").status == 200
        lab.jobs.clear(["failure"])
        database.collection("support_rooms").delete_many({})
        for look in LOOKS:
            assert eventually(lambda look=look: look(process) == [])
    assert (health(tmp_path, **JOBS).problems, said(tmp_path, **JOBS)[-12:]) == ([], "no problems\n")


# Servers and processes


@pytest.fixture
def without_an_index(well: Servers) -> Iterator[Servers]:
    for name, indexes in support_snooze.collections().items():
        for index in indexes:
            database.collection(name).drop_index(index.document["name"])
    yield well
    schema.migrate(SYSTEMS)


@pytest.mark.smoke
def test_a_missing_index_is_one_problem_that_names_the_command(without_an_index: Servers, tmp_path: Path) -> None:
    make_room(server_now() - seconds(5))
    problem = health(tmp_path, **SLOW).only_problem("support-snooze", Rule.MISSING_INDEXES)
    names = [index.document["name"] for some in support_snooze.collections().values() for index in some]
    assert any(f"support_rooms.{name}" in problem for name in names)
    assert "queue-manager migrate" in Rule.MISSING_INDEXES.action


@pytest.mark.parametrize(
    ("setting", "url", "system"),
    [
        ("MONGO_DB_URL", "mongodb://app:s3cret@127.0.0.1:{port}/product", "mongodb"),
        ("REDIS_URL", "redis://:s3cret@127.0.0.1:{port}/0", "redis"),
        ("BROKER_URL", "redis://:s3cret@127.0.0.1:{port}/0", "broker"),
    ],
)
def test_an_unavailable_server_is_a_problem(setting: str, url: str, system: str, well: Servers, tmp_path: Path) -> None:
    answer = health(tmp_path, **{setting: url.format(port=free_port())}, **SLOW)
    assert answer.exit_code == 1
    assert (system, "server-away") in answer.ids
    assert "s3cret" not in str(answer.state)


def test_a_server_that_could_lose_messages_is_a_problem(well: Servers, tmp_path: Path) -> None:
    with redis.Redis.from_url(well.valkey.url) as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
        try:
            answer = health(tmp_path, **SLOW)
        finally:
            client.config_set("maxmemory-policy", "noeviction")
    assert ("redis", "server-unsuitable") in answer.ids
    assert answer.exit_code == 1


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("shift", "text"), [(3600, "this machine is 3[56]"), (-3600, "(Redis|MongoDB) is 3[56].* of this machine")]
)
def test_a_wrong_clock_is_a_problem(shift: int, text: str, well: Servers, tmp_path: Path) -> None:
    path = f"{TESTS / 'shifted_clock'}:{ROOT}"
    env = environment(**SLOW, PYTHONPATH=path, SHIFTED_CLOCK_SECONDS=str(shift))
    # Not forked: the modules of a fork have imported the clock before it is shifted.
    run = subprocess.run([*COMMAND, "health", "--json"], cwd=tmp_path, env=env, capture_output=True, text=True)
    answer = Answer(run.returncode, json.loads(run.stdout))
    assert answer.exit_code == 1
    (problem,) = [one["text"] for one in answer.state["problems"] if one["rule"] == "clocks-apart"]
    assert re.search(text, problem)


# Settings and documents


def test_settings_without_effect_are_one_problem(well: Servers, tmp_path: Path) -> None:
    env = {"QM_CONVERSATONS": "true", "QM_PROJECT": "true", **SLOW}
    problem = health(tmp_path, **env).only_problem("settings", Rule.SETTINGS_WARNING)
    assert "QM_CONVERSATONS" in problem
    assert "QM_PROJECT" in problem


def test_subscriptions_without_a_readable_date_are_a_problem(well: Servers, tmp_path: Path) -> None:
    plan = {"metadata": {"product_type": "seo"}}
    made = subscription.subscriptions().insert_one({"account": 1, "status": "active", "plan": plan, "created_at": "?"})
    env = {"QM_PROJECTS": "true", "QM_CONVERSATIONS": "false", **SLOW}
    problem = health(tmp_path, **env).only_problem("review-requests", Rule.UNREADABLE_DOCUMENTS)
    assert problem == f"1 subscription without a readable created_at: {made.inserted_id}"


def test_errors_of_the_last_scan_are_a_problem(well: Servers, tmp_path: Path) -> None:
    run = {"found": 0, "claimed": 0, "enqueued": 0, "errors": 2, "duration_ms": 1}
    scan_run.record(support_snooze.scan_task, run, error="boom", now=server_now() + seconds(30))
    problem = health(tmp_path, **SLOW).only_problem("support-snooze", Rule.SCAN_ERRORS)
    assert problem == "The last scan had 2 errors: boom"
