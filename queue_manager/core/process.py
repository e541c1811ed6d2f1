"""The names of processes."""

from __future__ import annotations

import os
import socket


def process_name(pid: int | None = None) -> str:
    """Return host and process, as `host:pid`, by default of this process."""
    return f"{socket.gethostname()}:{pid or os.getpid()}"
