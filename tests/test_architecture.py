"""Imports go down only: dev → web, cli → tasks → services → models → core."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# From top to bottom; a module may import what stands below it, and its own layer.
LAYERS = [
    ["dev"],
    [
        "queue_manager.alerts",
        "queue_manager.cli",
        "queue_manager.testing",
        "queue_manager.doctor",
        "queue_manager.web",
    ],
    ["queue_manager.operations"],
    ["queue_manager.health"],
    ["queue_manager.worker"],
    ["tasks", "queue_manager.batching", "queue_manager.server_calls"],
    ["beat_schedule"],
    ["services"],
    ["models"],
    [
        "queue_manager.system",
        "queue_manager.items",
        "queue_manager.leases",
        "queue_manager.pauses",
        "queue_manager.health_rules",
        "queue_manager.explanation",
    ],
    ["queue_manager.beat", "queue_manager.telemetry"],
    ["queue_manager.broker"],
    ["queue_manager.core"],
    ["queue_manager.client"],
]
OURS = ("tasks", "services", "models", "beat_schedule", "queue_manager", "dev")
FORBIDDEN = {
    "tasks": {"redis", "pymongo", "bson"},
    "services": {"celery", "kombu"},
    "models": {"celery", "kombu", "redis"},
}


def sources() -> Iterator[Path]:
    for name in OURS:
        path = ROOT / name
        found = [path.with_suffix(".py")] if not path.is_dir() else sorted(path.rglob("*.py"))
        yield from (one for one in found if "node_modules" not in one.parts)


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


@cache
def imports(path: Path) -> list[str]:
    found: list[str] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return found


def layer_of(module: str) -> int | None:
    """Return the number of the module's layer, 0 the top; `None` for a package that only holds others."""
    for number, prefixes in enumerate(LAYERS):
        if any(module == prefix or module.startswith(prefix + ".") for prefix in prefixes):
            return number
    return None


def test_every_module_has_a_layer() -> None:
    without = [module_of(path) for path in sources() if layer_of(module_of(path)) is None]
    assert without == ["queue_manager"]


def test_imports_go_down_only() -> None:
    upward = [
        f"{module} imports {imported}"
        for path in sources()
        if (own := layer_of(module := module_of(path))) is not None
        for imported in imports(path)
        if imported.startswith(OURS) and (theirs := layer_of(imported)) is not None and theirs < own
    ]
    assert upward == []


def test_each_layer_keeps_to_its_own_libraries() -> None:
    foreign = [
        f"{module_of(path)} imports {imported}"
        for path in sources()
        for imported in imports(path)
        if imported.split(".")[0] in FORBIDDEN.get(path.relative_to(ROOT).parts[0], ())
    ]
    assert foreign == []


def test_the_command_line_imports_nothing_of_the_web_process() -> None:
    """What both do is in `queue_manager.operations`; FastAPI would be a fifth of the time that a command takes."""
    importing = {
        (path.name, imported)
        for path in (ROOT / "queue_manager" / "cli").glob("*.py")
        for imported in imports(path)
        if imported.startswith("queue_manager.web")
    }
    assert importing == {("commands.py", "queue_manager.web.serve.serve")}


def test_the_client_imports_nothing_of_the_rest() -> None:
    """It is also a distribution of its own, with these dependencies only."""
    allowed = {*sys.stdlib_module_names, "httpx2", "msgspec"}
    others = {
        imported
        for path in (ROOT / "queue_manager" / "client").glob("*.py")
        for imported in imports(path)
        if imported.split(".")[0] not in allowed and not imported.startswith("queue_manager.client.")
    }
    assert others == set()


@pytest.mark.slow
def test_imports_of_tests_and_benchmarks_exist() -> None:
    """Those that start as programs of their own fail otherwise only where they are started."""
    missing = []
    for path in [*(ROOT / "tests").rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith(OURS):
                module = importlib.import_module(node.module)
                names = [alias.name for alias in node.names if not hasattr(module, alias.name)]
                missing += [
                    f"{path.name}: {node.module}.{name}"
                    for name in names
                    if importlib.util.find_spec(f"{node.module}.{name}") is None
                ]
    assert missing == []


def test_importing_the_tasks_opens_no_connection_and_reads_no_settings() -> None:
    program = (
        "import socket, sys\n"
        "socket.socket.connect = lambda *_: sys.exit('connected')\n"
        "from tasks.support_snooze import unsnooze_room\n"
        "assert 'tasks.celeryconfig' not in sys.modules, 'settings were read'\n"
    )
    env = {"PATH": "", "MONGO_DB_URL": "nonsense", "PYTHONPATH": str(ROOT)}
    result = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, cwd="/")
    assert result.returncode == 0, result.stderr
