"""The previous release is found by its tag, and in a clone without tags by the commit that dated it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from benchmarks import release
from tests.test_packaging import releases

AUTHOR = ("-c", "user.name=A", "-c", "user.email=a@example.org")
BEFORE, DATED, AFTER = "", f"## [{release.VERSION}] - 2026-11-22\n", "## [9.0.0] - 2027-01-01\n"


def git(repository: Path, *arguments: str) -> None:
    subprocess.run(["git", "-C", repository, *AUTHOR, *arguments], check=True, capture_output=True)


@pytest.fixture
def origin(tmp_path: Path) -> Path:
    """A repository with a commit before the release, one that dates it, and two after it."""
    origin = tmp_path / "origin"
    origin.mkdir()
    git(origin, "init", "--quiet")
    changelog = "# Changelog\n\n"
    for step, section in enumerate((BEFORE, DATED, AFTER, "### Fixed\n")):
        changelog += section
        (origin / "CHANGELOG.md").write_text(changelog)
        (origin / "step").write_text(str(step))
        git(origin, "add", ".")
        git(origin, "commit", "--quiet", "--message", str(step))
    return origin


def found_in(repository: Path, monkeypatch: pytest.MonkeyPatch) -> str | None:
    """Return the step of the commit that is found."""
    monkeypatch.setattr(release, "ROOT", repository)
    with release.checked_out() as source:
        return None if source is None else (source / "step").read_text()


def test_previous_release_is_found_by_its_commit_without_tags(origin: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert found_in(origin, monkeypatch) == "1"


def test_previous_release_is_found_by_its_tag(origin: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git(origin, "tag", f"v{release.VERSION}", "HEAD~1")
    assert found_in(origin, monkeypatch) == "2"


def test_previous_release_is_not_found_in_a_clone_without_that_commit(
    origin: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shallow = origin.parent / "shallow"
    git(origin, "clone", "--quiet", "--depth", "2", f"file://{origin}", str(shallow))
    assert found_in(shallow, monkeypatch) is None


def test_previous_release_is_in_the_changelog() -> None:
    assert release.VERSION in releases()
