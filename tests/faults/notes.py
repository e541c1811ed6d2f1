"""Files to which processes append a line for each action, with the monotonic clock that all of them share."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any


def append(path: str, **line: Any) -> None:
    text = json.dumps({**line, "pid": os.getpid(), "at": time.monotonic()}) + "\n"
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(file, text.encode())  # one write: lines of several processes do not mix
    finally:
        os.close(file)


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]
