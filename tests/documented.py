"""The blocks of the pages: a test runs what operators are told to run."""

from __future__ import annotations

import re
from pathlib import Path

from dev.site.markdown import blocks

DOCS = Path(__file__).parents[1] / "docs"
SERVERS, BROKERS = DOCS / "how-to" / "servers.md", DOCS / "brokers.md"


def block(number: int, *, heading: str = "", page: Path = SERVERS) -> str:
    """Return a code block under a heading, or before the first one, counted from 0."""
    text = page.read_text()
    rest = text.partition(f"\n## {heading}\n")[2] if heading else text
    return [one.code for one in blocks(rest.partition("\n## ")[0])][number]


def output(text: str) -> str:
    """Return what a block shows after its command."""
    command, _, shown = text.partition("\n")
    assert command.startswith("$ ")
    return shown


def options(text: str) -> dict[str, str]:
    """Return the lines of a configuration or an environment by name, without comments."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    found = dict(re.findall(r"^([\w.-]+)(?: = |=| )(.+)$", "\n".join(lines), re.MULTILINE))
    assert len(found) == len(lines), text
    return found
