"""The distributions of this release and an installation of its wheel, made by the commands of the documentation."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.deployment.installation import ROOT, Installation
from tests.documented import DOCS, block

LEFT_BY_BUILDS = shutil.ignore_patterns(".*", "*.egg-info", "build", "dist", "node_modules", "__pycache__")
_BUILD, *_INSTALL = block(0, page=DOCS / "how-to" / "deploy.md").splitlines()
DOCUMENTED = "/opt/queue-manager-0.3.0"


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of a copy of the working tree, without what earlier builds left there.

    The source distribution and the archives of the client are next to it.
    """
    copy = tmp_path_factory.mktemp("source") / "queue-manager"
    shutil.copytree(ROOT, copy, symlinks=True, ignore=LEFT_BY_BUILDS)
    (copy / ".venv").symlink_to(sys.prefix)
    execute(f"{_BUILD} --old-file=.venv/.installed-dev", copy)  # which would make an environment for the copy
    (wheel,) = (copy / "dist").glob("queue_manager-*.whl")
    return wheel


@pytest.fixture(scope="session")
def installation(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installation:
    """An installation that has shown its version."""
    venv = tmp_path_factory.mktemp("installed") / "new"
    for command in _INSTALL:
        execute(command.replace(DOCUMENTED, str(venv)), wheel.parents[1])
    return Installation(venv, ROOT)


def execute(command: str, directory: Path) -> None:
    """Run a command as the page shows it, with nothing of the repository on Python's path."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command.removeprefix("$ "), shell=True, cwd=directory, env=env, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
