"""The rules of health that need other servers, clocks or settings, as `queue-manager health` names them."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest

from beat_schedule import SYSTEMS
from dev.ports import free_port
from models import database, schema
from models.database import server_now
from queue_manager.core.clock import seconds
from queue_manager.health import readings
from queue_manager.health_rules import Rule
from services.support_snooze import system as support_snooze
from tests.e2e.celery_processes import ROOT, TESTS
from tests.e2e.commands import COMMAND, environment
from tests.e2e.health_command import SLOW, Answer, health
from tests.real_servers import Servers
from tests.rooms import make_room

pytestmark = pytest.mark.processes

# Servers


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
    answer.only_problem(system, Rule.SERVER_AWAY)
    assert "s3cret" not in str(answer.state)


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


def test_the_time_of_a_call_is_not_a_difference_of_clocks() -> None:
    def clock(apart: timedelta) -> datetime:
        return datetime.now(UTC) + apart

    assert readings._timed(partial(clock, seconds(0)))[1] == seconds(0)
    for apart in (seconds(60), seconds(-60)):
        _, ahead = readings._timed(partial(clock, apart))
        assert abs(ahead) <= seconds(60)
        assert ahead / apart > 0


# Settings


def test_settings_without_effect_are_one_problem(well: Servers, tmp_path: Path) -> None:
    env = {"QM_CONVERSATONS": "true", "QM_PROJECT": "true", **SLOW}
    problem = health(tmp_path, **env).only_problem("settings", Rule.SETTINGS_WARNING)
    assert "QM_CONVERSATONS" in problem
    assert "QM_PROJECT" in problem
