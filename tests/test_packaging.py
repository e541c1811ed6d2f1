"""What an installation from a wheel has beside the Python files."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import distributions
from pathlib import Path

ROOT = Path(__file__).parents[1]
COME_WITH_PYTHON = {"pip", "setuptools", "wheel"}
PACKAGES = ("tasks", "services", "models", "queue_manager")


def test_every_file_of_the_packages_is_installed() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    installed = {
        path
        for package, patterns in listed.items()
        for pattern in patterns
        for path in (ROOT / package.replace(".", "/")).glob(pattern)
    }
    present = {
        path
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and path.suffix not in (".py", ".pyc")
    }
    assert present - installed == set()
    assert installed


def test_constraints_pin_every_package_that_is_installed_here() -> None:
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines())
    known = {normal(name): version for name, version in pins.items()}
    installed = {normal(one.metadata["Name"]): one.version for one in distributions()}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["name"]
    others = {name: version for name, version in installed.items() if name not in {project, *COME_WITH_PYTHON}}
    assert {name: known.get(name) for name in others} == others, "run `make lock`"


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
