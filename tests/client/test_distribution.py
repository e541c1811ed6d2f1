"""`queue-manager-client`: its wheel, alone in an empty environment, talks to a real web process."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.client.clients import url_of
from tests.web.credentials import OPERATOR
from tests.web.queue_client import Queue

ROOT = Path(__file__).parents[2]
PROGRAM = """
import importlib.util, sys
from queue_manager.client import Client

others = ("celery", "redis", "pymongo", "fastapi", "pydantic", "services")
assert [name for name in others if importlib.util.find_spec(name)] == []
assert importlib.util.find_spec("queue_manager").origin is None  # a namespace package
with Client(sys.argv[1], api_key=sys.argv[2]) as client:
    client.messages.enqueue("mail", {"to": "ada@example.org"})
    with client.messages.dequeue() as message:
        print(message.payload["to"])
"""


def project(path: Path) -> dict[str, object]:
    found: dict[str, object] = tomllib.loads((path / "pyproject.toml").read_text())["project"]
    return found


def test_both_distributions_have_one_version() -> None:
    assert project(ROOT / "clients" / "python")["version"] == project(ROOT)["version"]


def test_an_import_without_the_extra_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("queue_manager.client")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "httpx2", None)  # as if it were not installed
    with pytest.raises(ModuleNotFoundError, match=r"run pip install 'queue-manager\[client\]'"):
        importlib.import_module("queue_manager.client")


@pytest.mark.processes
def test_the_wheel_works_alone(queue: Queue, tmp_path: Path) -> None:
    source, environment = tmp_path / "source", tmp_path / "environment"
    shutil.copytree(ROOT / "clients" / "python", source)  # with what its links point to
    run(sys.executable, "-m", "venv", "--without-pip", environment)
    python, constraints = environment / "bin" / "python", ROOT / "constraints.txt"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--constraint", constraints, source)
    assert run(python, "-c", PROGRAM, url_of(queue.web.port), OPERATOR, cwd=tmp_path) == "ada@example.org\n"


def run(*command: str | Path, cwd: Path | None = None) -> str:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    result = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=240)
    assert result.returncode == 0, result.stderr
    return result.stdout
