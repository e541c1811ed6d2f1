"""The commands of `docs/how-to/servers.md`: a test runs what operators are told to run."""

from __future__ import annotations

import re

from tests.e2e.celery_processes import ROOT

PAGE = ROOT / "docs" / "how-to" / "servers.md"


def block(number: int, *, heading: str) -> str:
    """Return a code block under a heading, counted from 0."""
    _, _, rest = PAGE.read_text().partition(f"\n## {heading}\n")
    section = rest.partition("\n## ")[0]
    return re.findall(r"^```\w*\n(.*?)^```$", section, flags=re.MULTILINE | re.DOTALL)[number]
