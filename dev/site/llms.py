"""`llms.txt`, an index of the pages for language models, and `llms-full.txt`, all pages in one file (llmstxt.org)."""

from __future__ import annotations

import re
from pathlib import Path

from dev.site.navigation import Entries

_SUMMARY = (
    "Queue Manager is a Celery application that finds due work in MongoDB and executes it on time, with Redis as the "
    "broker, and has a message queue and job queues."
)


def write_llms(pages: Path, site: Path, entries: Entries) -> None:
    """Write both files to `site`, and next to each HTML page the Markdown that the index links to."""
    lines = ["# Queue Manager", "", f"> {_SUMMARY}"]
    for section, below in entries.items():
        if isinstance(below, dict):
            lines += ["", f"## {section}", ""]
            lines += [f"- [{title}]({path}): {_first_sentence(pages / str(path))}" for title, path in below.items()]
    (site / "llms.txt").write_text("\n".join(lines) + "\n")
    listed = [str(path) for below in entries.values() if isinstance(below, dict) for path in below.values()]
    for path in listed:
        (site / path).write_text((pages / path).read_text())
    (site / "llms-full.txt").write_text("\n".join((pages / path).read_text() for path in listed))


def _first_sentence(page: Path) -> str:
    paragraphs = re.split(r"\n{2,}", page.read_text())
    first = next((one for one in paragraphs if not re.match(r"[#<|!\-]|```|\d", one)), "")
    plain = re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", " ".join(first.split()))
    return re.split(r"(?<=[.:])\s", plain)[0].rstrip(":")
