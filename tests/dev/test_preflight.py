"""What is missing on a machine is named with the command that installs it, and never with a traceback."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dev import preflight

SCRIPT = Path(preflight.__file__)


def run_with(tmp_path: Path, hiding: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the script as the Makefile does, in a Python changed by `hiding` at its start."""
    (tmp_path / "sitecustomize.py").write_text(hiding)
    kept = {"PATH": str(Path(sys.executable).parent), "LD_LIBRARY_PATH": os.environ.get("LD_LIBRARY_PATH", "")}
    return subprocess.run(
        [sys.executable, str(SCRIPT)],
        cwd=tmp_path,
        env={**kept, "PYTHONPATH": str(tmp_path), **environment},
        capture_output=True,
        text=True,
    )


WITHOUT_ENSUREPIP = "import sys; sys.modules['ensurepip'] = None"
WITHOUT_LIBCURL = """
import ctypes
class CDLL:
    def __init__(self, name): raise OSError(name)
ctypes.CDLL = CDLL
"""
OLD_PYTHON = "import sys; sys.version_info = (3, 9, 2)"
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="only MongoDB's Linux build uses libcurl")


def test_a_complete_machine_passes_silently(tmp_path: Path) -> None:
    done = run_with(tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("hiding", "command"),
    [
        (WITHOUT_ENSUREPIP, "apt install python3-venv"),
        pytest.param(WITHOUT_LIBCURL, "apt install libcurl4", marks=on_linux),
        (OLD_PYTHON, "apt install python3.11 python3.11-venv"),
    ],
)
def test_missing_package_is_named_with_the_command_that_installs_it(tmp_path: Path, hiding: str, command: str) -> None:
    done = run_with(tmp_path, hiding)
    assert done.returncode == 1
    assert command in done.stderr
    assert "Traceback" not in done.stderr


def test_everything_missing_is_named_together(tmp_path: Path) -> None:
    done = run_with(tmp_path, WITHOUT_ENSUREPIP + "\n" + WITHOUT_LIBCURL)
    assert done.stderr.count("Missing:") == (2 if sys.platform == "linux" else 1)


@pytest.mark.parametrize("variable", ["QM_MONGOD_BIN", "MONGO_DB_URL"])
def test_libcurl_is_not_needed_with_a_mongodb_of_the_user(tmp_path: Path, variable: str) -> None:
    assert run_with(tmp_path, WITHOUT_LIBCURL, **{variable: "mine"}).returncode == 0


@on_linux
@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("MONGO_DB_URL=mongodb://db/product", 0),
        ("export MONGO_DB_URL = 'mongodb://db/product'", 0),
        ("# MONGO_DB_URL=mongodb://db/product", 1),
        ("MONGO_DB_URL=", 1),
        ("MONGO_DB_URL=''", 1),
    ],
)
def test_libcurl_is_not_needed_with_a_mongodb_in_env_file(tmp_path: Path, line: str, code: int) -> None:
    (tmp_path / ".env").write_text(f"QM_JOBS=true\n{line}\nREDIS_URL=redis://redis\n")
    assert run_with(tmp_path, WITHOUT_LIBCURL).returncode == code


@on_linux
@pytest.mark.parametrize(("version", "code"), [("v5.0.22", 1), ("v6.0.19", 0)])
def test_libcurl_is_needed_although_an_old_mongod_is_installed(tmp_path: Path, version: str, code: int) -> None:
    mongod = tmp_path / "mongod"
    mongod.write_text(f"#!/bin/sh\necho 'db version {version}'\n")
    mongod.chmod(0o755)
    assert run_with(tmp_path, WITHOUT_LIBCURL, PATH=f"{tmp_path}:{Path(sys.executable).parent}").returncode == code


def test_an_old_python_can_parse_the_preflight_check() -> None:
    ast.parse(SCRIPT.read_text(), feature_version=(3, 4))
