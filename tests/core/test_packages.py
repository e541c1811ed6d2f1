"""Packages of the user that shadow ours are named in one sentence when a process starts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.parametrize("package", ["models", "services", "beat_schedule"])
@pytest.mark.parametrize(
    "command",
    [
        ["-c", "from queue_manager.cli import main; main()", "health"],
        ["-m", "celery", "-A", "tasks", "worker"],
        ["-m", "celery", "-A", "tasks", "beat"],
        ["-c", "from queue_manager import DueDocuments"],
    ],
    ids=["command", "worker", "beat", "import"],
)
def test_package_that_shadows_ours_is_named(package: str, command: list[str], tmp_path: Path) -> None:
    (tmp_path / package).mkdir()
    (tmp_path / package / "__init__.py").touch()
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"}

    run = subprocess.run([sys.executable, *command], env=env, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert run.returncode != 0
    hidden = tmp_path / package / "__init__.py"
    assert f"Python imports {package!r} from {hidden} instead of {ROOT}: rename that package" in run.stderr
    assert ("Traceback" in run.stderr) == (command[-1] == "from queue_manager import DueDocuments")
