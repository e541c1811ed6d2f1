"""What `make` installs into `.venv`, when, and what is shown meanwhile."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dev.install import progress

ROOT = Path(__file__).parents[2]
COPIED = ("Makefile", "pyproject.toml", "constraints.txt", "dev/__init__.py", "dev/install.py", "dev/preflight.py")
# Stands for `python -m venv`, which takes seconds.
PYTHON = f"""#!/bin/sh
if [ "$1 $2" = "-m venv" ]; then
    mkdir -p .venv/bin && ln -s {sys.executable} .venv/bin/python
else
    exec {sys.executable} "$@"
fi
"""
PIP = """
import os, sys
if "FAIL" in os.environ:
    sys.exit("no network")
with open("installed", "a") as file:
    file.write(sys.argv[-1] + "\\n")
"""
INTERRUPTED_PIP = "import os, signal; os.kill(os.getppid(), signal.SIGINT)"
EXCLUSIVE_PIP = """
import os, time
os.mkdir("pip-is-running")
time.sleep(0.5)
os.rmdir("pip-is-running")
"""
OTHER_PYTHON = """
import os, sys
if "OTHER_PYTHON" in os.environ:
    sys.version_info = (3, 99, 0, "final", 0)
sys._base_executable = os.environ.get("OTHER_EXECUTABLE", sys._base_executable)
"""
UP, DEV, DOCS = (f".venv/.installed-{extra}" for extra in ("up", "dev", "docs"))
NODE = "dev/js/node_modules/.installed"


class Clone:
    """A clone with what `make` needs to install, and a pip that writes what it was called for to a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        for name in COPIED:
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, path / name)
        self.write("programs/python", PYTHON).chmod(0o755)
        self.write("modules/pip.py", PIP)
        self.write("modules/sitecustomize.py", OTHER_PYTHON)

    def write(self, name: str, text: str) -> Path:
        file = self.path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def append(self, name: str, line: str) -> None:
        """Change a file after everything was installed: times that are near each other may be equal."""
        for installed in (self.path / ".venv").glob(".*"):
            modified = installed.stat().st_mtime - 10
            os.utime(installed, (modified, modified))
        with (self.path / name).open("a") as file:
            file.write(f"{line}\n")

    def make(self, *targets: str, **env: str) -> tuple[int, str]:
        """Return the exit code and the output."""
        made = subprocess.run(
            ["make", "--silent", *targets, f"PYTHON={self.path / 'programs/python'}"],
            cwd=self.path,
            env=os.environ | {"PYTHONPATH": str(self.path / "modules"), "MONGO_DB_URL": "mine"} | env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        return made.returncode, made.stdout

    def installed(self, *targets: str, **env: str) -> list[str]:
        """Make the targets; return what pip was called for."""
        for target in targets:
            code, output = self.make(target, **env)
            assert code == 0, output
        file = self.path / "installed"
        calls = file.read_text().splitlines() if file.exists() else []
        file.unlink(missing_ok=True)
        return calls


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    return Clone(tmp_path / "clone")


def test_extras_are_installed_once(clone: Clone) -> None:
    assert clone.installed(UP, UP) == [".[embedded]"]
    assert clone.installed(DEV, UP, DEV) == [".[embedded,dev]"]


def test_an_environment_of_another_clone_or_python_is_replaced(clone: Clone, tmp_path: Path) -> None:
    clone.installed(DEV)
    copy = Clone(shutil.copytree(clone.path, tmp_path / "copy", symlinks=True))
    assert copy.installed(UP) == [".[embedded]"]
    assert not (copy.path / DEV).exists()
    assert copy.installed(UP, OTHER_PYTHON="1") == [".[embedded]"]
    assert copy.installed(UP, OTHER_PYTHON="1", OTHER_EXECUTABLE="/pythons/3.99.1/bin/python3") == [".[embedded]"]
    assert clone.installed(UP, DEV) == []


def test_a_link_to_an_environment_is_replaced_and_its_target_kept(clone: Clone, tmp_path: Path) -> None:
    clone.installed(UP)
    other = Clone(tmp_path / "other")
    (other.path / ".venv").symlink_to(clone.path / ".venv")
    assert other.installed(UP) == [".[embedded]"]
    assert clone.installed(UP) == []


def test_node_is_installed_again_with_a_new_environment(clone: Clone) -> None:
    clone.write("dev/js/package-lock.json", "{}")
    clone.write(NODE, "")
    assert clone.installed(NODE) == [".[scripts]"]
    assert clone.installed(NODE) == []


def test_pip_is_called_again_only_if_what_it_reads_has_changed(clone: Clone) -> None:
    clone.installed(DEV)
    clone.append("pyproject.toml", "[tool.other]")
    assert clone.installed(DEV, UP, FAIL="") == []
    clone.append("constraints.txt", "other==1")
    assert clone.installed(UP, DEV, UP) == [".[embedded]", ".[embedded,dev]"]


def test_packages_of_another_branch_are_replaced_when_it_is_left(clone: Clone) -> None:
    before = (clone.path / "constraints.txt").read_text()
    clone.installed(DEV)
    clone.append("constraints.txt", "other==1")
    clone.installed(UP)
    clone.append("constraints.txt", "")
    clone.write("constraints.txt", before)
    assert clone.installed(DEV) == [".[embedded,dev]"]


def test_one_pip_runs_at_a_time(clone: Clone) -> None:
    clone.write("modules/pip.py", EXCLUSIVE_PIP)
    code, output = clone.make("--jobs=2", DEV, DOCS)
    assert code == 0, output


def test_a_failed_installation_is_shown_and_repeated(clone: Clone) -> None:
    code, output = clone.make(UP, FAIL="")
    assert code == 2
    assert "no network" in output
    assert clone.installed(UP) == [".[embedded]"]


def test_an_interrupted_installation_prints_no_traceback_and_is_repeated(clone: Clone) -> None:
    clone.installed(UP)
    (clone.path / UP).unlink()
    clone.write("modules/pip.py", INTERRUPTED_PIP)
    interrupted = subprocess.run(
        [sys.executable, "-m", "dev.install", "embedded", UP],
        cwd=clone.path,
        env=os.environ | {"PYTHONPATH": str(clone.path / "modules")},
        capture_output=True,
        text=True,
    )
    assert (interrupted.returncode, interrupted.stderr) == (-signal.SIGINT, "")
    assert not (clone.path / UP).exists()


def test_packages_are_counted_until_they_are_unpacked() -> None:
    lines = [
        "Obtaining file:///queue-manager\n",
        "  Preparing editable metadata (pyproject.toml): started\n",
        "Collecting celery[redis]==5.7.* (from queue-manager==0.2.0)\n",
        "  Downloading celery-5.7.0-py3-none-any.whl (519 kB)\n",
        "Processing /wheels/redis-8.1.0-py3-none-any.whl (from queue-manager==0.2.0)\n",
        "Installing collected packages: redis, celery, queue-manager\n",
    ]
    assert list(progress(lines)) == [
        "downloading package 1",
        "downloading package 2",
        "downloading package 3",
        "unpacking 3 packages",
    ]
