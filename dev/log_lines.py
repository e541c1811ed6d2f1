"""What a line of a process's output says to somebody who does not read logs."""

from __future__ import annotations

import json
import re

_CONSOLE = re.compile(r"[\d:.]+ \[(?:warning|error|critical)\s*\] (?P<text>.+)")
_TORNADO = re.compile(r"\[[EC] [^\]]+\] (?P<text>.+)")  # its warnings at Flower's start mean nothing
_JSON_LEVELS = {"warning", "error", "critical"}

READY = {
    "worker": " ready.",
    "jobs": " ready.",
    "scans": " ready.",
    "beat": "beat: Starting",
    "flower": "Visit me at",
    "web": "Uvicorn running on",
}
"""By process, what it says once it has started. Any other has started at once."""


def warning_in(line: str) -> str | None:
    """Return the text of a line that is a warning or an error."""
    if line.startswith("{"):
        return _warning_in_json(line)
    found = _CONSOLE.match(line) or _TORNADO.match(line)
    return found["text"] if found else None


def _warning_in_json(line: str) -> str | None:
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    return str(entry.get("event")) if entry.get("level") in _JSON_LEVELS else None
