"""What an installation from a wheel has in addition to the Python files."""

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
        if path.suffix != ".py" and "__pycache__" not in path.parts and path.is_file()
    }
    assert present - installed == set()
    assert {ROOT / package / "py.typed" for package in PACKAGES} <= installed  # type checkers ignore others' types


def test_constraints_pin_every_package_that_is_installed_here() -> None:
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines())
    known = {normal(name): version for name, version in pins.items()}
    installed = {normal(one.metadata["Name"]): one.version for one in distributions()}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["name"]
    others = {name: version for name, version in installed.items() if name not in {project, *COME_WITH_PYTHON}}
    assert {name: known.get(name) for name in others} == others, "run `make lock`"


def test_all_files_name_the_latest_release() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    kustomization = (ROOT / "deploy" / "kubernetes" / "base" / "kustomization.yaml").read_text()
    assert releases()[0] == version
    assert f"newTag: {version}\n" in kustomization


def test_the_releases_of_the_changelog_are_dated_and_in_order() -> None:
    headings = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    dated = [re.fullmatch(r"\[\d+\.\d+\.\d+\] - (\d{4}-\d\d-\d\d)", heading) for heading in headings[1:]]
    dates = [matched.group(1) for matched in dated if matched]
    assert headings[0] == "[Unreleased]"
    assert len(dates) == len(dated)
    assert dates == sorted(dates, reverse=True)
    numbers = [tuple(map(int, release.split("."))) for release in releases()]
    assert numbers == sorted(numbers, reverse=True)


def releases() -> list[str]:
    return re.findall(r"^## \[([\d.]+)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
