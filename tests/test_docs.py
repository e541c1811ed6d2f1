"""The documentation: every relative link leads to a file, every anchor to a heading, every command is described."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest
import typer

from queue_manager.cli.commands import cli

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
CODE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s]+)\)|(?:src|srcset|href)=\"([^\"]+)\"")


def links(page: Path) -> list[str]:
    text = CODE.sub("", page.read_text())
    found = [in_markdown or in_html for in_markdown, in_html in LINK.findall(text)]
    return [link for link in found if not re.match(r"[a-z]+:", link)]


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = HEADING.findall(CODE.sub("", page.read_text()))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_resolves(page: Path) -> None:
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_every_page_can_be_reached_from_the_index() -> None:
    index = ROOT / "docs" / "README.md"
    linked = {(index.parent / link).resolve() for link in links(index)}
    assert set((ROOT / "docs").rglob("*.md")) - linked == {index}


def commands(command: click.Command, path: str) -> list[str]:
    below = getattr(command, "commands", {})
    return [path] if not below else [name for one in below for name in commands(below[one], f"{path} {one}")]


def test_the_reference_lists_every_command() -> None:
    reference = (ROOT / "docs" / "reference" / "command-line.md").read_text()
    described = re.findall(r"^\| `(queue-manager(?: [a-z-]+)+)", reference, flags=re.MULTILINE)
    assert set(commands(typer.main.get_command(cli), "queue-manager")) - set(described) == set()
