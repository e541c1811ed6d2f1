"""The table of checks: every health rule belongs to one check, every command is known, and the page has the table."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from models import deployment
from queue_manager import redis_keys
from queue_manager.doctor import installation, mongodb
from queue_manager.doctor.checks import CHECKS
from queue_manager.doctor.redis_servers import COMMANDS
from queue_manager.health_rules import Problem, Rule
from queue_manager.telemetry.worker_heartbeats import is_same_database

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "doctor.md"
DATA_PAGE = ROOT / "docs" / "reference" / "data.md"
CALL = re.compile(r"redis\.p?call\('([A-Z]+)'")


@pytest.mark.parametrize("rule", Rule, ids=lambda rule: rule.id)
@pytest.mark.parametrize("component", ["mongodb", "redis", "broker"])
def test_every_health_problem_belongs_to_one_check(rule: Rule, component: str) -> None:
    problem = Problem(system=component, rule=rule, text="")
    assert len([check for check in CHECKS if check.covers(problem)]) == 1


def test_a_check_depends_on_checks_before_it_or_on_its_own_server() -> None:
    names = [check.name for check in CHECKS]
    for check in CHECKS:
        assert {*check.needs} <= {*names[: names.index(check.name) + 1]}


def test_the_page_has_the_same_table() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    assert [row.split(" | ")[:2] for row in rows] == [[f"| `{check.name}`", check.statement] for check in CHECKS]


def test_the_keys_that_are_checked_have_the_types_of_the_reference(change_settings: Callable[..., None]) -> None:
    change_settings(QM_MESSAGE_QUEUE="true")
    (types,) = redis_keys.types().values()

    rows = [line.split(" | ")[:2] for line in DATA_PAGE.read_text().splitlines() if line.startswith("| `q")]
    documented = {key: kinds for names, kinds in rows for key in re.findall("`([^`]+)`", names)}
    fixed = {key: kinds for key, kinds in documented.items() if key in types}
    assert len(fixed) > 30
    for key, kinds in fixed.items():
        assert redis_keys.type_name(types[key]) in kinds.replace("streams", "stream").replace("hashes", "hash")


def test_every_command_of_our_scripts_is_among_those_that_are_checked() -> None:
    sources = [*ROOT.glob("services/**/*.lua"), *ROOT.glob("services/**/*.py"), *ROOT.glob("queue_manager/**/*.py")]
    called = {command for source in sources for command in CALL.findall(source.read_text())}
    assert called - COMMANDS.keys() == {"PUBLISH"}  # checked with each channel


def test_a_mongodb_that_is_too_old_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deployment, "server_version", lambda: "5.0.31")
    (finding,) = mongodb.version()
    assert getattr(finding, "text", "") == "MongoDB is version 5.0.31, and must be 6.0 or newer"


def test_a_dependency_of_another_version_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["redis>=999", "no-such-package>=1", "celery", 'sentry-sdk>=1; extra == "sentry"']
    monkeypatch.setattr(installation, "requires", lambda _: lines)
    texts = [getattr(finding, "text", "") for finding in installation.versions()]
    assert len(texts) == 2
    assert re.fullmatch(r"redis is [\d.]+, and must be >=999", texts[0])
    assert texts[1] == "no-such-package is not installed, and must be >=1"


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("a,b:27018/app", "b:27018,c/app", True),
        ("Mongo.test/app", "mongo.test:27017/app", True),
        ("a,b/app", "a,b/staging", False),
        ("a:27018/app", "a:27019/app", False),
        ("a/app", "b/app", False),
    ],
)
def test_databases_are_the_same_with_one_name_and_a_common_host(one: str, other: str, expected: bool) -> None:
    assert is_same_database(one, other) is expected
