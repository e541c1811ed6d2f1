"""The table of checks: every health rule belongs to one check, every command is known, and the page has the table."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import product
from pathlib import Path

import pytest
from redis.commands.core import CoreCommands

from beat_schedule import SYSTEMS
from models import deployment
from models.schema import SHARED_INDEXES
from queue_manager.doctor import installation, mongodb, redis_keys
from queue_manager.doctor.checks import CHECKS
from queue_manager.doctor.redis_servers import COMMANDS
from queue_manager.health_rules import Problem, Rule
from queue_manager.telemetry.worker_heartbeats import is_same_database, own_broker
from tests.documented import block

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "doctor.md"
DATA_PAGE = ROOT / "docs" / "reference" / "data.md"
CALL = re.compile(r"redis\.p?call\('([A-Z]+)'")
METHODS = {
    name: {"delete": "DEL"}.get(name, name.removesuffix("_iter").partition("_")[0].upper())
    for name in dir(CoreCommands)
    if not name.startswith(("_", "execute"))
}
"""The command of each method of redis-py."""


def test_every_health_problem_belongs_to_one_check() -> None:
    for component, rule in product(["mongodb", "redis", "broker"], Rule):
        problem = Problem(system=component, rule=rule, text="")
        assert len([check for check in CHECKS if check.covers(problem)]) == 1, (component, rule)


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


def test_documents_are_kept_as_long_as_the_page_says() -> None:
    kept = {
        name: timedelta(seconds=index.document["expireAfterSeconds"])
        for own in (SHARED_INDEXES, *(system.read_collections() for system in SYSTEMS))
        for name, indexes in own.items()
        for index in indexes
        if index.document.get("expireAfterSeconds")  # zero: the document contains when it expires
    }
    rows = re.findall(r"^\| `(\w+)` \| .* (\d+) (hours|days)[^|]* \|$", DATA_PAGE.read_text(), re.MULTILINE)
    documented = {name: timedelta(**{unit: int(number)}) for name, number, unit in rows}
    assert kept.keys() == {"qm_failed_items", "qm_marks", "scan_runs", "thumbnail_resets"}
    assert {name: documented[name] for name in kept} == kept


@pytest.fixture(scope="module")
def used_commands() -> set[str]:
    """The commands of our Lua scripts, and those that we call by methods of redis-py."""
    folders = [ROOT / name for name in ("queue_manager", "services", "models", "tasks")]
    # `adopt` reads the keys of other programs, with a user that may do so.
    sources = [one for folder in folders for one in folder.rglob("*.py") if one.stem not in ("adopt", "adoption")]
    scripts = [*sources, *(one for folder in folders for one in folder.rglob("*.lua"))]
    found = {command for one in scripts for command in CALL.findall(one.read_text("utf-8"))}
    for one in sources:
        found.update(called_commands(ast.parse(one.read_text("utf-8"))))
    return found


def called_commands(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(attr="execute_command" | "send_command"), args=[ast.Constant(value), *_]):
                yield str(value)
            case ast.Call(func=ast.Attribute(value=receiver, attr=name)) if name in METHODS and is_client(receiver):
                yield METHODS[name]


def is_client(node: ast.expr) -> bool:
    """Return True for a client or a pipeline by its name, and for the result of a command in a pipeline."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name.strip("_") in ("client", "pipe", "pipeline", "get_redis")
        case ast.Call(func=ast.Attribute(value=value, attr=name)) if name in METHODS and is_client(value):
            return True
        case ast.Call(func=called):
            return is_client(called)
    return False


def test_every_command_is_among_those_that_are_checked(used_commands: set[str]) -> None:
    assert len(used_commands) > 50
    assert used_commands - {name.split()[0] for name in COMMANDS} == {"PUBLISH"}  # checked with each channel


def test_every_command_is_among_those_of_the_documented_user(used_commands: set[str]) -> None:
    documented = re.findall(r"\+(\w+)", block(0, heading="A Redis user with least privilege"))
    assert used_commands - {name.upper() for name in documented} == set()


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


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://user:s3cret@cache.test:6379/2", "cache.test:6379/2"),
        ("rediss://cache.test", "cache.test/0"),
        ("sentinel://:s3cret@a.test:26379,b.test/0?master_name=m", "a.test:26379,b.test/0"),
        ("unix:///run/redis.sock?db=0", None),
    ],
)
def test_a_worker_reports_its_broker_without_credentials(
    url: str, expected: str | None, change_settings: Callable[..., None]
) -> None:
    change_settings(BROKER_URL=url)
    assert own_broker() == expected
