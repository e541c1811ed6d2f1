"""The distributions of this release, and an environment with its wheel: built once for all tests of a process."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.deployment.installation import ROOT, Installation, build, install


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of a copy of the working tree, without what earlier builds left there; the sdist is next to it."""
    copy = tmp_path_factory.mktemp("source") / "queue-manager"
    left_by_builds = shutil.ignore_patterns(".*", "*.egg-info", "build", "dist", "node_modules", "__pycache__")
    shutil.copytree(ROOT, copy, ignore=left_by_builds)
    return build(copy, tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="session")
def installation(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installation:
    return install(wheel, tmp_path_factory.mktemp("installed") / "new")
