"""The names of processes, and their memory."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from pathlib import Path


def process_name(pid: int | None = None) -> str:
    """Return host and process, as `host:pid`, by default of this process."""
    return f"{socket.gethostname()}:{pid or os.getpid()}"


def has_ended(name: str) -> bool:
    """Return True if `name`, as `host:pid`, was a process of this machine and has ended. Of others it is unknown."""
    host, _, pid = name.rpartition(":")
    if host != socket.gethostname():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    return False


def resident_memory(pid: int) -> int | None:
    """Return the resident memory of a process of this machine in bytes, shared pages included.

    `None` if the process is gone, or the operating system has no `/proc`.
    """
    with suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return None
